"""python -m eplb.demo: 8 rank processes train beside the balancer daemon, on a recorded router trace, without a GPU.

    python -m eplb.demo                            # about 45 s; the run is written to ./eplb-demo
    python -m eplb.demo --minutes 5                # longer, to watch the web page whose address is printed first
    eplbctl replay "$(python -m eplb.demo --sample)" --gpus 8

The ranks split each step's tokens exactly and verify every byte after every switch. Daemon and ranks end with this process.
Exit: 0 everything that was verified holds, 1 a process failed, 2 wrong flag, 8 something does not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from eplb._programs import PACKAGE, path_of, prefix

_RANKS, _SLOTS = 8, 72
_TRACE = "moe64_aux.jsonl"
_MARK = ".eplb-demo"  # a folder that has it, and no folders in it, is one of earlier runs
_FIRST_LINE = "eplbd.out"
_PR_SET_PDEATHSIG = 1
_AROUND_SECONDS = 8  # the start, the checks after switches and the report
_SETTINGS = ("listen.unix=none",)


class Failed(Exception):
    """The run cannot begin, or its daemon failed; the message is one line."""


class _Processes:
    """Processes that end with this one, however it ends."""

    def __init__(self) -> None:
        self._all: List[subprocess.Popen[bytes]] = []
        self._libc = ctypes.CDLL(None)

    def start(self, command: Sequence[object], output: Optional[Path], errors: Optional[Path], **more: Any) -> subprocess.Popen[bytes]:
        with contextlib.ExitStack() as files:
            out, err = (files.enter_context(open(path, "wb")) if path else None for path in (output, errors))
            process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                       preexec_fn=lambda: self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM), **more)
        self._all.append(process)
        return process

    def stop(self) -> None:
        running = [process for process in self._all if process.poll() is None]
        for process in running:
            process.terminate()
        end = time.monotonic() + 10
        for process in running:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def main(arguments: Optional[List[str]] = None) -> int:
    """The command. returns: the exit code."""
    options = _parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    processes = _Processes()
    try:
        if options.sample:
            print(_sample())
            return 0
        return _run(options, processes)
    except BrokenPipeError:  # nobody reads any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Failed, OSError, subprocess.TimeoutExpired) as error:
        print(f"eplb.demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        processes.stop()


def _parse(arguments: Optional[List[str]]) -> argparse.Namespace:
    def number(text: str) -> int:
        if not (text.isdecimal() and 0 < int(text) < 10_000_000):
            raise argparse.ArgumentTypeError(f"\"{text}\", expected a whole number above 0")
        return int(text)

    parser = argparse.ArgumentParser(prog="eplb.demo", description="Run the demonstration: a daemon and 8 ranks on a recorded router trace.")
    parser.add_argument("--steps", type=number, default=480, metavar="N", help="training steps [480]")
    parser.add_argument("--minutes", type=number, metavar="M", help="as many steps as fit into about M minutes")
    parser.add_argument("--step-ms", type=number, default=60, metavar="T",
                        help="milliseconds of a step with even GPUs; uneven GPUs make it longer [60]")
    parser.add_argument("--dir", type=Path, default=Path("eplb-demo"), metavar="DIR",
                        help="where the run is written, in place of an earlier one [eplb-demo]")
    parser.add_argument("--bin", type=Path, metavar="DIR", help="folder of eplbd, eplbctl and eplb-trainer [those of this package]")
    parser.add_argument("--sample", action="store_true", help="print the path of the recorded trace, and run nothing")
    options = parser.parse_args(arguments)
    # A step of the trace lasts about 1.25 times an even one, and a few milliseconds besides.
    step_seconds = (1.25 * options.step_ms + 4) / 1000
    if options.minutes:
        options.steps = max(1, int(60 * options.minutes / step_seconds))
    options.seconds = options.steps * step_seconds
    return options


def _sample() -> Path:
    """The recorded trace: in a wheel, an installation, or a source tree. errors: FileNotFoundError."""
    installed = prefix()
    folders = [PACKAGE, (installed / "share/doc/eplb" if installed else PACKAGE.parents[2]) / "tests/data"]
    for folder in folders:
        if (folder / _TRACE).exists():
            return folder / _TRACE
    raise FileNotFoundError(f"{_TRACE} is in neither of {', '.join(map(str, folders))}")


def _run(options: argparse.Namespace, processes: _Processes) -> int:
    run: Path = options.dir
    eplbd, eplbctl, trainer = (options.bin.resolve() / name if options.bin else path_of(name) for name in ("eplbd", "eplbctl", "eplb-trainer"))
    trace = _sample()
    run.mkdir(parents=True, exist_ok=True)
    earlier = list(run.iterdir())
    if earlier and (run / _MARK not in earlier or any(path.is_dir() for path in earlier)):
        raise Failed(f"{run} has files that no demonstration wrote: give another --dir")
    mark = open(run / _MARK, "w")  # locked until this process ends
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Failed(f"another demonstration runs in {run}: give another --dir") from None
    for path in earlier:
        if path != run / _MARK:
            path.unlink()

    daemon_command = [eplbd, "--store", run / "eplbd.db", *(word for setting in _SETTINGS for word in ("--set", setting))]
    daemon = processes.start([*daemon_command, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"], run / _FIRST_LINE, run / "eplbd.log")
    addresses = _addresses(daemon, run)
    listen = f"--listen {addresses['grpc']} --http {addresses['http']}"
    print(f"{_RANKS} ranks train for {options.steps} steps, about {options.seconds + _AROUND_SECONDS:.0f} s. To watch: http://{addresses['http']}/, or\n"
          f"  {eplbctl} top --endpoint {addresses['grpc']}\nTo see training outlive the daemon:\n"
          f"  kill -9 {daemon.pid}; {shlex.join(map(str, daemon_command))} {listen}", flush=True)
    job = [trainer, "--world", _RANKS, "--endpoint", addresses["grpc"], "--trace", trace, "--steps", options.steps, "--slots", _SLOTS,
           "--step-ms", options.step_ms, "--split", "batch", "--log-dir", run, "--report-json", run / "run.json"]
    # The ranks meet through the daemon, which tells launches apart by this.
    environment = {**os.environ, "EPLB_LAUNCH_ID": f"demo-{os.getpid()}"}
    ranks = [processes.start([*job, "--rank", rank, *(["--progress"] if rank == 0 else [])], None,
                             run / f"rank-{rank}.err" if rank else None, env=environment) for rank in range(_RANKS)]
    _await(ranks, 60 + 4 * options.seconds)
    code = 0
    for rank, process in enumerate(ranks):
        if process.returncode:
            code = code or max(1, process.returncode)
            print(f"eplb.demo: rank {rank} ended with {process.returncode}{_last_line(run / f'rank-{rank}.err')}", file=sys.stderr)

    # Only the daemon knows the operators' changes; the report reads them from this file.
    events = run / "events.json"
    if _ask([eplbctl, "get", "events", "--limit", 1000, "-o", "json", "--endpoint", addresses["grpc"]], events) != 0:
        events.unlink()
    job_file = run / "job.json"
    _ask([eplbctl, "report", "--job", "demo", "-o", "json", "--endpoint", addresses["grpc"]], job_file)
    ended = _end(daemon)
    if code and not (run / "run.json").exists():
        return code
    report = _report(eplbctl, run, json.loads(job_file.read_bytes() or b"{}"))
    return code or ended or report


def _addresses(daemon: subprocess.Popen[bytes], run: Path) -> Dict[str, str]:
    """Returns the addresses in the daemon's first line. errors: Failed."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        line, newline, _ = (run / _FIRST_LINE).read_bytes().partition(b"\n")
        if newline:
            return dict(json.loads(line))
        if daemon.poll() is not None:
            raise Failed(f"eplbd did not start{_last_line(run / 'eplbd.log')}")
        time.sleep(0.05)
    raise Failed("eplbd did not print its address within 20 s")


