#!/usr/bin/env bash
# Runs what needs a GPU, from a bundle (tests/gpu/bundle.sh), on a machine with nothing of ours.
#
#   tests/gpu/run.sh BUNDLE [STEP..]    STEP: a name of --list, or call1, call2 or call3, the steps of a call; default: all
#   tests/gpu/run.sh --list             call, name and longest time in seconds of each step
#
# A run ends within EPLB_BUDGET_SECONDS, default 540. A step whose longest time is more than what is left is skipped. So the whole
# suite is three runs, of call1, call2 and call3, each below nine minutes.
#
# Results are three files in $OUT, default ./gpu-results, written again after each step: summary.txt has a line a step, PASS, FAIL or
# SKIP with its seconds and, where it is no pass, why; figures.jsonl the figures and verdicts of benches and attach; logs.tgz the
# output of each step. At most 12,000 characters are printed, the verdicts last.
#
# Exit code 1 when a step failed, a figure missed its target (tests/gpu/RESULTS.md), or, with EPLB_REQUIRE_ALL=1, a step was skipped;
# 2 for wrong arguments, or a bundle whose libraries cannot be unpacked beside it. Needs: the driver that the bundle names, glibc 2.36
# and the libstdc++ of GCC 12 or newer, Python 3.11 for trainer, torch and attach, and a libnccl.so.2: EPLB_NCCL_PATH, else the one of
# Python's packages or conda (find_nccl.py), else the loader's.
set -uo pipefail

# Call, name, longest time.
readonly kSteps='call1 machine 20
call1 kernels 100
call1 memcheck 100
call1 process_ranks 100
call1 thread_ranks 80
call1 bench_kernels 90
call2 nccl_migration 80
call2 trainer 100
call2 torch 100
call2 attach 150
call3 racecheck 150
call3 initcheck 90
call3 synccheck 90
call3 bench_gemm_loop 60
call3 bench_split_loop 30
call3 profile 90'
readonly kSkipped=77
# Limits of the output: a line, the ends of failed steps' logs, and everything after the steps.
readonly kLineCharacters=180 kLogCharacters=1000 kClosingCharacters=8000
readonly kLogBytes=8388608  # end of each log that is kept

usage() {
  echo "tests/gpu/run.sh: $1" >&2
  echo "usage: tests/gpu/run.sh BUNDLE [STEP..] | --list (BUNDLE: a folder that tests/gpu/bundle.sh made)" >&2
  exit 2
}

if [[ "${1:-}" == --list ]]; then
  echo "$kSteps"
  exit 0
