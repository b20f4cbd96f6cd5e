#!/usr/bin/env bash
# Installs what this repository needs: packages of Debian 12, Debian 13 and Ubuntu 24.04, and from npm what the page's tests need.
# Idempotent; needs root or sudo only when something is missing. nvcc and a GPU are never needed.
#
#   deploy/setup.sh [--build | --tests | --packages | --all] [--list]
#
#   --build     what building and the demonstration need
#   --tests     what building and the tests need, Chromium among it, and from npm playwright-core and axe-core in build/npm;
#               tests/environment adds the Python packages
#   --packages  what building needs, and what makes the packages (deploy/packages/build.sh)
#   --all       all of the above, and what linting and the clang presets need (the default)
#   --list      install nothing: print the packages' names on this system, one a line
set -euo pipefail

build=(
  cmake g++ git ninja-build pkg-config ca-certificates                          # build; the last: the download of uPlot
  libabsl-dev libeigen3-dev libssl-dev                                          # values, digests
  libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev protobuf-compiler        # service
  libc-ares-dev libre2-dev zlib1g-dev                                           # required by gRPC's CMake files
  libsqlite3-dev libspdlog-dev libtomlplusplus-dev                              # daemon
  prometheus-cpp-dev libcivetweb-dev libcurl4-openssl-dev                       # metrics; the last two: its CMake files
  libsystemd-dev                                                                # telling systemd
  libcli11-dev nlohmann-json3-dev libyaml-cpp-dev libzip-dev                    # command line, files
  python3                                                                       # the demonstration
)
tests=(
  libgtest-dev libgmock-dev libbenchmark-dev libcpp-httplib-dev openssl         # libraries and programs of the tests
  python3-venv                                                                  # tests/environment makes the rest
  coinor-cbc                                                                    # exhaustive solver
  prometheus                                                                    # tests of alerts and dashboard
  etcd-server faketime                                                          # tests of several daemons with one store
  shellcheck                                                                    # shell scripts
  chromium                                                                      # the web page
)
# Another Node.js than Debian's is as good, and the two exclude each other.
command -v npm >/dev/null || tests+=(nodejs npm)
packages=(
  binutils dpkg-dev file gzip patchelf                                          # .deb, tarball
  python3-setuptools python3-wheel python3-venv                                 # wheel, and where it is installed
  debootstrap iproute2 systemd systemd-container                                # their test
)
lint=(
  clang clang-tidy libclang-rt-14-dev                                           # lint, clang preset
)
say() { printf 'setup: %s\n' "$*"; }

what=--all list=no
for argument in "$@"; do
  case "$argument" in
    --build|--tests|--packages|--all) what=$argument ;;
    --list) list=yes ;;
    -h|--help) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) say "unknown argument $argument, expected --build, --tests, --packages, --all or --list" >&2; exit 2 ;;
  esac
done
case "$what" in
  --build) wanted=("${build[@]}") ;;
  --tests) wanted=("${build[@]}" "${tests[@]}") ;;
  --packages) wanted=("${build[@]}" "${packages[@]}") ;;
  --all) wanted=("${build[@]}" "${tests[@]}" "${packages[@]}" "${lint[@]}") ;;
esac

os_release=${EPLB_OS_RELEASE:-/etc/os-release}
value_of() { sed -n "s/^$1=//p" "$os_release" 2>/dev/null | tr -d '"' || true; }
system="$(value_of ID) $(value_of VERSION_ID)"

# Names that are not those of Debian 12; an empty one: the system has no such package.
declare -A names=()
case "$system" in
  "debian 12") ;;
  "debian 13")
    names=([libclang-rt-14-dev]=libclang-rt-19-dev) ;;
  "ubuntu 24.04")
    names=([libclang-rt-14-dev]=libclang-rt-18-dev [chromium]=chromium-browser) ;;
  "ubuntu 22.04")
    {
      say "Ubuntu 22.04 cannot build this: it has CMake 3.22, gRPC 1.30 and SQLite 3.37, expected 3.25, 1.51 and 3.40."
      say "The wheel and the tarball, built on another system, run where docs/installing.md says."
    } >&2
    exit 1 ;;
  *)
    names=([libclang-rt-14-dev]="") ;;
esac
named=()
for package in "${wanted[@]}"; do
  name=${names[$package]-$package}
  [ -z "$name" ] || [[ " ${named[*]} " == *" $name "* ]] || named+=("$name")
done
if [ "$list" = yes ]; then
  printf '%s\n' "${named[@]}"
  exit 0
fi
case "$system" in
  "debian 12"|"debian 13"|"ubuntu 24.04") ;;
  *)
    {
      say "this script knows Debian 12 and 13 and Ubuntu 24.04. Install the equivalents of these packages:"
      printf '  %s\n' "${named[@]}"
      say "then build:"
      say "  cmake --preset release -DEPLB_TESTS=OFF"
      say "  cmake --build --preset release --target eplbd eplbctl eplb-trainer"
      say "and run the demonstration: deploy/demo.sh --skip-setup"
    } >&2
    exit 1 ;;
esac

missing=()
for package in "${named[@]}"; do
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
install_node_modules() {
  [ "$what" = --tests ] || [ "$what" = --all ] || return 0
  local root; root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  mkdir -p "$root/build/npm"
  cp "$root/tests/server/http/page/package.json" "$root/build/npm/package.json"
  if npm install --prefix "$root/build/npm" --silent --no-audit --no-fund; then
    say "playwright-core and axe-core are in build/npm"
  else
    say "npm did not bring playwright-core and axe-core: the tests of the web page are skipped" >&2
  fi
}
if [ ${#missing[@]} -eq 0 ]; then
  say "all ${#named[@]} packages are there"
  install_node_modules
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
install_node_modules
say "done"
