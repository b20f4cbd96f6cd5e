"""Runs a row: ranks of an engine have experts rearranged window by window.

The ranks are forked: the engine is imported once, by their parent.
"""

import importlib
import json
import logging.handlers
import sys
import threading
import time

import numpy as np

import eplb.sglang
import eplb.vllm
import experts
import faults
import ranks
import signatures
from rows import DEFAULTS, ROWS, daemon_plans

JOB = "chat"
SECONDS = 120 * ranks.PATIENCE  # limit of a row
_registration = []  # what the plugin calls in this process


def plugin():
    """Is the entry point that the engine calls."""
    _registration[-1]()


def module_of(engine):
    return importlib.import_module("sglang_rank" if engine == "sglang" else "vllm_rank")


def counted(kind, slots, load):
    """Returns the load of a window: no tokens, as many for each slot of the current map, or the drifting load."""
    if kind == "zeros":
        return np.zeros_like(load)
    if kind == "even":
        return experts.TOKENS * experts.replicas(slots, load.shape[1])
    return load


def lines(log):
    return [record.getMessage() for record in log.buffer]


def check_daemon(endpoint, engine, row, log):
    """Compares the maps with the placements that the daemon shows."""
    stage = f"-stage{engine.ranks[0] * row['stages'] // row['world']}" if row["stages"] > 1 else ""
    for slots, layers in zip(engine.maps(), row["layers"]):
        job = f"{JOB}-{layers}x{experts.EXPERTS}{stage}"
        shown = ranks.harness.eplbctl("get", "placement", "--job", job, "--endpoint", endpoint, "-o", "json")
        assert shown.returncode == 0, (shown.stderr, lines(log))
        found = json.loads(shown.stdout)["placement"]["physical_to_logical_map"]
        np.testing.assert_array_equal(found, slots, job)


def serve(rank, name, port, directory, endpoint, row):
    """Runs one rank. Returns its ranks' group, its log, and of each window the loads, the maps after it and its seconds."""
    log = logging.handlers.BufferingHandler(10 ** 6)
    logging.getLogger("eplb").addHandler(log)
    adapter = eplb.sglang if name == "sglang" else eplb.vllm
    asking = {"endpoint": endpoint, "job": JOB} if endpoint else {}
    _registration.append(lambda: adapter.register(timeout=faults.TIMEOUT, **row["settings"], **asking))
    if rank not in row["absent"]:
        sys.path.append(str(directory))  # a package with the plugin is installed there
    engine = module_of(name).Rank(rank, row["world"], port, {**row, "is_async": name == "vllm"})
    drifts = [experts.Loads(layers, seed=10 * engine.ranks[0] + model) for model, layers in enumerate(row["layers"])]
    windows = [(None, engine.maps(), 0.0)]
    for window in range(row["windows"]):
        loads = [counted(row["loads"].get(window), slots, drift.next()) for slots, drift in zip(engine.maps(), drifts)]
        fault, at = row["faults"].get(window, (None, None))
        if rank == 0 and window in row["orders"]:
            faults.order(directory, row["orders"][window])
        start = time.monotonic()
        with faults.during(fault if rank == at else None, directory):
            engine.rearrange(loads)
        windows.append((loads, engine.maps(), time.monotonic() - start))
        if rank == engine.ranks[0] and daemon_plans(row, window):
            check_daemon(endpoint, engine, row, log)
    import torch.distributed as dist

    dist.barrier()  # the groups still serve the engine
    return engine.ranks, lines(log), windows


class EngineTest(ranks.RankTest):
    def check(self, name, key):
        row, start = {**DEFAULTS, **ROWS[key]}, time.monotonic()
        package = self.directory / "eplb_in_engine-1.dist-info"
        package.mkdir()
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: eplb-in-engine\nVersion: 1\n")
        (package / "entry_points.txt").write_text(f"[{module_of(name).PLUGINS}]\neplb = {__name__}:plugin\n")
        daemon = self.start_planner() if row["daemon"] else None
        found = self.succeed(row["world"], serve, name, ranks.harness.free_port(), self.directory,
                             daemon and daemon.endpoint, row, seconds=SECONDS)
        for rank, (group, log, windows) in enumerate(found):
            self.check_log(rank, log, row["logs"].get(rank, ()))
            for window, ((_, maps, _), (_, leading, _)) in enumerate(zip(windows, found[group[0]][2]), -1):
                for mine, leader in zip(maps, leading):
                    np.testing.assert_array_equal(mine, leader, f"rank {rank} window {window}")
        for group, _, windows in found[::len(found[0][0])]:
            self.check_windows(f"{name} {key}", row, group, windows)
        print(f"{name} {key}: {time.monotonic() - start:.1f} s", file=sys.stderr)

    def start_planner(self):
        """Returns a daemon that plans after each window, and that the ranks can kill and start."""
        daemon, ended = ranks.harness.Daemon(self.directory), threading.Event()
        daemon.config.write_text("")  # defaults
        daemon.start()
        obeying = threading.Thread(target=faults.obey, args=(daemon, self.directory, ended))
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
            print(f"{name} model {model}: moved {moved[0]:.3f}, then {np.mean(moved[1:]):.3f} and at most "
                  f"{max(moved[1:]):.3f}; balancedness {np.mean(after):.3f}, of the first map {np.mean(before):.3f}; "
                  f"{np.median(seconds):.2f} s, at most {max(seconds):.2f} s", file=sys.stderr)
            self.assertGreater(np.mean(after), np.mean(before))
            self.assertLessEqual(max(moved[1:]), row["moved"])
            self.assertLess(max(seconds), 8 * faults.TIMEOUT)


def tests_of(engine):
    """Imports an engine. Returns a class with a test for each of its rows."""
    module_of(engine)

    def test_of(key):
        return lambda test: test.check(engine, key)

    tests = {f"test_{key}": test_of(key) for key, row in ROWS.items() if engine in {**DEFAULTS, **row}["engines"]}
    return type("RowsTest", (EngineTest,), {**tests, "test_signatures": lambda test: signatures.check(test, engine)})
