#!/usr/bin/env bash
# Everything a change must pass: installs what is missing, builds, runs all tests, lints what changed, and reports what was left out.
set -euo pipefail
cd "$(dirname "$0")/.."

deploy/setup.sh
tests/environment
rm -f build/dev/tests/results.xml
failed=0
cmake --workflow --preset dev || failed=1
[ -e build/dev/tests/results.xml ] || exit 1  # nothing ran
tests/tidy/changed || failed=1
build/venv/bin/python tests/summary.py build/dev || failed=1
exit $failed
