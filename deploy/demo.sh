#!/usr/bin/env bash
# From a fresh clone to a finished run in one command: installs what is missing, builds, and runs a training job of
# 8 rank processes beside the balancer daemon on a recorded router trace. Ends with a report; exits non-zero when
# anything that was verified does not hold.
#
#   deploy/demo.sh [--steps N] [--step-ms T] [--skip-setup]
set -euo pipefail
cd "$(dirname "$0")/.."

ranks=8 slots=72 steps=480 step_ms=30 setup=yes
while [ $# -gt 0 ]; do
  case "$1" in
    --steps|--step-ms)
      [ $# -ge 2 ] || { echo "demo: $1 needs a number" >&2; exit 2; }
      if [ "$1" = --steps ]; then steps=$2; else step_ms=$2; fi
      shift 2 ;;
    --skip-setup) setup=no; shift ;;
    -h|--help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "demo: unknown option $1 (try --help)" >&2; exit 2 ;;
  esac
done

say() { printf '\033[1mdemo:\033[0m %s\n' "$*" | if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then cat; else sed 's/\x1b\[[0-9]*m//g'; fi; }

[ "$setup" = no ] || deploy/setup.sh
say "building (release preset; the first time takes a few minutes)"
cmake --preset release >build-demo.log 2>&1 || { cat build-demo.log >&2; rm -f build-demo.log; exit 1; }
rm -f build-demo.log
cmake --build --preset release --target eplbd eplbctl eplb-trainer

bin=build/release/bin
run=build/demo
rm -rf "$run"
mkdir -p "$run"
pids=()
stop() {
  local pid
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
}
trap stop EXIT

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
[ -n "$endpoint" ] || { echo "demo: eplbd did not say where it listens within 10 s" >&2; exit 1; }
say "eplbd (process $daemon) listens on $endpoint; $ranks ranks, $slots slots, $steps steps of the recorded trace"
say "to see training outlive it: kill -9 $daemon, then $bin/eplbd --config deploy/demo/eplbd.toml --listen $endpoint --http 127.0.0.1:0 --store $run/eplbd.db"

trainers=()
for rank in $(seq 0 $((ranks - 1))); do
  progress=()
  [ "$rank" -ne 0 ] || progress=(--progress)
  "$bin/eplb-trainer" --rank "$rank" --world "$ranks" --endpoint "$endpoint" --trace tests/data/moe64_aux.jsonl \
    --steps "$steps" --slots "$slots" --step-ms "$step_ms" --log-dir "$run" --report-json "$run/run.json" \
    "${progress[@]}" 2> >(tee "$run/rank-$rank.err" >&2) &
  trainers+=($!)
  pids+=($!)
done
status=0
for pid in "${trainers[@]}"; do wait "$pid" || status=$?; done
[ "$status" -eq 0 ] || say "a rank ended with exit code $status"

"$bin/eplbctl" status --endpoint "$endpoint" || true
if kill -TERM "$daemon" 2>/dev/null; then
  wait "$daemon" || { echo "demo: eplbd ended with exit code $?" >&2; status=1; }
else
  say "eplbd was ended by somebody else during the run"
fi
pids=()
"$bin/eplbctl" report "$run" --min-rebalances 3 --out "$run/report.json" || status=$?
say "everything the run wrote is in $run (report.json, run.json, placements.jsonl, eplbd.log, eplbd.db)"
exit "$status"
