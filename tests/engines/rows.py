"""The rows of an engine: 4 ranks count loads that drift, have experts rearranged, and meet faults.

The ranks are forked: the engine is imported once, by their parent.
"""

import contextlib
import importlib
import json
import logging.handlers
import os
import subprocess
import sys
import threading
import time
from unittest import mock

import numpy as np

import eplb.sglang
import eplb.vllm
import experts
import ranks
import signatures
from eplb import placement
from eplb._agreement import Agreement

JOB = "chat"
TIMEOUT = 2 * ranks.PATIENCE  # argument of register
SECONDS = 120 * ranks.PATIENCE  # limit of a row
ADAPTERS = {"vllm": eplb.vllm, "vllm_sync": eplb.vllm, "sglang": eplb.sglang}
VLLM = ("vllm", "vllm_sync")

# world: number of ranks. layers: of each model. stages: of the pipeline. groups: of the router. nodes: 0 for those that the engine finds. settings: of
# register. windows: number of rearrangements. loads: what is counted in a window instead of a drifting load. faults: (fault, rank)
# in a window. absent: ranks without the plugin. kept: windows after which the map must be the old one, on the rank's group. moved: largest share of slots
# that may receive an expert from another GPU, after the first window. logs: patterns of all lines of a rank. engines: that have
# the row. daemon: an eplbd plans. orders: what happens to it before a window, "kill" or "start".
DEFAULTS = {"world": 4, "layers": [experts.LAYERS], "stages": 1, "groups": 1, "nodes": 0, "settings": {}, "windows": 12, "loads": {}, "faults": {},
            "absent": (), "kept": (), "moved": 0.1, "logs": {}, "engines": ADAPTERS, "daemon": False, "orders": {}}
STAYS = r"the placement stays as it is: "
AGAIN = r"balances again$"
OWN = r" of 4 lacks EPLB's plugin or was late: all ranks use \w+'s own policy until they restart$"
GONE = STAYS + r"eplbd at [\d.:]+: connection refused$"
LATE = STAYS + r"rank 0 of 4 published no placement within"
ROWS = {
    "drift": {"windows": 20},
    "groups": {"windows": 20, "world": 8, "groups": 8, "nodes": 4, "moved": 0.17},
    "no_groups": {"groups": None},
    "two_models": {"layers": [experts.LAYERS, 1], "faults": {4: ("stopped", 2)}, "kept": (4,), "engines": VLLM,
                   "logs": {0: (STAYS + "rank 2 of 4 did not acknowledge", AGAIN)}},
    "two_stages": {"stages": 2, "faults": {0: ("stopped", 3)}, "kept": (0,), "engines": VLLM,
                   "logs": {2: (STAYS + "rank 1 of 2 did not acknowledge", AGAIN)}},
    "zeros": {"loads": {0: "zeros", 5: "zeros", 6: "zeros"}, "kept": (0, 5, 6)},
    "no_gain": {"settings": {"policy": "balanced"}, "loads": {5: "even"}, "kept": (5,), "moved": 1},
    "stopped": {"faults": {4: ("stopped", 2), 8: ("stopped", 0)}, "kept": (4, 8),
                "logs": {0: (STAYS + "rank 2 of 4 did not acknowledge", AGAIN, STAYS + "ranks 1, 2, 3 of 4 did not ack", AGAIN),
                         1: (LATE, AGAIN), 2: (LATE, AGAIN), 3: (LATE, AGAIN)}},
    "plan_fails": {"faults": {4: ("plan_fails", 0), 8: ("plan_fails", 2)}, "kept": (4,),
                   "logs": {0: (STAYS + "MemoryError: no memory", AGAIN)}},
    "absent": {"absent": (2,), "moved": 1, "logs": {0: ("rank 2" + OWN,)}},
    "absent_0": {"absent": (0,), "moved": 1, "logs": {1: ("rank 0" + OWN,)}},
    "daemon": {"daemon": True, "windows": 20},
    "daemon_groups": {"daemon": True, "windows": 20, "world": 8, "groups": 8, "nodes": 4, "moved": 0.17},
    "daemon_two_models": {"daemon": True, "layers": [experts.LAYERS, 1], "engines": VLLM},
    "daemon_two_stages": {"daemon": True, "stages": 2, "engines": VLLM},
    "daemon_zeros": {"daemon": True, "loads": {0: "zeros", 5: "zeros", 6: "zeros"}, "kept": (0, 5, 6)},
    "daemon_no_gain": {"daemon": True, "loads": {5: "even"}, "kept": (5,)},
    "daemon_stopped": {"daemon": True, "faults": {4: ("stopped", 2), 8: ("stopped", 0)}, "kept": (4, 8), "logs": {
        0: (STAYS + "rank 2 of 4 did not acknowledge", AGAIN, STAYS + "ranks 1, 2, 3 of 4 did not ack", AGAIN),
        1: (LATE, AGAIN), 2: (LATE, AGAIN), 3: (LATE, AGAIN)}},
    "daemon_killed": {"daemon": True, "orders": {4: "kill", 7: "start"}, "kept": (4, 5, 6), "logs": {0: (GONE, AGAIN)}},
    "daemon_killed_meanwhile": {"daemon": True, "faults": {4: ("daemon_killed", 2)}, "orders": {7: "start"}, "kept": (5, 6), "logs": {
        0: ("the daemon received no report whether its placement was taken: ", GONE, AGAIN)}},
    "daemon_absent": {"daemon": True, "absent": (2,), "moved": 1, "logs": {0: ("rank 2" + OWN,)}},
}
_registration = []  # what the plugin calls in this process


