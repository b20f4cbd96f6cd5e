#!/usr/bin/env bash
# Makes the bundle that tests/gpu/run.sh runs: stripped binaries of the gpu preset, libeplb.so and the Python package, the shared
# libraries that a machine without our packages lacks, tests, benches and data. Below 56 MiB; prints its size. The libraries travel
# packed, as lib.tar.gz; run.sh unpacks them.
#
#   tests/gpu/bundle.sh FOLDER     JOBS=n: compilers at a time, default 2
#                                  ARCHITECTURES="80;90": of the GPUs that it is for, default 90 (H100, H200)
#
# The libraries then lie in FOLDER/lib and the binaries find them by an RPATH of $ORIGIN/../lib. Debian's static archives of gRPC are no way
# out: its CMake files name the shared ones. Binaries of Debian 12 run where glibc is 2.36 or newer and libstdc++ is of GCC 12 or newer.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [[ $# -ne 1 ]]; then
  echo "usage: tests/gpu/bundle.sh FOLDER" >&2
  exit 2
fi
mkdir -p "$1"
bundle="$(cd "$1" && pwd)"
# A machine that takes 64 MiB takes the tracked files, 7 MiB, along with it.
readonly kLargestMiB=56
build=build/bundle
binaries=(eplbd eplbctl eplb-trainer)
tests=(cuda_gpu_test migration_gpu_test cuda_bench gemm_loop_bench split_loop_bench)

# An RPATH of the old kind also holds for what the libraries themselves need.
cmake --preset gpu -B "$build" -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON "-DCMAKE_INSTALL_RPATH=\$ORIGIN/../lib" \
  -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags -DCMAKE_SHARED_LINKER_FLAGS=-Wl,--disable-new-dtags \
  -DCMAKE_CUDA_ARCHITECTURES="${ARCHITECTURES:-90}" >/dev/null
ninja -C "$build" -j"${JOBS:-2}" "${binaries[@]}" eplb "${tests[@]}"

rm -rf "${bundle:?}"/{bin,tests,lib,lib.tar.gz,python,data,suite,driver}
mkdir -p "$bundle"/{bin,tests,lib,python,data,suite/gpu,suite/integration,suite/client/python,suite/frameworks}
for name in "${binaries[@]}"; do strip -o "$bundle/bin/$name" "$build/bin/$name"; done
for name in "${tests[@]}"; do strip -o "$bundle/tests/$name" "$build/tests/$name"; done
strip --strip-unneeded -o "$bundle/lib/libeplb.so.0" "$build/lib/libeplb.so.0"

# Libraries of every Linux machine with a C++ runtime are not packed.
theirs='^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|stdc\+\+|gcc_s)\.so.*|linux-vdso.*)$'
for file in "$bundle"/bin/* "$bundle"/tests/* "$bundle"/lib/libeplb.so.0; do LD_LIBRARY_PATH='' ldd "$file"; done |
  awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
  while read -r library; do
    name="$(basename "$library")"
    if [[ ! "$name" =~ $theirs && ! -e "$bundle/lib/$name" ]]; then strip -o "$bundle/lib/$name" "$library"; fi
  done

# The oldest driver, by the major version of CUDA.
cuda="$(sed -n 's/^set(CMAKE_CUDA_COMPILER_VERSION "\([0-9]*\).*/\1/p' "$build"/CMakeFiles/*/CMakeCUDACompiler.cmake 2>/dev/null | tail -n 1 || true)"
case "$cuda" in
  12) echo 525 ;;
  *) echo 580 ;;
esac >"$bundle/driver"
cp -r client/python/eplb "$bundle/python/"
cp tests/data/moe64_aux.jsonl "$bundle/data/"
cp tests/gpu/{run.sh,find_nccl.py,trainer_gpu_test.py,torch_step.py,attach_step.py} "$bundle/suite/gpu/"
cp tests/integration/job.py "$bundle/suite/integration/"
cp tests/client/python/{ranks,torch_trainer}.py "$bundle/suite/client/python/"
cp tests/frameworks/compare.py "$bundle/suite/frameworks/"
tar -C "$bundle" -czf "$bundle/lib.tar.gz" lib
rm -r "${bundle:?}/lib"
find "$bundle/python" -name __pycache__ -prune -exec rm -r {} +

size="$(du -sm --apparent-size "$bundle" | cut -f1)"
echo "$bundle: $size MiB"
if ((size >= kLargestMiB)); then
  echo "tests/gpu/bundle.sh: the bundle has $size MiB, it must stay below $kLargestMiB MiB; fewer ARCHITECTURES make it smaller" >&2
  exit 1
fi
