#!/usr/bin/env bash
# Runs everything that needs a GPU, from a bundle (tests/gpu/bundle.sh), on a machine with nothing of ours.
#
#   tests/gpu/run.sh BUNDLE        results go to $OUT, default ./gpu-results
#
# Needs: a driver for CUDA 13 (580 or newer), glibc 2.36 and the libstdc++ of GCC 12 or newer, Python 3.11 for step trainer, and a
# libnccl.so.2: EPLB_NCCL_PATH, else the one of Python's packages or conda (find_nccl.py), else the loader's.
#
# One line a step, PASS, FAIL or SKIP with its seconds and, where it is no pass, why; its output is in $OUT/STEP.log. Exit code 1
# when a step failed, a figure missed its target (tests/gpu/RESULTS.md), or, with EPLB_REQUIRE_ALL=1, a step was skipped. It ends
# within 25 minutes: what has not begun by then fails.
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
skipped=()

export EPLB_REQUIRE_GPU=1 EPLB_BIN="$bundle/bin" EPLB_DATA="$bundle/data" PYTHONUNBUFFERED=1 TEST_TMPDIR="$out"

say() { echo "$1" | tee -a "$out/summary.txt"; }

# fail NAME SECONDS WHY
fail() {
  say "FAIL $1 $2 s: $3"
  failed=1
}

# skip NAME SECONDS WHY
skip() {
  say "SKIP $1 $2 s: $3"
  skipped+=("$1")
}

# step NAME SECONDS COMMAND..: SECONDS at most.
step() {
  local name="$1" limit="$2" begin=$SECONDS left=$((kBudgetSeconds - SECONDS)) code missed
  shift 2
  if ((left < 5)); then
    fail "$name" 0 "not run, $kBudgetSeconds s are over"
    return
  fi
  timeout -k 5 "$((limit < left ? limit : left))" "$@" >"$out/$name.log" 2>&1
  code=$?
  missed="$(grep -c '"verdict": "MISSED"' "$out/$name.log")"
  if ((code == 0)); then
    say "PASS $name $((SECONDS - begin)) s"
  elif ((code == kSkipped)); then
    skip "$name" $((SECONDS - begin)) "$(tail -n 1 "$out/$name.log")"
  elif ((code == 124 || code == 137)); then
    fail "$name" $((SECONDS - begin)) "stopped after its time, see $name.log"
  elif ((missed > 0)); then
    fail "$name" $((SECONDS - begin)) "targets missed: $missed, see $name.log"
  else
    fail "$name" $((SECONDS - begin)) "exit code $code, see $name.log"
  fi
}

# at_least VERSION LEAST
at_least() { [[ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" == "$2" ]]; }

# What this machine lacks, a line each.
lacks() {
  local libc driver
  libc="$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d' ' -f2)"
  at_least "$libc" 2.36 || echo "glibc 2.36 or newer is needed, here is ${libc:-another C library}"
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 ||
    echo "Python 3.11 or newer is needed for step trainer, here is $(python3 --version 2>/dev/null || echo none)"
  driver="$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)"
  if [[ "$driver" =~ ^[0-9.]+$ ]] && ! at_least "$driver" 580; then
    echo "driver 580 or newer is needed for CUDA 13, here is $driver"
  fi
}

# A fresh summary. Without a program of ours that runs there is nothing to find out.
: >"$out/summary.txt"
while read -r what; do fail needs 0 "$what"; done < <(lacks)
if "$bundle/bin/eplbctl" --version >"$out/needs.log" 2>&1; then
  ((failed)) || say "PASS needs 0 s"
else
  fail needs 0 "eplbctl does not run here: $(tail -n 1 "$out/needs.log")"
  exit 1
fi

if [[ -z "${EPLB_NCCL_PATH:-}" ]]; then
  found="$(python3 "$bundle/suite/gpu/find_nccl.py" 2>/dev/null)"
  if [[ -n "$found" ]]; then export EPLB_NCCL_PATH="$found"; fi
fi
say "NCCL: ${EPLB_NCCL_PATH:-libnccl.so.2 on the path of the loader}"

# The machine as it is.
if command -v nvidia-smi >/dev/null; then
  step machine 20 nvidia-smi -q -d MEMORY,CLOCK,COMPUTE
else
  skip machine 0 "there is no nvidia-smi"
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
    skip "$tool" 0 "compute-sanitizer is not on this machine"
  fi
done

step thread_ranks 150 "$tests/migration_gpu_test" --gtest_filter='Device*:RouteTablesGpuTest.*:CountingGpuTest.*'
step process_ranks 150 "$tests/migration_gpu_test" --gtest_filter='MigrationProcessesTest.*'
if [[ -x "$tests/nccl_gpu_test" ]]; then
  # The tests give each rank NCCL's environment themselves: tests/gpu/rank_processes.cc.
  step nccl_ranks 240 "$tests/nccl_gpu_test"
  step nccl_migration 240 "$tests/migration_gpu_test" --gtest_filter='NcclMigrationProcessesTest.*'
else
  skip nccl_ranks 0 "the bundle was built without nccl.h"
  skip nccl_migration 0 "the bundle was built without nccl.h"
fi
step trainer 240 python3 "$bundle/suite/gpu/trainer_gpu_test.py" -v

step bench_kernels 90 "$tests/cuda_bench" --check
step bench_gemm_loop 60 "$tests/gemm_loop_bench" --check
grep -h '^{"\(bench\|target\)"' "$out"/bench_*.log >"$out/figures.jsonl"

say "${#skipped[@]} steps skipped${skipped[*]:+: ${skipped[*]}}"
if [[ "${EPLB_REQUIRE_ALL:-0}" == 1 ]] && ((${#skipped[@]} > 0)); then failed=1; fi
exit "$failed"
