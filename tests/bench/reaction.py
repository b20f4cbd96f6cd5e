#!/usr/bin/env python3
"""Measures how soon a real daemon follows loads that drift, and whether `eplbctl replay` promises what the run reached.

equal, exact: an eplbd and 16 eplb-trainer processes on loopback; 58 layers of 256 experts in 288 slots. Every expert's share of the
tokens is log-normal and is multiplied by exp(0.1 * normal) every 5 steps. Daemon and trainers run with their defaults; experts are
small, and steps are so long (--step-ms) that two cores can run all ranks.
demo: the run of deploy/demo.sh.

Balancedness is that of the ranks' own report, which `eplbctl report` verifies, as a mean over all steps from step 0 on. `replay`
is the same mean as `eplbctl replay` promises it for the recorded steps, in the run's windows and at its prices.

Needs numpy. With --check, exit 1 when a bar is missed: balancedness .92 (equal), .97 (exact), .90 (demo); `replay` within .01 of
the run (equal, exact); pauses at most 1.5 % of the time, and none above max_pause by more than one round of rows (demo).

  tests/bench/reaction.py [--bin build/release/bin] [--steps 125] [--seed 0] [--vote-every N] [--dir DIR] [--check]
                          [equal|exact|demo ..]
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "integration"), str(ROOT / "tests" / "data" / "workloads")]

SHAPE, LOAD, DRIFT, DRIFT_EVERY = "a_dsv3_prefill", "logn1", 0.1, 5
SLOTS, RANKS = 288, 16
JOB = "demo"  # the trainer's default
PARAMETER_BYTES = 14  # a parameter and its optimizer state
MAX_PAUSE = 0.2  # seconds, the default of migration.max_pause
LEAST = {"equal": 0.92, "exact": 0.97, "demo": 0.90}
MOST_FROM_REPLAY = 0.01
MOST_PAUSED = 0.015
BLOCK = 25


def write_trace(path, seed, steps):
    import workloads  # beside the data, needs numpy
    windows, _ = workloads.series(SHAPE, LOAD, seed, -(-steps // DRIFT_EVERY), DRIFT)
    with open(path, "w", encoding="utf-8") as file:
        for first, load in zip(range(0, steps, DRIFT_EVERY), windows):
            print(json.dumps({"first_step": first, "last_step": first + DRIFT_EVERY - 1, "load": load.tolist()}), file=file)


def run_job(folder, mode, options):
    """Runs daemon and ranks. Returns the daemon's load windows, and what `eplbctl replay` promises of each step."""
    import job as job_module  # reads EPLB_BIN and EPLB_DATA
    write_trace(folder / "trace.jsonl", options.seed, options.steps)
    daemon = job_module.Daemon(folder)
    daemon.config.write_text("")  # all defaults
    extra = ["--split", "batch" if mode == "exact" else "equal"]
    if options.vote_every:
        extra += ["--vote-every", str(options.vote_every)]
    job = None
    try:
        daemon.start()
        job = job_module.Job(folder, daemon.endpoint, world=RANKS, steps=options.steps, step_ms=options.step_ms, slots=SLOTS,
                             parameters=options.parameters, extra=extra, trace=folder / "trace.jsonl")
        if any(job.wait(120 + options.steps * options.step_ms / 100)):
            raise SystemExit(f"a rank failed: {[path.read_text()[-300:] for path in job.errors]}")
        answer = job_module.eplbctl("get", "windows", "--endpoint", daemon.endpoint, "--limit", 1000, "-o", "json")
        windows = json.loads(answer.stdout)["windows"]
        return windows, replay(folder, windows, daemon.endpoint, options)
    finally:
        if job:
            job.kill_all()
        daemon.kill()


