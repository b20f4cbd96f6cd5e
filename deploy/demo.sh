#!/usr/bin/env bash
# From a fresh clone to a finished run in one command: installs what is missing, builds, and runs a training job of
# 8 rank processes beside the balancer daemon on a recorded router trace. The ranks split each step's tokens exactly.
# Ends with a report and a web page; exits non-zero when anything that was verified does not hold.
#
#   deploy/demo.sh [--steps N | --minutes M] [--step-ms T] [--skip-setup] [--bin DIR] [--dir DIR]
#
#   --steps N     training steps [480]; --minutes M: as many steps as fit into about M minutes
#   --step-ms T   duration of a step with even GPUs in milliseconds; uneven GPUs make it longer [60]
#   --skip-setup  install nothing
#   --bin DIR     install and build nothing: run the programs in DIR
#   --dir DIR     where the run is written, overwriting what is there [build/demo]
set -euo pipefail
cd "$(dirname "$0")/.."

ranks=8 slots=72 steps=480 minutes='' step_ms=60 setup=yes bin='' run=build/demo
while [ $# -gt 0 ]; do
  case "$1" in
    --steps|--minutes|--step-ms|--bin|--dir)
      [ $# -ge 2 ] || { echo "demo: $1 needs a value" >&2; exit 2; }
      case "$1" in
        --bin) bin=$2 ;;
        --dir) run=$2 ;;
        *) [[ $2 =~ ^[1-9][0-9]{0,6}$ ]] || { echo "demo: $1 is \"$2\", expected a whole number above 0" >&2; exit 2; }
           case "$1" in --steps) steps=$2 ;; --minutes) minutes=$2 ;; --step-ms) step_ms=$2 ;; esac ;;
      esac
      shift 2 ;;
    --skip-setup) setup=no; shift ;;
    -h|--help) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "demo: unknown option $1 (try --help)" >&2; exit 2 ;;
  esac
done
# The trace's steps last about 1.25 times an even one, and a few milliseconds besides.
[ -z "$minutes" ] || steps=$((minutes * 60000 / (step_ms * 5 / 4 + 4)))

say() { printf '\033[1mdemo:\033[0m %s\n' "$*" | if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then cat; else sed 's/\x1b\[[0-9]*m//g'; fi; }

