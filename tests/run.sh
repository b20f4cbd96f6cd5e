#!/usr/bin/env bash
# Everything a change must pass: installs what is missing, builds, runs all tests, lints what changed, and reports what was left out.
set -euo pipefail
cd "$(dirname "$0")/.."

deploy/setup.sh
tests/environment
cmake --workflow --preset dev
tests/tidy/changed
build/venv/bin/python tests/summary.py build/dev