def plugin():
    """Is the entry point that the engine calls."""
    _registration[-1]()


def install_plugin(directory, group):
    """Makes the process that calls this one in which a package with the plugin is installed."""
    package = directory / "eplb_in_engine-1.dist-info"
    package.mkdir(parents=True, exist_ok=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: eplb-in-engine\nVersion: 1\n")
    (package / "entry_points.txt").write_text(f"[{group}]\neplb = rows:plugin\n")
    sys.path.append(str(directory))


def stop_this_process():
    """Stops this process with SIGSTOP, for longer than the ranks wait for each other."""
    script = f"kill -STOP {os.getpid()}; sleep {1.5 * TIMEOUT}; kill -CONT {os.getpid()}"
    with subprocess.Popen(["sh", "-c", script]) as stopper:
        while stopper.poll() is None:
            time.sleep(0.01)


def order(directory, what):
    """Has the process of the tests kill or start the daemon."""
    (directory / what).touch()
    ranks.harness.wait_for(lambda: not (directory / what).exists(), 30, f"{what} the daemon")


def obey(daemon, directory, ended):
    """Follows orders until the event `ended`."""
    while not ended.wait(0.01):
        for what in ("kill", "start"):
            if (directory / what).exists():
                getattr(daemon, what)()
                (directory / what).unlink()


@contextlib.contextmanager
def harmed(fault, directory):
    decide = Agreement.decide

    def harmed_decide(*given):
        if fault == "stopped":
            stop_this_process()
        else:
            time.sleep(TIMEOUT / 2)  # rank 0 has asked the daemon, and waits for this rank
            order(directory, "kill")
        return decide(*given)

    if fault in ("stopped", "daemon_killed"):
        with mock.patch.object(Agreement, "decide", harmed_decide):
            yield
    elif fault == "plan_fails":
        with mock.patch.object(placement, "plan", side_effect=MemoryError("no memory")):
            yield
    else:
        yield


def daemon_lives(row, window):
    """Returns True if the daemon lives after a window and plans."""
    events = {**{at: fault for at, (fault, _) in row["faults"].items()}, **row["orders"]}
    newest = [events[at] for at in sorted(events) if at <= window and events[at] in ("kill", "start", "daemon_killed")][-1:]
    return newest in ([], ["start"]) and not row["absent"]


def counted(kind, slots, load):
    """Returns the load of a window: no tokens, as many for each slot of the current map, or the drifting load."""
    if kind == "zeros":
        return np.zeros_like(load)
    if kind == "even":
        return experts.TOKENS * experts.replicas(slots, load.shape[1])
    return load


def check_daemon(endpoint, engine, row):
    """Compares the maps with the placements that the daemon shows."""
    stage = f"-stage{engine.ranks[0] * row['stages'] // row['world']}" if row["stages"] > 1 else ""
    for slots, layers in zip(engine.maps(), row["layers"]):
        job = f"{JOB}-{layers}x{experts.EXPERTS}{stage}"
        shown = ranks.harness.eplbctl("get", "placement", "--job", job, "--endpoint", endpoint, "-o", "json")
        assert shown.returncode == 0, shown.stderr
        found = json.loads(shown.stdout)["placement"]["physical_to_logical_map"]
        np.testing.assert_array_equal(found, slots, job)


def serve(rank, name, port, directory, endpoint, row):
    """Runs one rank. Returns its ranks' group, its log, and of each window the loads, the maps after it and its seconds."""
    log = logging.handlers.BufferingHandler(10 ** 6)
    logging.getLogger("eplb").addHandler(log)
    module = importlib.import_module("sglang_rank" if name == "sglang" else "vllm_rank")
    asking = {"endpoint": endpoint, "job": JOB} if endpoint else {}
    _registration.append(lambda: ADAPTERS[name].register(timeout=TIMEOUT, **row["settings"], **asking))
    if rank not in row["absent"]:
        install_plugin(directory / "plugin", module.PLUGINS)
    engine = module.Rank(rank, row["world"], port, {**row, "is_async": name == "vllm"})
    drifts = [experts.Loads(layers, seed=10 * engine.ranks[0] + model) for model, layers in enumerate(row["layers"])]
    windows = [(None, engine.maps(), 0.0)]
    for window in range(row["windows"]):
        loads = [counted(row["loads"].get(window), slots, drift.next()) for slots, drift in zip(engine.maps(), drifts)]
        fault, at = row["faults"].get(window, ("", -1))
        if rank == 0 and window in row["orders"]:
            order(directory, row["orders"][window])
        start = time.monotonic()
        with harmed(fault if rank == at else "", directory):
            engine.rearrange(loads)
        windows.append((loads, engine.maps(), time.monotonic() - start))
        if endpoint and rank == engine.ranks[0] and daemon_lives(row, window):
            check_daemon(endpoint, engine, row)
    import torch.distributed as dist

    dist.barrier()  # the groups still serve the engine
    return engine.ranks, [record.getMessage() for record in log.buffer], windows


class EngineTest(ranks.RankTest):
    def check(self, name, key):
        row, start = {**DEFAULTS, **ROWS[key]}, time.monotonic()
        daemon = self.start_planner() if row["daemon"] else None
        found = self.succeed(row["world"], serve, name, ranks.harness.free_port(), self.directory, daemon and daemon.endpoint, row,
                             seconds=SECONDS)
        for rank, (group, log, windows) in enumerate(found):
            self.check_log(rank, log, row["logs"].get(rank, ()))
            for window, (maps, leaders) in enumerate(zip((each[1] for each in windows), (each[1] for each in found[group[0]][2]))):
                for mine, leader in zip(maps, leaders):
                    np.testing.assert_array_equal(mine, leader, f"rank {rank} window {window - 1}")
        for group, _, windows in found[::len(found[0][0])]:
            self.check_windows(f"{name} {key}", row, group, windows)
        print(f"{name} {key}: {time.monotonic() - start:.1f} s", file=sys.stderr)

    def start_planner(self):
        """Returns a daemon that plans after each window, and that the ranks can kill and start."""
        daemon, ended = ranks.harness.Daemon(self.directory, policy_every=1, config="min_gain = 0.001\n"), threading.Event()
        daemon.start()
        obeying = threading.Thread(target=obey, args=(daemon, self.directory, ended))
        obeying.start()
        for cleanup in (daemon.kill, obeying.join, ended.set):  # in reverse order
            self.addCleanup(cleanup)
        return daemon

    def check_log(self, rank, lines, patterns):
        self.assertEqual(len(lines), len(patterns), f"rank {rank}: {lines}")
        for line, pattern in zip(lines, patterns):
            self.assertRegex(line, pattern)

    def check_windows(self, name, row, group, windows):
        """Checks one group's maps: kept where they must be, and otherwise balanced with few moves."""
        gpus = len(group)
        kept = [window for window in row["kept"] if row["faults"].get(window, ("", group[0]))[1] in group]
        for model in range(len(row["layers"])):
            moved, before, after = [], [], []
            for window, (old, new) in enumerate(zip(windows, windows[1:])):
                load, slots = new[0][model], new[1][model]
                if window in kept:
                    np.testing.assert_array_equal(old[1][model], slots, f"window {window}")
                    continue
                moved.append(experts.moved(old[1][model], slots, gpus))
                before.append(experts.balancedness(load, windows[0][1][model], gpus))
                after.append(experts.balancedness(load, slots, gpus))
            seconds = [each[2] for each in windows[1:]]
            print(f"{name} model {model}: moved {moved[0]:.3f}, then {np.mean(moved[1:]):.3f} and at most {max(moved[1:]):.3f}; "
                  f"balancedness {np.mean(after):.3f}, of the first map {np.mean(before):.3f}; "
                  f"{np.median(seconds):.2f} s, at most {max(seconds):.2f} s", file=sys.stderr)
            self.assertGreater(np.mean(after), np.mean(before))
            self.assertLessEqual(max(moved[1:]), row["moved"])
            self.assertLess(max(seconds), 8 * TIMEOUT)


def tests_of(name):
    """Imports an engine. Returns a class with a test for each row."""
    importlib.import_module("sglang_rank" if name == "sglang" else "vllm_rank")

    def test_of(key):
        return lambda test: test.check(name, key)

    tests = {f"test_{key}": test_of(key) for key, row in ROWS.items() if name in row.get("engines", ADAPTERS)}
    return type("RowsTest", (EngineTest,), {**tests, "test_signatures": lambda test: signatures.check(test, name)})
