#!/usr/bin/env bash
# Makes the bundle that tests/gpu/run.sh runs: stripped binaries of the gpu preset, the shared libraries that a machine without our
# packages lacks, tests, benches and data. Under 64 MiB; prints its size.
#
#   tests/gpu/bundle.sh FOLDER     JOBS=n: compilers at a time, default 2
#
# The libraries lie in FOLDER/lib and the binaries find them by an RPATH of $ORIGIN/../lib. Debian's static archives of gRPC are no way
# out: its CMake files name the shared ones. Binaries of Debian 12 run where glibc is 2.36 or newer and libstdc++ is of GCC 12 or newer.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [[ $# -ne 1 ]]; then
  echo "usage: tests/gpu/bundle.sh FOLDER" >&2
  exit 2
fi
mkdir -p "$1"
bundle="$(cd "$1" && pwd)"
readonly kLargestMiB=64
build=build/bundle
binaries=(eplbd eplbctl eplb-trainer)
tests=(cuda_gpu_test migration_gpu_test cuda_bench gemm_loop_bench)

# An RPATH of the old kind also holds for what the libraries themselves need.
cmake --preset gpu -B "$build" -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON '-DCMAKE_INSTALL_RPATH=$ORIGIN/../lib' \
  -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags >/dev/null
if ninja -C "$build" -t query nccl_gpu_test >/dev/null 2>&1; then tests+=(nccl_gpu_test); fi
ninja -C "$build" -j"${JOBS:-2}" "${binaries[@]}" "${tests[@]}"

rm -rf "${bundle:?}"/{bin,tests,lib,data,suite}
mkdir -p "$bundle"/{bin,tests,lib,data,suite/gpu,suite/integration}
for name in "${binaries[@]}"; do strip -o "$bundle/bin/$name" "$build/bin/$name"; done
for name in "${tests[@]}"; do strip -o "$bundle/tests/$name" "$build/tests/$name"; done

# What every Linux machine with a C++ runtime has stays there.
theirs='^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|stdc\+\+|gcc_s)\.so.*|linux-vdso.*)$'
for file in "$bundle"/bin/* "$bundle"/tests/*; do LD_LIBRARY_PATH='' ldd "$file"; done |
  awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
  while read -r library; do
    name="$(basename "$library")"
    if [[ ! "$name" =~ $theirs ]]; then strip -o "$bundle/lib/$name" "$library"; fi
  done

cp tests/data/moe64_aux.jsonl "$bundle/data/"
cp tests/gpu/run.sh tests/gpu/find_nccl.py tests/gpu/trainer_gpu_test.py "$bundle/suite/gpu/"
cp tests/integration/job.py "$bundle/suite/integration/"

size="$(du -sm "$bundle" | cut -f1)"
echo "$bundle: $size MiB"
if ((size >= kLargestMiB)); then
  echo "tests/gpu/bundle.sh: more than $kLargestMiB MiB" >&2
  exit 1
fi
