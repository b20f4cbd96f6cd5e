#!/usr/bin/env bash
# The wheel from a fresh clone: installs what is missing, builds library and programs, and writes dist/eplb-*.whl.
#
#   deploy/wheel.sh [--skip-setup] [BUILD]
#
#   --skip-setup  install nothing
#   BUILD         a finished build folder to take them from; build nothing
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build

setup=yes build=''
for argument in "$@"; do
  case "$argument" in
    -h|--help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --skip-setup) setup=no ;;
    -*) echo "wheel: unknown option $argument (try --help)" >&2; exit 2 ;;
    *) build=$argument ;;
  esac
done
has=
if [ -z "$build" ]; then
  [ "$setup" = no ] || deploy/setup.sh --packages
  build=build/release
  cmake --preset release -DEPLB_TESTS=OFF | tee build/wheel.log
  has=$(sed -n 's/^-- \(\(CUDA\|NCCL\): o[nf]*\).*/\1/p' build/wheel.log | paste -sd ' ')
  cmake --build --preset release --target eplbd eplbctl eplb-trainer eplb
elif [ ! -e "$build/CMakeCache.txt" ]; then
  echo "wheel: $build is no build folder" >&2; exit 2
fi
rm -f dist/eplb-*.whl
# Debian's own: setuptools and wheel are packages of its Python.
/usr/bin/python3 -B deploy/packages/portable.py wheel --build "$build" --out dist
[ -z "$has" ] || echo "wheel: built with $has (docs/installing.md says what each needs)"