# Reads ninja's lines "[done/all seconds] ..": on a terminal one line that is written over, else one in 30 s.
show_progress() {
  local finished total elapsed left shown=-30
  while IFS= read -r line; do
    [[ $line =~ ^\[([0-9]+)/([0-9]+)\ ([0-9]+) ]] || continue
    finished=${BASH_REMATCH[1]} total=${BASH_REMATCH[2]} elapsed=${BASH_REMATCH[3]}
    left=
    if [ "$elapsed" -ge 20 ] && [ "$finished" -ge 10 ] && [ "$finished" -lt "$total" ]; then
      left=$((elapsed * (total - finished) / finished))
      left=", about $(((left + 59) / 60)) min left at the rate so far"
    fi
    if [ -t 1 ]; then
      printf '\r[%*d/%d]%s   ' ${#total} "$finished" "$total" "$left"
    elif [ $((elapsed - shown)) -ge 30 ] || [ "$finished" -eq "$total" ]; then
      shown=$elapsed
      printf '[%*d/%d]%s\n' ${#total} "$finished" "$total" "$left"
    fi
  done
  [ ! -t 1 ] || echo
}

build() {
  local log=build/demo-build.log cores options=(-DEPLB_TESTS=OFF)
  cores=$(nproc)
  mkdir -p build
  # The demonstration's experts are in host memory; without a GPU its programs need no kernels, which take a fifth of the time.
  [ -e /dev/nvidiactl ] || options+=(-DEPLB_CUDA=OFF)
  say "building; from nothing it takes about 9 CPU-minutes, which is $(((9 + cores - 1) / cores)) min on $cores free cores ($log)"
  cmake --preset release "${options[@]}" >"$log" 2>&1 || { cat "$log" >&2; return 1; }
  NINJA_STATUS='[%f/%t %e] ' cmake --build --preset release --target eplbd eplbctl eplb-trainer 2>&1 |
    tee -a "$log" | show_progress || { echo "demo: the build failed:" >&2; tail -n 40 "$log" >&2; return 1; }
}

if [ -z "$bin" ]; then
  [ "$setup" = no ] || deploy/setup.sh --build
  build
  bin=build/release/bin
fi

rm -rf "$run"
mkdir -p "$run"
pids=()
stop() {
  local pid
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
}
trap stop EXIT

: >"$run/eplbd.out"  # the loop below may read it before the daemon has opened it
"$bin/eplbd" --config deploy/demo/eplbd.toml --listen 127.0.0.1:0 --http 127.0.0.1:0 --store "$run/eplbd.db" \
  >"$run/eplbd.out" 2>"$run/eplbd.log" &
daemon=$!
pids+=("$daemon")
endpoint=
for _ in $(seq 100); do
  endpoint=$(sed -n '1s/.*"grpc":"\([^"]*\)".*/\1/p' "$run/eplbd.out")
  [ -n "$endpoint" ] && break
  kill -0 "$daemon" 2>/dev/null || { echo "demo: eplbd did not start:" >&2; tail -n 5 "$run/eplbd.log" >&2; exit 1; }
  sleep 0.1
done
[ -n "$endpoint" ] || { echo "demo: eplbd did not print its address within 10 s" >&2; exit 1; }
say "eplbd (process $daemon) listens on $endpoint; $ranks ranks, $slots slots, $steps steps of the recorded trace," \
  "about $((steps * (step_ms * 5 / 4 + 4) / 1000)) s"
http=$(sed -n '1s/.*"http":"\([^"]*\)".*/\1/p' "$run/eplbd.out")
say "to watch it in a browser: http://$http/"
say "to watch it from another terminal: $bin/eplbctl top --endpoint $endpoint"
say "to see training outlive it: kill -9 $daemon, then $bin/eplbd --config deploy/demo/eplbd.toml --listen $endpoint --http 127.0.0.1:0 --store $run/eplbd.db"

# The ranks meet through the daemon, which tells launches apart by this.
export EPLB_LAUNCH_ID="demo-$$"
trainers=()
for rank in $(seq 0 $((ranks - 1))); do
  progress=()
  [ "$rank" -ne 0 ] || progress=(--progress)
  "$bin/eplb-trainer" --rank "$rank" --world "$ranks" --endpoint "$endpoint" --trace tests/data/moe64_aux.jsonl \
    --steps "$steps" --slots "$slots" --step-ms "$step_ms" --split batch --report-every 10 --log-dir "$run" --report-json "$run/run.json" \
    "${progress[@]}" 2> >(tee "$run/rank-$rank.err" >&2) &
  trainers+=($!)
  pids+=($!)
done
status=0
for pid in "${trainers[@]}"; do wait "$pid" || status=$?; done
[ "$status" -eq 0 ] || say "a rank ended with exit code $status"

"$bin/eplbctl" status --endpoint "$endpoint" || true
# Only the daemon knows the operators' changes; the report reads them from this file.
if ! "$bin/eplbctl" get events --limit 1000 -o json --endpoint "$endpoint" >"$run/events.json"; then
  rm -f "$run/events.json"
fi
if kill -TERM "$daemon" 2>/dev/null; then
  wait "$daemon" || { echo "demo: eplbd ended with exit code $?" >&2; status=1; }
else
  say "another process ended eplbd during the run"
fi
pids=()
echo
"$bin/eplbctl" report "$run" --min-rebalances 3 --out "$run/report.json" || status=$?
# Windows as short as the daemon's, for the lines of the page.
"$bin/eplbctl" report "$run" --window-steps 10 --html "$run/report.html" >/dev/null || status=$?
say "everything the run wrote is in $run (report.json, run.json, placements.jsonl, events.json, eplbd.log, eplbd.db)"
say "the page of the run, for a browser: $run/report.html"
exit "$status"
