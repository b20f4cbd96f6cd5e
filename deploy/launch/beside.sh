# Functions of the launch scripts: a daemon beside a job, for as long as the job runs. To be sourced by bash.
# shellcheck shell=bash

eplb_loop='' eplb_endpoint_file='' eplb_state='' eplb_claim=''

# eplb_listen_flags: the flags that a daemon which ranks of other machines reach needs, one a line; an error names what is missing.
eplb_listen_flags() {
  local port=${EPLBD_PORT:-29610}
  printf '%s\n' --listen "0.0.0.0:$port"
  if [ -n "${EPLBD_CONFIG:-}" ]; then
    printf '%s\n' --config "$EPLBD_CONFIG"
  elif [ "${EPLBD_INSECURE:-}" = 1 ]; then
    # Another daemon of this machine may have the port of the page.
    printf '%s\n' --insecure-network --http 127.0.0.1:0
  else
    echo "eplb: ranks of other machines need a daemon with TLS: set EPLBD_CONFIG to an eplbd.toml with [tls], or EPLBD_INSECURE=1 in a network that you trust" >&2
    return 2
  fi
}

# eplb_claim_state FOLDER: makes FOLDER and sets eplb_state to it, or to FOLDER-2, -3 and so on while other launches use those before.
eplb_claim_state() {
  local number status
  for number in '' -2 -3 -4 -5 -6 -7 -8 -9; do
    eplb_state=$1$number
    # In a folder that cannot be written no daemon starts, which its own error explains.
    mkdir -p "$eplb_state" && exec {eplb_claim}>"$eplb_state/launch.lock" || return 0
    status=0
    flock --nonblock --conflict-exit-code 75 "$eplb_claim" || status=$?
    [ $status = 75 ] || return 0  # without locks the daemon's own store tells two launches apart
    exec {eplb_claim}>&-
  done
}

# eplb_start_daemon ENDPOINT_FILE FALLBACK [COMMAND IN FRONT...] -- FLAG...: starts the loop, waits at most 60 s for the address, and
# exports it as EPLB_ENDPOINT. Training runs without a daemon, too: if none starts, one line says so, and EPLB_ENDPOINT is FALLBACK,
# the address that ranks look at until a daemon is there.
eplb_start_daemon() {
  local file=$1 here front=()
  # The number of a free port is unknown until a daemon has it. No daemon listens at port 1.
  export EPLB_ENDPOINT=${2/%:0/:1}
  shift 2
  eplb_endpoint_file=$file
  while [ "$1" != -- ]; do front+=("$1"); shift; done
  shift
  here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
  rm -f "$file" || true
  "${front[@]}" "$here/daemon_loop.sh" "$file" "$@" &
  eplb_loop=$!
  for _ in $(seq 600); do
    [ -s "$file" ] || kill -0 "$eplb_loop" 2>/dev/null || break
    if [ -s "$file" ]; then
      EPLB_ENDPOINT=$(cat "$file")
      echo "eplb: eplbd on $EPLB_ENDPOINT"
      return 0
    fi
    sleep 0.1
  done
  echo "eplb: warning: no daemon: it ended or did not write $file within 60 s; training runs without balancing" >&2
}

# eplb_stop_daemon: drains it, for at most 60 s; for a trap on EXIT.
eplb_stop_daemon() {
  local step
  [ -n "$eplb_loop" ] || return 0
  step=$(cat "$eplb_endpoint_file.step" 2>/dev/null || true)
  # SIGTERM to srun cancels the step, and the daemon is killed. SIGINT to the step reaches the daemon alone.
  { [ -n "$step" ] && scancel --signal=INT "$step" 2>/dev/null; } || kill -TERM "$eplb_loop" 2>/dev/null || true
  for _ in $(seq 600); do
    kill -0 "$eplb_loop" 2>/dev/null || break
    sleep 0.1
  done
  kill -KILL "$eplb_loop" 2>/dev/null || true
  wait "$eplb_loop" 2>/dev/null || true
  rm -f "$eplb_endpoint_file" "$eplb_endpoint_file.step" || true
  eplb_loop=''
}

# eplb_run COMMAND..: the job. SIGTERM and SIGINT of the script reach it at once. Returns its status.
eplb_run() {
  local status=0 job='' told=''
  trap 'told=yes; [ -z "$job" ] || kill -TERM "$job" 2>/dev/null || true' TERM INT
  if [ -n "$eplb_claim" ]; then "$@" <&0 {eplb_claim}>&- & else "$@" <&0 & fi
  job=$!
  # A signal that came before this line found no job.
  [ -z "$told" ] || kill -TERM "$job" 2>/dev/null || true
  while :; do
    status=0
    wait "$job" || status=$?
    kill -0 "$job" 2>/dev/null || break
  done
  trap 'exit 143' TERM INT
  return "$status"
}
