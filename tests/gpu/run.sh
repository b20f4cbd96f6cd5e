#!/usr/bin/env bash
# Runs everything that needs a GPU, from a bundle (tests/gpu/bundle.sh), on a machine with a driver,
# the CUDA runtime and NCCL and nothing else of ours.
#
#   tests/gpu/run.sh BUNDLE        results go to $OUT, default ./gpu-results
#
# One line a step, PASS, FAIL or SKIP with its seconds and, where it is no pass, why; its output is in $OUT/STEP.log. Exit code 1
# when a step failed. It ends within 25 minutes: what has not begun by then fails.
set -uo pipefail

if [[ $# -ne 1 || ! -x "$1/bin/eplb-trainer" ]]; then
  echo "usage: tests/gpu/run.sh BUNDLE (a folder that tests/gpu/bundle.sh made)" >&2
  exit 2
fi
bundle="$(cd "$1" && pwd)"
out="${OUT:-$PWD/gpu-results}"
mkdir -p "$out"
readonly kBudgetSeconds=1500 kSkipped=77
failed=0

export EPLB_REQUIRE_GPU=1 EPLB_BIN="$bundle/bin" EPLB_DATA="$bundle/data" PYTHONUNBUFFERED=1 TEST_TMPDIR="$out"

say() { echo "$1" | tee -a "$out/summary.txt"; }

# step NAME SECONDS COMMAND..: SECONDS at most.
step() {
  local name="$1" limit="$2" begin=$SECONDS left=$((kBudgetSeconds - SECONDS)) code
  shift 2
  if ((left < 5)); then
    say "FAIL $name 0 s: not run, $kBudgetSeconds s are over"
    failed=1
    return
  fi
  timeout -k 5 "$((limit < left ? limit : left))" "$@" >"$out/$name.log" 2>&1
  code=$?
  if ((code == 0)); then
    say "PASS $name $((SECONDS - begin)) s"
  elif ((code == kSkipped)); then
    say "SKIP $name $((SECONDS - begin)) s: $(tail -n 1 "$out/$name.log")"
  else
    local why="exit code $code"
    ((code == 124 || code == 137)) && why="stopped after its time"
    say "FAIL $name $((SECONDS - begin)) s: $why, see $name.log"
    failed=1
  fi
}

skip() { say "SKIP $1 0 s: $2"; }

# A fresh summary; the machine as it is.
: >"$out/summary.txt"
if command -v nvidia-smi >/dev/null; then
  step machine 20 nvidia-smi -q -d MEMORY,CLOCK,COMPUTE
else
  skip machine "there is no nvidia-smi"
fi

tests="$bundle/tests"
step kernels 120 "$tests/cuda_gpu_test"

# Its test of order copies 512 MB, which takes minutes under a checker and shows nothing more there.
sanitizer="$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | tail -n 1)"
for tool in memcheck racecheck initcheck synccheck; do
  if [[ -n "$sanitizer" ]]; then
    step "$tool" 90 "$sanitizer" --tool "$tool" --report-api-errors no --error-exitcode 1 \
      "$tests/cuda_gpu_test" --gtest_filter=-StreamRowQueueTest.RunsBetweenWhatItFollowsAndWhatFollowsIt
  else
    skip "$tool" "compute-sanitizer is not on this machine"
  fi
done

step thread_ranks 150 "$tests/migration_gpu_test" --gtest_filter='Device*'
step process_ranks 150 "$tests/migration_gpu_test" --gtest_filter='MigrationProcessesTest.*-*Nccl*'
if [[ -x "$tests/nccl_gpu_test" ]]; then
  # The tests give each rank NCCL's environment themselves: tests/gpu/rank_processes.cc.
  step nccl_ranks 240 "$tests/nccl_gpu_test"
  step nccl_migration 90 "$tests/migration_gpu_test" --gtest_filter='MigrationProcessesTest.*Nccl*'
else
  skip nccl_ranks "the bundle was built without nccl.h"
  skip nccl_migration "the bundle was built without nccl.h"
fi
step trainer 240 python3 "$bundle/suite/gpu/trainer_gpu_test.py" -v

step bench_kernels 90 "$tests/cuda_bench"
step bench_gemm_loop 60 "$tests/gemm_loop_bench"
cat "$out"/bench_*.log >"$out/figures.jsonl" 2>/dev/null

exit "$failed"
