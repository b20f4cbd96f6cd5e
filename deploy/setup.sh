#!/usr/bin/env bash
# Installs what building and testing needs on Debian 12: distribution packages only. Idempotent; needs root or sudo only
# when something is missing. nvcc and a GPU are never needed.
set -euo pipefail

packages=(
  cmake g++ git ninja-build pkg-config                                          # build
  libabsl-dev libeigen3-dev libssl-dev                                          # values, digests
  libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev protobuf-compiler        # service
  libc-ares-dev libre2-dev zlib1g-dev                                           # what gRPC's CMake files ask for
  libsqlite3-dev libspdlog-dev libtomlplusplus-dev libcpp-httplib-dev           # daemon
  prometheus-cpp-dev libcivetweb-dev libcurl4-openssl-dev                       # metrics; the last two: its CMake files
  libsystemd-dev                                                                # telling systemd
  libcli11-dev nlohmann-json3-dev libyaml-cpp-dev libzip-dev                    # command line, files
  libgtest-dev libgmock-dev libbenchmark-dev coinor-cbc openssl python3-numpy   # tests
  python3-torch python3-matplotlib                                              # PyTorch example
  python3-pip python3-setuptools python3-wheel                                  # tests of the Python package
  clang clang-format clang-tidy libclang-rt-14-dev python3             # lint, clang preset, checks
)

say() { printf 'setup: %s\n' "$*"; }

if [ ! -r /etc/os-release ] || ! grep -q '^ID=debian$' /etc/os-release || ! grep -q '^VERSION_ID="12"$' /etc/os-release; then
  say "this script knows Debian 12 only. Install the equivalents of these packages, then run cmake --workflow --preset dev:" >&2
  printf '  %s\n' "${packages[@]}" >&2
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  say "all ${#packages[@]} packages are there"
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
say "done"
