#!/usr/bin/env bash
# Makes all packages of a finished build: the .debs, the tarball, the wheel and the sdist, with SHA256SUMS of them.
#
#   deploy/packages/build.sh [BUILD] [OUT]     BUILD [build/release] has eplbd, eplbctl, eplb-trainer and eplb; OUT [BUILD/packages]
#
# What it needs is installed by deploy/setup.sh --packages. No network.
set -euo pipefail

case "${1:-}" in
  -h|--help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
[ $# -le 2 ] || { echo "packages: $# arguments, expected at most BUILD and OUT" >&2; exit 2; }
source=$(cd "$(dirname "$0")/../.." && pwd)
build=$(realpath -m "${1:-$source/build/release}")
out=$(realpath -m "${2:-$build/packages}")
for file in bin/eplbd bin/eplbctl bin/eplb-trainer lib/libeplb.so; do
  [ -e "$build/$file" ] ||
    { echo "packages: $build/$file is not there; first: cmake --build $build --target eplbd eplbctl eplb-trainer eplb" >&2; exit 1; }
done
for program in dpkg-shlibdeps file patchelf; do
  command -v "$program" >/dev/null || { echo "packages: no $program here: deploy/setup.sh --packages installs it" >&2; exit 1; }
done
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$source" log -1 --format=%ct)}

mkdir -p "$out"
rm -f "$out"/*.deb "$out"/*.tar.gz "$out"/*.whl "$out"/SHA256SUMS
cpack --config "$build/CPackConfig.cmake" -G DEB -B "$out" >"$out/cpack.log" 2>&1 || { cat "$out/cpack.log" >&2; exit 1; }
rm -rf "$out/_CPack_Packages"
# Debian's own: setuptools and wheel are packages of its Python.
/usr/bin/python3 -B "$source/deploy/packages/portable.py" tarball --build "$build" --out "$out" >/dev/null
/usr/bin/python3 -B "$source/deploy/packages/portable.py" wheel --build "$build" --out "$out" >/dev/null
cd "$out"
sha256sum -- *.deb *.tar.gz *.whl | tee SHA256SUMS