def _await(ranks: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    """Returns once all ranks have ended, which takes at most `seconds`, and 30 s after the first failure."""
    end = time.monotonic() + seconds
    while any(rank.poll() is None for rank in ranks):
        if any(rank.returncode for rank in ranks):
            end = min(end, time.monotonic() + 30)
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()
            rank.wait()


def _end(daemon: subprocess.Popen[bytes]) -> int:
    """returns: 1 if the daemon did not end as it should."""
    if daemon.poll() is not None:
        print("eplb.demo: another process ended eplbd during the run", file=sys.stderr)
        return 0
    daemon.terminate()
    if (code := daemon.wait(30)) != 0:
        print(f"eplb.demo: eplbd ended with {code}", file=sys.stderr)
    return int(code != 0)


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return f": {lines[-1]}" if lines else ""


def _ask(command: Sequence[object], output: Path) -> int:
    """Runs a command of eplbctl, with its output in a file. returns: its exit code."""
    with open(output, "wb") as file:
        return subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=file, timeout=120).returncode


def _report(eplbctl: Path, run: Path, job: Dict[str, Any]) -> int:
    """Writes the report and the page, and prints what they show. returns: the exit code of the report."""
    figures = run / "report.json"
    code = _ask([eplbctl, "report", run, "--min-rebalances", 3, "--out", figures], run / "report.txt")
    # Windows as short as the daemon's, for the lines of the page.
    page = _ask([eplbctl, "report", run, "--window-steps", 10, "--html", run / "report.html"], Path(os.devnull))
    if figures.exists():
        print(_summary(json.loads(figures.read_bytes()), job, run))
    return code or page


def _saved(job: Dict[str, Any], measured: float) -> str:
    """The daemon's figure, which is also that of its page, its metrics and `eplbctl status`."""
    saved = job.get("saved_seconds")
    if saved is None:
        return f"saved     {job.get('saved_basis', 'not known: no daemon answered')}"
    share = f", {abs(100 * saved / (measured + saved)):.1f} % of the time without EPLB" if measured + saved > 0 else ""
    about = "about " if job.get("saved_is_assumed") else ""
    return f"{'saved' if saved >= 0 else 'LOST '}     {about}{abs(saved):.1f} s{share}\nbasis     {job['saved_basis']}"


def _summary(report: Dict[str, Any], job: Dict[str, Any], run: Path) -> str:
    """The figures of a job and of its report; a run without a switch has nothing to compare."""
    rows, problems = report["comparison"], report["problems"]
    ran, without = rows["run"], rows["without_eplb_predicted"]
    lines = [f"ran       {report['ranks']} ranks, {report['steps']} steps, {report['rebalances']} rebalances",
             _saved(job, report["time"]["measured_seconds"])]
    if report["rebalances"] and ran["balancedness"]:
        lines += [
            f"balance   {without['balancedness']:.3f} without EPLB (predicted), {ran['balancedness']:.3f} measured; 1 is best",
            f"moved     {(ran['bytes_moved'] or 0) / 1e6:.1f} MB of experts; the longest pause was "
            f"{1e3 * report['time']['longest_pause_seconds']:.0f} ms"]
    lines.append(f"verified  {report['bytes_verified'] / 1e6:.1f} MB of expert memory" +
                 ("" if problems else ", and every rule in the logs of the ranks"))
    lines += [f"PROBLEM   {problem}" for problem in problems[:5]]
    return "\n".join([*lines, f"report    {run / 'report.txt'}: each decision with its reason", f"page      {run / 'report.html'}, for a browser"])


if __name__ == "__main__":
    sys.exit(main())
