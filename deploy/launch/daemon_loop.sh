#!/usr/bin/env bash
# Keeps an eplbd running beside a job, without a service manager, and writes where it listens. Ends when it is told to (SIGTERM,
# SIGINT), which drains the daemon.
#   deploy/launch/daemon_loop.sh ENDPOINT_FILE [FLAG OF EPLBD...]
# ENDPOINT_FILE gets HOST:PORT of the first start; a restart uses the same port, so that ranks find it again. The daemon listens
# where --listen says, with port 0 on a free one. EPLBD_ADVERTISE is the host name to write [that of --listen].
# A daemon that dies is started again after 1, 2, 4, .. 30 s; the delay is 1 s again once it ran for a minute. A wrong
# configuration (exit 2) and 20 starts that each ended within a minute end the loop: nothing of that repairs itself.
set -euo pipefail

[ $# -ge 1 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
endpoint_file=$1
shift
command -v "${EPLBD:-eplbd}" >/dev/null ||
  { printf 'daemon_loop: there is no program %s; EPLBD=PATH names the daemon\n' "${EPLBD:-eplbd}" >&2; exit 2; }
readonly kMostFailures=20 kHealthySeconds=60 kLongestDelay=30
daemon='' stopping='' address='' failures=0 delay=1
output=$endpoint_file.out

say() { printf 'daemon_loop: %s\n' "$*" >&2; }
# shellcheck disable=SC2317  # called by trap
stop() {
  stopping=yes
  [ -z "$daemon" ] || kill -TERM "$daemon" 2>/dev/null || true
}
trap stop TERM INT
# An address of an earlier run would mislead the ranks.
rm -f "$endpoint_file"
trap 'rm -f "$output" "$endpoint_file" "$endpoint_file.step"' EXIT
# Whoever started this as a step of Slurm stops it by a signal to the step.
[ -z "${SLURM_STEP_ID:-}" ] || printf '%s.%s\n' "$SLURM_JOB_ID" "$SLURM_STEP_ID" >"$endpoint_file.step"

# Sets `address` to what the daemon prints once it listens; empty when it ends, or is told to, before.
await_address() {
  for _ in $(seq 300); do
    address=$(sed -n '1s/.*"grpc":"\([^"]*\)".*/\1/p' "$output")
    [ -z "$address" ] || break
    [ -z "$stopping" ] || break
    kill -0 "$daemon" 2>/dev/null || break
    # In the background, so that a signal is handled at once.
    sleep 0.1 &
    wait $! || true
  done
}

# Readers see the whole address or none.
publish() {
  local address=$1
  case "$address" in
    unix:*) ;;
    *) [ -z "${EPLBD_ADVERTISE:-}" ] || address=$EPLBD_ADVERTISE:${address##*:} ;;
  esac
  printf '%s\n' "$address" >"$endpoint_file.new"
  mv -f "$endpoint_file.new" "$endpoint_file"
}

# The exit status of the daemon; a signal to this script interrupts `wait`.
await_end() {
  local status=0
  while :; do
    status=0
    wait "$daemon" || status=$?
    kill -0 "$daemon" 2>/dev/null || break
  done
  return "$status"
}

listen=()
while [ -z "$stopping" ]; do
  began=$SECONDS
  : >"$output"
  # The last --listen counts.
  "${EPLBD:-eplbd}" "$@" "${listen[@]}" >"$output" &
  daemon=$!
  # A signal that came before this line found no daemon.
  [ -z "$stopping" ] || kill -TERM "$daemon" 2>/dev/null || true
  await_address
  if [ -n "$address" ] && [ ${#listen[@]} -eq 0 ]; then
    listen=(--set "listen.grpc=$address")
    publish "$address"
    say "eplbd listens on $address"
  fi
  status=0
  await_end || status=$?
  daemon=''
  [ -z "$stopping" ] || exit "$status"
  [ "$status" -ne 0 ] || { say "eplbd ended as it was asked to"; exit 0; }
  [ "$status" -ne 2 ] || { say "eplbd refuses its configuration"; exit 2; }
  if [ $((SECONDS - began)) -ge $kHealthySeconds ]; then
    failures=0 delay=1
  fi
  failures=$((failures + 1))
  [ $failures -lt $kMostFailures ] || { say "eplbd ended $failures times within $kHealthySeconds s of its start"; exit 1; }
  say "eplbd ended with status $status; next start in $delay s"
  # In the background, so that a signal is handled at once.
  sleep "$delay" &
  wait $! || true
  delay=$((delay * 2 < kLongestDelay ? delay * 2 : kLongestDelay))
done
