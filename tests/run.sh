#!/usr/bin/env bash
# Everything a change must pass: installs what is missing, builds, runs all tests, lints what changed.
set -euo pipefail
cd "$(dirname "$0")/.."

deploy/setup.sh
cmake --workflow --preset dev
tests/tidy/changed