fi
[[ $# -ge 1 && -x "$1/bin/eplb-trainer" ]] || usage "there is no bundle in \"${1:-}\""
bundle="$(cd "$1" && pwd)"
shift
budget="${EPLB_BUDGET_SECONDS:-540}"
[[ "$budget" =~ ^[1-9][0-9]{0,5}$ ]] || usage "EPLB_BUDGET_SECONDS is \"$budget\", expected seconds"
for wanted in "$@"; do
  awk -v wanted="$wanted" '$1 == wanted || $2 == wanted {found = 1} END {exit !found}' <<<"$kSteps" ||
    usage "there is no step \"$wanted\", --list names them"
done

out="${OUT:-$PWD/gpu-results}"
work="$(mktemp -d -t eplb-gpu.XXXXXX)"
trap 'rm -rf "$work"' EXIT
logs="$work/logs"
mkdir -p "$out" "$logs" "$work/tmp"
tests="$bundle/tests"
# Anew each time: an older bundle's libraries, or half of them, would run without a word.
unpack_libraries() {
  rm -rf "${bundle:?}"/{lib,lib.new} && mkdir "$bundle/lib.new" &&
    tar -C "$bundle/lib.new" --no-same-owner -xzf "$bundle/lib.tar.gz" && mv "$bundle/lib.new/lib" "$bundle/lib" &&
    rmdir "$bundle/lib.new"
}
if [[ -e "$bundle/lib.tar.gz" ]] && ! unpack_libraries; then usage "the libraries of \"$bundle\" cannot be unpacked"; fi
failed=0
failures=()
skipped=()
export EPLB_REQUIRE_GPU=1 EPLB_BIN="$bundle/bin" EPLB_DATA="$bundle/data" EPLB_LIBRARY="$bundle/lib/libeplb.so.0"
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 TEST_TMPDIR="$work/tmp" TMPDIR="$work/tmp"

# Writes the three results as they are now.
keep() {
  grep -hs '^{"\(bench\|target\)"' "$logs"/{bench_*,attach}.log >"$work/figures.jsonl"
  cp "$work/figures.jsonl" "$work/summary.txt" "$out/"
  tar -C "$work" -czf "$work/logs.tgz" logs && cp "$work/logs.tgz" "$out/"
}

say() {
  echo "${1:0:kLineCharacters}"
  echo "$1" >>"$work/summary.txt"
}

# fail NAME SECONDS WHY
fail() {
  say "FAIL $1 $2 s: $3"
  failed=1
  failures+=("$1")
}

# skip NAME SECONDS WHY
skip() {
  say "SKIP $1 $2 s: $3"
  skipped+=("$1")
}

# How many verdicts of a step's log are this WORD: verdicts NAME WORD
verdicts() { grep -c "\"verdict\": \"$2\"" "$logs/$1.log"; }

# judge NAME SECONDS CODE: what a step has shown that ended with CODE.
judge() {
  local name="$1" seconds="$2" code="$3" warnings missed
  warnings="$(verdicts "$name" WARNING)"
  missed="$(verdicts "$name" MISSED)"
  if ((code == 0)); then
    say "PASS $name $seconds s$( ((warnings > 0)) && echo ": $warnings targets out of this device's reach, see figures.jsonl")"
  elif ((code == kSkipped)); then
    skip "$name" "$seconds" "$(tail -n 1 "$logs/$name.log")"
  elif grep -q ERR_NVGPUCTRPERM "$logs/$name.log"; then
    skip "$name" "$seconds" "the driver gives its performance counters to administrators alone"
  elif ((code == 124 || code == 137)); then
    fail "$name" "$seconds" "stopped after its time, see $name.log"
  elif ((missed > 0)); then
    fail "$name" "$seconds" "targets missed: $missed, see figures.jsonl"
  else
    fail "$name" "$seconds" "exit code $code, see $name.log"
  fi
}

# step NAME SECONDS COMMAND..: SECONDS at most.
step() {
  local name="$1" limit="$2" begin=$SECONDS left=$((budget - SECONDS)) code
  shift 2
  if ((left < limit)); then
    skip "$name" 0 "it may take $limit s, of $budget s there are $left left"
    return
  fi
  timeout -k 5 "$limit" "$@" >"$work/log" 2>&1
  code=$?
  tail -c "$kLogBytes" "$work/log" >"$logs/$name.log"
  judge "$name" $((SECONDS - begin)) "$code"
  rm -rf "${work:?}/tmp"
  mkdir "$work/tmp"
}

# at_least VERSION LEAST
at_least() { [[ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" == "$2" ]]; }

# Prints what this machine lacks, a line each.
lacks() {
  local libc driver needed
  libc="$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d' ' -f2)"
  at_least "$libc" 2.36 || echo "glibc 2.36 or newer is needed, here is ${libc:-another C library}"
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 ||
    echo "Python 3.11 or newer is needed for steps trainer, torch and attach, here is $(python3 --version 2>/dev/null || echo none)"
  driver="$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)"
  needed="$(cat "$bundle/driver" 2>/dev/null || echo 580)"
  if [[ "$driver" =~ ^[0-9.]+$ ]] && ! at_least "$driver" "$needed"; then
    echo "driver $needed or newer is needed for this bundle's CUDA, here is $driver"
  fi
}

# first_of COMMAND FILE..: the command on PATH, else the last file that there is.
first_of() {
  command -v "$1" && return
  local file found=""
  for file in "${@:2}"; do
    if [[ -x "$file" ]]; then found="$file"; fi
  done
  echo "$found"
}

# checked NAME SECONDS: the kernels' tests under a tool of compute-sanitizer. The test of order copies 512 MB, which takes minutes
# under a checker and shows nothing more there.
checked() {
  local sanitizer
  sanitizer="$(first_of compute-sanitizer /usr/local/cuda*/bin/compute-sanitizer)"
  if [[ -z "$sanitizer" ]]; then
    skip "$1" 0 "compute-sanitizer is not on this machine"
    return
  fi
  EPLB_UNDER_CHECKER=1 step "$1" "$2" "$sanitizer" --tool "$1" --report-api-errors no --error-exitcode 1 \
    "$tests/cuda_gpu_test" --gtest_filter=-StreamRowQueueTest.RunsBetweenWhatItFollowsAndWhatFollowsIt
}

# The copy of large rows with and without checksums: cuda_bench launches each form 210 times, one form after the other.
profile() {
  local ncu
  ncu="$(first_of ncu /usr/local/cuda*/bin/ncu /opt/nvidia/nsight-compute/*/ncu)"
  if [[ -z "$ncu" ]]; then
    skip profile 0 "ncu is not on this machine"
    return
  fi
  step profile "$1" "$ncu" --clock-control none --kernel-name regex:CopyKernel --launch-skip 415 --launch-count 10 --set full \
    "$tests/cuda_bench"
}

# run_step NAME SECONDS
run_step() {
  local gpu="$bundle/suite/gpu"
  case "$1" in
    machine)
      if command -v nvidia-smi >/dev/null; then
        step "$@" nvidia-smi -q -d MEMORY,CLOCK,COMPUTE
      else
        skip machine 0 "there is no nvidia-smi"
      fi
      ;;
    kernels) step "$@" "$tests/cuda_gpu_test" ;;
    memcheck | racecheck | initcheck | synccheck) checked "$@" ;;
    process_ranks) step "$@" "$tests/migration_gpu_test" --gtest_filter='MigrationProcessesTest.*' ;;
    thread_ranks) step "$@" "$tests/migration_gpu_test" --gtest_filter='Device*:RouteTablesGpuTest.*:CountingGpuTest.*:SplitLoopGpuTest.*' ;;
    bench_kernels) step "$@" "$tests/cuda_bench" --check ;;
    nccl_migration) # the tests give each rank NCCL's environment themselves
      if [[ "$("$tests/migration_gpu_test" --gtest_list_tests)" == *Nccl* ]]; then
        step "$@" "$tests/migration_gpu_test" --gtest_filter='NcclMigrationProcessesTest.*'
      else
        skip "$1" 0 "the bundle was built without nccl.h"
      fi
      ;;
    trainer) step "$@" python3 "$gpu/trainer_gpu_test.py" -v ;;
    torch | attach) step "$@" env PYTHONPATH="$bundle/python${PYTHONPATH:+:$PYTHONPATH}" python3 "$gpu/$1_step.py" ;;
    bench_gemm_loop) step "$@" "$tests/gemm_loop_bench" --check ;;
    bench_split_loop) step "$@" "$tests/split_loop_bench" ;;
    profile) profile "$2" ;;
  esac
  keep
}

