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
: "${SOURCE_DATE_EPOCH:=$(git -C "$source" log -1 --format=%ct 2>/dev/null || true)}"
[ -n "$SOURCE_DATE_EPOCH" ] || { echo "packages: $source is no git checkout: set SOURCE_DATE_EPOCH to the time of the files in the packages" >&2; exit 1; }
export SOURCE_DATE_EPOCH

mkdir -p "$out"
cd "$out"
rm -f {eplb-doc,eplbd,eplbctl,libeplb0,libeplb-dev,python3-eplb}_*.deb eplb-[0-9]*.tar.gz eplb-[0-9]*.whl SHA256SUMS
cpack --config "$build/CPackConfig.cmake" -G DEB -B "$out" >"$out/cpack.log" 2>&1 || { cat "$out/cpack.log" >&2; exit 1; }
rm -rf "$out/_CPack_Packages"
# Debian's own: setuptools and wheel are packages of its Python.
/usr/bin/python3 -B "$source/deploy/packages/portable.py" tarball --build "$build" --out "$out" >/dev/null
/usr/bin/python3 -B "$source/deploy/packages/portable.py" wheel --build "$build" --out "$out" >/dev/null
sha256sum -- {eplb-doc,eplbd,eplbctl,libeplb0,libeplb-dev,python3-eplb}_*.deb eplb-[0-9]*.tar.gz eplb-[0-9]*.whl | tee SHA256SUMS