def run_demo(folder, options):
    done = subprocess.run([ROOT / "deploy/demo.sh", "--skip-setup", "--bin", options.bin.resolve(), "--dir", folder], timeout=600,
                          capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the demonstration failed: {done.stdout[-500:]}{done.stderr[-500:]}")
    return [], []


def reviewed(folder, options):
    """Returns what `eplbctl report` finds in the run's logs."""
    command = [options.bin / "eplbctl", "report", folder, "--window-steps", 1000, "-o", "json"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
    if not done.stdout:
        raise SystemExit(f"eplbctl report: {done.stderr}")
    return json.loads(done.stdout)


def write_windows(path, steps, windows):
    """Writes the run's steps, summed over the windows that the daemon had, and returns the number of steps in each window."""
    import numpy
    loads = [json.loads(line)["load"] for line in open(steps, encoding="utf-8")]
    ends = [window["last_step"] + 1 for window in windows if window["last_step"] < len(loads)]
    if not ends or ends[-1] < len(loads):
        ends.append(len(loads))
    ranges = list(zip([0, *ends], ends))
    with open(path, "w", encoding="utf-8") as file:
        for first, end in ranges:
            load = numpy.array(loads[first:end]).sum(0).tolist()
            print(json.dumps({"first_step": first, "last_step": end - 1, "load": load}), file=file)
    return [end - first for first, end in ranges]


def replay(folder, windows, endpoint, options):
    """Returns the balancedness that `eplbctl replay` promises of each step, at the prices that the run had."""
    lengths = write_windows(folder / "windows.jsonl", folder / "loads.jsonl", windows)
    run = json.loads((folder / "run.json").read_text())
    tokens = json.loads(open(folder / "loads.jsonl", encoding="utf-8").readline())["load"]
    mean_tokens = sum(map(sum, tokens)) / RANKS
    command = [options.bin / "eplbctl", "replay", folder / "windows.jsonl", "--gpus", RANKS, "--slots", SLOTS, "--split", run["split"],
               "--token-ns", f"{run['even_step_seconds'] * 1e9 / mean_tokens:.6g}", *options.replay.split(), "-o", "json"]
    moved, paused = (sum(change[key] for change in run["switches"]) for key in ("bytes_moved", "pause_seconds"))
    if moved:
        gigabytes = f"{moved / RANKS / paused / 1e9:.9f}"
        command += ["--expert-bytes", PARAMETER_BYTES * options.parameters, "--link-gbps", f"{gigabytes},{gigabytes}"]
    if "--like" in subprocess.run([options.bin / "eplbctl", "replay", "--help"], capture_output=True, text=True, timeout=60).stdout:
        command += ["--like", JOB, "--endpoint", endpoint]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"eplbctl replay: {done.stderr}")
    rows = json.loads(done.stdout)["windows"]
    return [row["balancedness"] for row, length in zip(rows, lengths) for _ in range(length)]


def mean(values):
    return statistics.fmean(value for value in values if value is not None)


def over_long(folder, ranks):
    """Returns the longest boundary, and the most seconds of one above max_pause and its longest round of rows, over all ranks."""
    import job as job_module
    longest, above = 0.0, -MAX_PAUSE
    for rank in range(ranks):
        for line in job_module.read_lines(folder / f"rank-{rank}.jsonl"):
            if line["event"] == "boundary":
                one_round = max((one["micros"] for one in line["rounds"]), default=0)
                longest = max(longest, line["micros"] / 1e6)
                above = max(above, (line["micros"] - one_round) / 1e6 - MAX_PAUSE)
    return longest, above


def blocks(values):
    return " ".join(f"{mean(values[first:first + BLOCK]):.3f}" for first in range(0, len(values), BLOCK))


def show(mode, folder, windows, promised, options):
    """Prints the figures of a run. Returns what misses its bar."""
    run = json.loads((folder / "run.json").read_text())
    steps, switches = run["steps"], run["switches"]
    ran = [step["balancedness"] for step in steps]
    decisions = {}
    for change in switches:
        decisions.setdefault(change["decision"], []).append(change)
    paused = sum(step["boundary_seconds"] for step in steps) / sum(step["seconds"] for step in steps)
    longest, above = over_long(folder, run["world_size"])
    late = [chunks[-1]["step"] - chunks[-1]["decided_last_step"] for chunks in decisions.values()]
    print(f"{mode}: balancedness {mean(ran):.4f} over {len(ran)} steps; static layout "
          f"{mean(step['balancedness_static'] for step in steps):.4f}\n  blocks of {BLOCK} steps: {blocks(ran)}")
    if promised:
        print(f"  replay promises {mean(promised):.4f}: {blocks(promised)}")
    print(f"  {len(decisions)} decisions; chunks of each: {' '.join(str(len(chunks)) for chunks in decisions.values())}")
    print(f"  steps from a decision's last to its last switch: {' '.join(map(str, late))}")
    print(f"  switches after steps: {' '.join(str(change['step']) for change in switches)}")
    if windows:
        print(f"  windows end with steps: {' '.join(str(window['last_step']) for window in windows)}")
    print(f"  pauses {paused:.2%} of the time, longest {longest * 1e3:.0f} ms (max_pause {MAX_PAUSE * 1e3:.0f} ms)")
    review = reviewed(folder, options)
    print(f"  {review['time']['steps_over_model']} steps took longer than their loads because the machine was too slow", flush=True)
    checks = [(mean(ran) >= LEAST[mode], f"balancedness {mean(ran):.4f}, expected at least {LEAST[mode]}"),
              (not review["problems"], f"eplbctl report: {review['problems'][:3]}")]
    if mode == "demo":
        checks += [(paused <= MOST_PAUSED, f"pauses {paused:.2%}, expected at most {MOST_PAUSED:.1%}"),
                   (above <= 0, f"a boundary is {above * 1e3:.0f} ms above max_pause and a round of rows")]
    else:
        far = abs(mean(ran) - mean(promised))
        checks.append((far <= MOST_FROM_REPLAY, f"replay is {far:.4f} from the run, expected at most {MOST_FROM_REPLAY}"))
    return [f"{mode}: {text}" for holds, text in checks if not holds]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin", help="folder of the programs")
    parser.add_argument("--steps", type=int, default=125, help="steps of equal and exact")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step-ms", type=int, default=500, help="of a step with even GPUs")
    parser.add_argument("--parameters", type=int, default=64, help="of an expert")
    parser.add_argument("--vote-every", type=int, help="default: the trainer's")
    parser.add_argument("--replay", default="", metavar="FLAGS", help="more flags of `eplbctl replay`")
    parser.add_argument("--dir", type=pathlib.Path, help="keep the runs in this folder")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    parser.add_argument("modes", nargs="*", metavar="MODE", help="equal, exact, demo; by default the first two")
    options = parser.parse_args()
    if unknown := set(options.modes) - set(LEAST):
        parser.error(f"{', '.join(unknown)}: expected equal, exact or demo")
    os.environ["EPLB_BIN"], os.environ["EPLB_DATA"] = str(options.bin.resolve()), str(ROOT / "tests/data")
    missed = []
    for mode in options.modes or ["equal", "exact"]:
        with tempfile.TemporaryDirectory(prefix="eplb-reaction-") as temporary:
            folder = (options.dir or pathlib.Path(temporary)) / mode
            folder.mkdir(parents=True, exist_ok=True)
            windows, promised = run_demo(folder, options) if mode == "demo" else run_job(folder, mode, options)
            missed += show(mode, folder, windows, promised, options)
    for text in missed:
        print(f"missed: {text}", file=sys.stderr)
    return int(options.check and bool(missed))


if __name__ == "__main__":
    sys.exit(main())