# The end of what is printed: ends of failed steps' logs, the benches' verdicts, a line a step.
closing() {
  local name
  for name in ${failures[@]+"${failures[@]}"}; do
    if [[ -s "$logs/$name.log" ]]; then
      echo "--- the end of $name.log"
      tail -n 12 "$logs/$name.log" | cut -c "1-$kLineCharacters" | tail -c "$kLogCharacters"
    fi
  done
  echo "--- verdicts"
  grep -h '^{"target"' "$work/figures.jsonl" | cut -c "1-$kLineCharacters"
  cut -c "1-$kLineCharacters" "$work/summary.txt"
}

# A fresh summary. Without a program of ours that runs there is nothing to find out.
: >"$work/summary.txt"
while read -r what; do fail needs 0 "$what"; done < <(lacks)
if timeout -k 5 10 "$bundle/bin/eplbctl" --version >"$logs/needs.log" 2>&1; then
  ((failed)) || say "PASS needs 0 s"
else
  fail needs 0 "eplbctl does not run here: $(tail -n 1 "$logs/needs.log")"
  keep
  exit 1
fi
if [[ -z "${EPLB_NCCL_PATH:-}" ]]; then
  found="$(python3 "$bundle/suite/gpu/find_nccl.py" 2>/dev/null)"
  if [[ -n "$found" ]]; then export EPLB_NCCL_PATH="$found"; fi
fi
say "NCCL: ${EPLB_NCCL_PATH:-libnccl.so.2 on the path of the loader}"

while read -r call name limit; do
  if [[ $# -eq 0 || " $* " == *" $call "* || " $* " == *" $name "* ]]; then run_step "$name" "$limit" </dev/null; fi
done <<<"$kSteps"

say "${#skipped[@]} steps skipped${skipped[*]:+: ${skipped[*]}}"
if [[ "${EPLB_REQUIRE_ALL:-0}" == 1 ]] && ((${#skipped[@]} > 0)); then failed=1; fi
keep
closing | tail -c "$kClosingCharacters"
exit "$failed"
