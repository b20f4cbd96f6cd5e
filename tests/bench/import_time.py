"""The time of `import eplb`, which every command of the wheel pays: exit 1 above --most seconds, median of 9 interpreters."""

import argparse
import statistics
import subprocess
import sys

CODE = "import time; began = time.perf_counter(); import eplb; print(time.perf_counter() - began)"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=float, default=0.2)
    options = parser.parse_args()
    times = [float(subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=True).stdout) for _ in range(9)]
    median = statistics.median(times)
    print(f"import eplb: {median:.3f} s, expected at most {options.most} s")
    return 0 if median <= options.most else 1


if __name__ == "__main__":
    sys.exit(main())
