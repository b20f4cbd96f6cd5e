#!/usr/bin/env bash
# Installs what this repository needs on Debian 12: distribution packages only. Idempotent; needs root or sudo only when
# something is missing. nvcc and a GPU are never needed.
#
#   deploy/setup.sh [--build | --tests | --all | --browser]
#
#   --build  what building and the demonstration need
#   --tests  that, and what the tests and the PyTorch example need
#   --all    that, and what linting and the clang presets need (the default)
#   --browser  all that, and what the tests of the web page need: Chromium, and from npm playwright-core and axe-core in build/npm
set -euo pipefail

build=(
  cmake g++ git ninja-build pkg-config                                          # build
  libabsl-dev libeigen3-dev libssl-dev                                          # values, digests
  libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev protobuf-compiler        # service
  libc-ares-dev libre2-dev zlib1g-dev                                           # what gRPC's CMake files ask for
  libsqlite3-dev libspdlog-dev libtomlplusplus-dev libcpp-httplib-dev           # daemon
  prometheus-cpp-dev libcivetweb-dev libcurl4-openssl-dev                       # metrics; the last two: its CMake files
  libsystemd-dev                                                                # telling systemd
  libcli11-dev nlohmann-json3-dev libyaml-cpp-dev libzip-dev                    # command line, files
  libgtest-dev libgmock-dev libbenchmark-dev openssl python3                    # what our CMake files ask for
)
tests=(
  coinor-cbc python3-numpy                                                      # exhaustive solver, arrays
  python3-torch python3-matplotlib                                              # PyTorch example
  python3-pip python3-setuptools python3-wheel                                  # tests of the Python package
  prometheus                                                                    # tests of alerts and dashboard
  etcd-server                                                                   # tests of several daemons with one store
  python3-jsonschema                                                            # the answers of the HTTP API
)
lint=(
  clang clang-format clang-tidy libclang-rt-14-dev                              # lint, clang preset
)

browser=(
  chromium                                                                      # tests of the web page
)
# Another Node.js than Debian's is as good, and the two exclude each other.
command -v npm >/dev/null || browser+=(nodejs npm)

say() { printf 'setup: %s\n' "$*"; }

[ $# -le 1 ] || { say "$# arguments, expected at most one of --build, --tests, --all" >&2; exit 2; }
case "${1:---all}" in
  --build) packages=("${build[@]}") ;;
  --tests) packages=("${build[@]}" "${tests[@]}") ;;
  --all) packages=("${build[@]}" "${tests[@]}" "${lint[@]}") ;;
  --browser) packages=("${build[@]}" "${tests[@]}" "${lint[@]}" "${browser[@]}") ;;
  -h|--help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) say "unknown argument $1, expected --build, --tests, --all or --browser" >&2; exit 2 ;;
esac

os_release=${EPLB_OS_RELEASE:-/etc/os-release}
if ! grep -qs '^ID=debian$' "$os_release" || ! grep -qs '^VERSION_ID="12"$' "$os_release"; then
  {
    say "this script knows Debian 12 only. Install the equivalents of these packages:"
    printf '  %s\n' "${packages[@]}"
    say "then build (EPLB_WERROR=OFF: another compiler may warn of other things):"
    say "  cmake --preset release -DEPLB_WERROR=OFF"
    say "  cmake --build --preset release --target eplbd eplbctl eplb-trainer"
    say "and run the demonstration: deploy/demo.sh --skip-setup"
  } >&2
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
install_node_modules() {
  [ "${1:-}" = --browser ] || return 0
  local root; root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  mkdir -p "$root/build/npm"
  cp "$root/tests/server/http/page/package.json" "$root/build/npm/package.json"
  npm install --prefix "$root/build/npm" --silent --no-audit --no-fund
  say "playwright-core and axe-core are in build/npm"
}
if [ ${#missing[@]} -eq 0 ]; then
  say "all ${#packages[@]} packages are there"
  install_node_modules "$@"
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    say "these packages are missing, and this is neither root nor is there sudo: ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
say "installing ${#missing[@]} packages: ${missing[*]}"
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
# The tests run these themselves; Debian's packages start them as services.
for service in prometheus etcd; do
  package=${service/etcd/etcd-server}
  if [[ " ${missing[*]} " == *" $package "* ]] && [ -d /run/systemd/system ]; then
    "${as_root[@]}" systemctl disable --now --quiet "$service"
  fi
done
install_node_modules "$@"
say "done"
