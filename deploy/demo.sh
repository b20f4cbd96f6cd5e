#!/usr/bin/env bash
# The demonstration (`python3 -m eplb.demo`) from a fresh clone: installs what is missing, builds, and runs it.
#
#   deploy/demo.sh [--skip-setup] [--bin DIR] [FLAG ..]
#
#   --skip-setup  install nothing
#   --bin DIR     install and build nothing: run the programs in DIR
#   FLAG          of `python3 -m eplb.demo`: --steps N, --minutes M, --step-ms T; --dir DIR is build/demo by default
set -euo pipefail
cd "$(dirname "$0")/.."

setup=yes bin='' flags=()
while [ $# -gt 0 ]; do
  case "$1" in
    --bin) [ $# -ge 2 ] || { echo "demo: --bin needs a value" >&2; exit 2; }
           bin=$2; shift 2 ;;
    --skip-setup) setup=no; shift ;;
    -h|--help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) flags+=("$1"); shift ;;
  esac
done
demo=(env PYTHONPATH=client/python PYTHONDONTWRITEBYTECODE=1 python3 -m eplb.demo --dir build/demo "${flags[@]}")
# Wrong flags are reported before the build.
! command -v python3 >/dev/null || "${demo[@]}" --sample >/dev/null

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

exec "${demo[@]}" --bin "$bin"
