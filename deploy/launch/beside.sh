# Functions of the launch scripts: a daemon beside a job, for as long as the job runs. To be sourced by bash.
# shellcheck shell=bash

eplb_loop=''

# eplb_listen_flags: the flags that a daemon which ranks of other machines reach needs, one a line; an error names what is missing.
eplb_listen_flags() {
  local port=${EPLBD_PORT:-29610}
  printf '%s\n' --listen "0.0.0.0:$port"
  if [ -n "${EPLBD_CONFIG:-}" ]; then
    printf '%s\n' --config "$EPLBD_CONFIG"
  elif [ "${EPLBD_INSECURE:-}" = 1 ]; then
    printf '%s\n' --insecure-network
  else
    echo "eplb: ranks of other machines need a daemon with TLS: set EPLBD_CONFIG to an eplbd.toml with [tls], or EPLBD_INSECURE=1 in a network that you trust" >&2
    return 2
  fi
}

# eplb_start_daemon ENDPOINT_FILE [COMMAND IN FRONT...] -- FLAG...: starts the loop and waits at most 60 s for the address.
eplb_start_daemon() {
  local file=$1 here front=()
  shift
  while [ "$1" != -- ]; do front+=("$1"); shift; done
  shift
  here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
  rm -f "$file"
  "${front[@]}" "$here/daemon_loop.sh" "$file" "$@" &
  eplb_loop=$!
  for _ in $(seq 600); do
    [ ! -s "$file" ] || return 0
    kill -0 "$eplb_loop" 2>/dev/null || { echo "eplb: the daemon did not start" >&2; return 1; }
    sleep 0.1
  done
  echo "eplb: the daemon did not write $file within 60 s" >&2
  return 1
}

# eplb_stop_daemon: drains it, for at most 60 s; for a trap on EXIT.
eplb_stop_daemon() {
  [ -n "$eplb_loop" ] || return 0
  kill -TERM "$eplb_loop" 2>/dev/null || true
  for _ in $(seq 600); do
    kill -0 "$eplb_loop" 2>/dev/null || break
    sleep 0.1
  done
  kill -KILL "$eplb_loop" 2>/dev/null || true
  wait "$eplb_loop" 2>/dev/null || true
  eplb_loop=''
}

# eplb_run COMMAND..: the job. SIGTERM and SIGINT of the script reach it at once. Returns its status.
eplb_run() {
  local status=0 job=''
  trap '[ -z "$job" ] || kill -TERM "$job" 2>/dev/null || true' TERM INT
  "$@" <&0 &
  job=$!
  while :; do
    status=0
    wait "$job" || status=$?
    kill -0 "$job" 2>/dev/null || break
  done
  trap 'exit 143' TERM INT
  return "$status"
}
