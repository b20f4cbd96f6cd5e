#!/usr/bin/env bash
# Everything a change must pass: installs what is missing, builds, runs the tests, lints what changed, and reports what was left out.
#
#   tests/run.sh          the push gate: unit tests, and one integration test for each class of fault
#   tests/run.sh --full   the full gate: every test that needs no GPU
set -euo pipefail
cd "$(dirname "$0")/.."

gate=dev
case "${1:-}" in
  "") ;;
  --full) gate=full ;;
  *) echo "usage: tests/run.sh [--full]" >&2; exit 2 ;;
esac

deploy/setup.sh
tests/environment --header
set -m  # a process group for it, so that pip ends with it
tests/environment "$@" &  # its downloads take as long as a third of the build
environment=$!
set +m
trap 'kill -- -$environment 2>/dev/null || true' EXIT
rm -rf build/dev/tests/results.xml build/dev/tests/gtest
failed=0
# The second configuration registers the tests that the environment has packages for.
installed() { wait $environment || { echo "tests/run.sh: tests/environment failed, as reported above" >&2; return 1; }; }
{ cmake --preset dev && cmake --build --preset $gate && installed && cmake --preset dev && ctest --preset $gate; } || failed=1
[ -e build/dev/tests/results.xml ] || exit 1  # nothing ran
tests/tidy/changed || failed=1
build/venv/bin/python tests/summary.py build/dev || failed=1
exit $failed
