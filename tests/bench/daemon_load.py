#!/usr/bin/env python3
"""Does the daemon hold under load, and does training feel it? Load generator and daemon share this machine.

  daemon_load.py [--bin DIR] [--data DIR] [--sessions N]

Ratios and limits are checked (exit 1), absolute figures are printed only:
  ingest     reports a second / those of a gRPC server that throws the same bytes away   >= 0.70
  sessions   N ranks with a connection each: none lost, memory of the daemon per session < 100 KB
  fanout     a 58 x 288 placement to N ranks and every PREPARED back, p99 of the rounds     < 1 s
  frozen     the same beside 208 ranks that never read                                   < 1 s, none lost
  steps      median step of a job with and without a daemon, in turn, beside the spread of equal runs (A/A)
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "integration"))

MIN_INGEST_RATIO = 0.70
MAX_SESSION_BYTES = 100e3
MAX_FAN_OUT_SECONDS = 1.0


def bench(directory, *arguments):
    result = subprocess.run([directory / "eplb-bench", *map(str, arguments)], capture_output=True, text=True,
                            timeout=600)
    if result.returncode != 0:
        raise SystemExit(f"eplb-bench {arguments[0]}: {result.stderr.strip()}")
    return json.loads(result.stdout)


class Checks:
    def __init__(self):
        self.failed = []

    def note(self, what, value, good, limit):
        print(f"  {what:<44} {value:>12}  {'ok' if good else 'NOT'} {limit}")
        if not good:
            self.failed.append(what)


def check_ingest(directory, checks):
    figures = bench(directory, "ingest", "--layers", 61, "--rounds", 5)
    newest = figures["rounds"][-1]
    print(f"ingest: 64 ranks, {figures['report_bytes'] / 1e3:.1f} KB a report, {newest['reports_per_s']:.0f} reports/s, "
          f"{newest['bytes_per_s'] / 1e6:.0f} MB/s, raw sink {newest['raw_reports_per_s']:.0f} reports/s")
    given_up = sum(one["windows_given_up"] for one in figures["rounds"])
    checks.note("windows given up", given_up, given_up == 0, "0")
    ratio = figures["ratio"]
    checks.note("ingest / raw sink, median of 5 pairs", f"{ratio:.3f}", ratio >= MIN_INGEST_RATIO, ">= 0.70")


def check_sessions(directory, sessions, checks):
    figures = bench(directory, "sessions", "--sessions", sessions)
    print(f"sessions: {sessions} opened in {figures['seconds_to_open']:.1f} s")
    checks.note("sessions lost", figures["lost"], figures["lost"] == 0, "0")
    size = figures["bytes_per_session"]
    checks.note("bytes per session", f"{size:.0f}", size < MAX_SESSION_BYTES, "< 100,000")


def check_fan_out(directory, sessions, checks):
    figures = bench(directory, "fanout", "--sessions", sessions, "--rounds", 10)
    print(f"fanout: {figures['rounds'][0]['message_bytes']} bytes to {sessions} ranks, 10 rounds")
    slowest = figures["all_acks_p99_s"]
    checks.note("all PREPAREDs back, p99 of the rounds, s", f"{slowest:.3f}", slowest < MAX_FAN_OUT_SECONDS, "< 1")
    checks.note("sessions lost", figures["sessions_lost"], figures["sessions_lost"] == 0, "0")
    figures = bench(directory, "frozen", "--sessions", sessions, "--frozen", 208, "--rounds", 5)
    slowest = figures["with"]["all_acks_p99_s"]
    print(f"frozen: 208 ranks that never read; median of the others with / without them {figures['ratio']:.2f}")
    checks.note("all PREPAREDs back beside them, p99, s", f"{slowest:.3f}", slowest < MAX_FAN_OUT_SECONDS, "< 1")
    checks.note("sessions lost", figures["with"]["sessions_lost"], figures["with"]["sessions_lost"] == 0, "0")


def median_step_ms(job_module, with_daemon):
    """Median step of one run, and the training threads' long waits."""
    with tempfile.TemporaryDirectory(prefix="eplb-steps-") as directory:
        daemon = job_module.Daemon(directory, policy_every=1000000)  # reports, and nothing to migrate
        endpoint = daemon.endpoint
        if with_daemon:
            daemon.start()
        job = job_module.Job(directory, endpoint, world=2, steps=400, step_ms=4, slots=64, parameters=16,
                             extra=("--rendezvous", f"127.0.0.1:{job_module.free_port()}", "--report-every", "10"))
        try:
            if job.wait(120) != [0, 0]:
                raise SystemExit(f"the job failed: {[path.read_text() for path in job.errors]}")
            report = job.report()
        finally:
            job.kill_all()
            if with_daemon:
                daemon.kill()
        return statistics.median(step["seconds"] for step in report["steps"][100:]) * 1e3, report["session_waits_over_1ms"]


def check_steps(checks):
    import job as job_module  # reads EPLB_BIN and EPLB_DATA
    with_daemon, without, waits = [], [], 0
    for _ in range(4):
        for runs, daemon in ((with_daemon, True), (without, False)):
            step, waited = median_step_ms(job_module, daemon)
            runs.append(step)
            waits += waited
    spread = max(max(runs) - min(runs) for runs in (with_daemon, without))
    change = statistics.median(with_daemon) - statistics.median(without)
    print(f"steps: median {statistics.median(with_daemon):.3f} ms with a daemon, {statistics.median(without):.3f} ms "
          f"without, difference {change:+.3f} ms, spread of equal runs (A/A) {spread:.3f} ms")
    checks.note("waits over 1 ms for the session", waits, waits == 0, "0")


def main():
    import os
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=root / "build/release/bin")
    parser.add_argument("--data", type=pathlib.Path, default=root / "tests/data")
    parser.add_argument("--sessions", type=int, default=2000)
    arguments = parser.parse_args()
    os.environ["EPLB_BIN"], os.environ["EPLB_DATA"] = str(arguments.bin), str(arguments.data)
    checks = Checks()
    check_ingest(arguments.bin, checks)
    check_sessions(arguments.bin, arguments.sessions, checks)
    check_fan_out(arguments.bin, arguments.sessions, checks)
    check_steps(checks)
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
