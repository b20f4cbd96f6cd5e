"""eplb.vllm and eplb.sglang in 4 processes with gloo, as a serving engine calls them: all ranks answer with one map."""

import logging
import os
import tempfile
import threading
import time
import types
import unittest

import numpy as np
import torch
import torch.distributed as dist

import engine_stand_ins
import eplb
import eplb.sglang
import eplb.vllm
import ranks
from eplb import _library, placement, profiles

WORLD, LAYERS, EXPERTS, SLOTS = 4, 2, 8, 12
TIMEOUT = 2 * ranks.PATIENCE
# Thousands of tokens, because policy incremental takes a difference of a few for noise.
LOADS = np.array([[[0] * 8] * 2, [[90, 80, 10, 20, 30, 40, 5, 6]] * 2, [[1, 2, 3, 90, 5, 6, 70, 8]] * 2]) * 1000
START = torch.arange(SLOTS).repeat(LAYERS, 1) % EXPERTS
PROFILES = tempfile.NamedTemporaryFile(prefix="eplb-", suffix=".json")  # read by the ranks, which are forked
profiles.write(PROFILES.name, [profiles.Profile("other", LOADS[2])])
OWN = engine_stand_ins.own_map(LAYERS, EXPERTS, SLOTS).tolist()


class Vllm:
    """Calls the policy as vLLM does: at the profile run on the main thread, later on a worker thread."""

    def __init__(self, group):
        self.policies, self.slots = engine_stand_ins.vllm(group), {}  # by the model's layers

    def install_other_version(self):
        own = self.policies["default"].rebalance_experts
        self.policies["default"] = type("Policy", (), {"rebalance_experts": staticmethod(lambda *given: own(*given))})

    def register(self, **settings):
        eplb.vllm.register(**settings)

    def ask(self, load, groups=None, **more):
        answers = []

        def call():
            slots = self.slots.get(len(load), START[:len(load)])
            answers.append(self.policies["default"].rebalance_experts(load, SLOTS, groups, 1, WORLD, slots, **more))

        worker = threading.Thread(target=call)
        worker.start() if load.any() else call()
        if load.any():
            worker.join()
        self.slots[len(load)] = answers[0]
        return answers[0].tolist()


class Sglang:
    """Calls the function as SGLang does: by keyword, with a buffer of steps, and the incumbent in its global metadata."""

    def __init__(self, _):
        self.algorithms, self.location = engine_stand_ins.sglang()
        self.location.metadata = engine_stand_ins.sglang_metadata(START.clone())

    def install_other_version(self):
        own = self.algorithms.rebalance_experts
        self.algorithms.rebalance_experts = lambda **named: own(**named)

    def register(self, **settings):
        eplb.sglang.register(**settings)

    def ask(self, load, groups=None, **more):
        slots = self.algorithms.rebalance_experts(
            tokens_per_expert=load[None].repeat(3, 1, 1), num_physical_experts=SLOTS, num_groups=groups,
            num_local_physical_experts=SLOTS // WORLD, num_nodes=1, algorithm=engine_stand_ins.EplbAlgorithm.deepseek, **more)[0]
        self.location.metadata = engine_stand_ins.sglang_metadata(slots)
        return slots.tolist()


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []
        logging.getLogger("eplb").addHandler(self)

    def emit(self, record):
        self.lines.append(record.getMessage())


def fail(*_, **__):
    raise MemoryError("no memory for a plan")


def begin(rank, port):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)


def serve(rank, kind, port, fault, at, loads, stages):
    """Runs one rank of an engine, with a fault if it is one of the ranks `at`. Returns its maps, log and seconds."""
    begin(rank, port)
    groups = [dist.new_group(stage) for stage in stages]
    group = next(group for group, stage in zip(groups, stages) if rank in stage)
    log, engine, faulty = Lines(), kind(group), rank in at
    register(engine, fault if faulty else "")
    start, maps = time.monotonic(), []
    for number, load in enumerate(loads):
        dist.barrier(group)  # engines sum up the load over all ranks
        load, more = question(fault if faulty and number == 1 else "", torch.tensor(load))
        groups_asked = 1 if fault in ("no_plugin", "other_version") else None  # vLLM's own fails for None
        maps.append(engine.ask(load, groups_asked, **more))
    seconds = time.monotonic() - start
    alive = torch.ones(1)
    dist.all_reduce(alive, group=group)  # the group still serves the engine
    dist.barrier()
    return maps, log.lines, seconds, alive.item()


def register(engine, fault):
    if fault == "no_plugin":
        return
    if fault == "no_library":
        _library._library, os.environ["EPLB_LIBRARY"] = None, "/none/libeplb.so"
    if fault == "other_version":
        engine.install_other_version()
        try:
            return engine.register()
        except eplb.Unimplemented:
            return None  # SGLang continues without a plugin that fails
    if fault == "other_environment":
        os.environ.update(EPLB_PROFILES=PROFILES.name, TZ="Asia/Kolkata", LC_ALL="C", OMP_NUM_THREADS="7", PYTHONHASHSEED="1")
    engine.register(timeout=TIMEOUT, policy="deepseek" if fault == "other_policy" else "incremental")
    if fault == "plan_fails":
        placement.plan = fail


def question(fault, load):
    """Returns the load of a question and more arguments."""
    time.sleep(TIMEOUT / 2 if fault == "late" else 0)
    if fault == "nan":
        load = load.double()
        load[1, 3] = float("nan")
    if fault == "negative":
        load[1, 3] = -1
    return load, {"unknown": 1} if fault == "keyword" else {}


class Cases:
    def serve(self, fault="", at=(), loads=LOADS):
        """Returns the maps that all ranks answered with, and each rank's log."""
        found = self.succeed(WORLD, serve, self.KIND, ranks.harness.free_port(), fault, at, loads, [range(WORLD)])
        maps = [each[0] for each in found]
        for rank, (_, log, seconds, alive) in enumerate(found):
            self.assertLess(seconds, 4 * TIMEOUT, f"rank {rank}: {log}")
            self.assertEqual((maps[rank], alive), (maps[0], WORLD), f"rank {rank}: {log}")
        return maps[0], [each[1] for each in found]

    def assert_planned(self, before, after):
        self.assertNotEqual(before, after)
        for row in after:
            self.assertEqual(set(row), set(range(EXPERTS)))

    def test_all_ranks_use_the_plan_of_rank_0(self):
        for fault, at in (("", ()), ("late", (2,)), ("late", (0,)), ("other_policy", (1, 3)),
                          ("other_environment", (1,)), ("other_environment", (0,)), ("plan_fails", (2,))):
            with self.subTest(fault=fault, at=at):
                maps, logs = self.serve(fault, at)
                self.assertEqual(maps[0], START.tolist())  # a window without tokens moves nothing
                self.assert_planned(maps[0], maps[1])
                self.assert_planned(maps[1], maps[2])
                self.assertEqual(logs, [[]] * WORLD)

    def test_a_rank_without_the_library_uses_the_plan_of_rank_0(self):
        maps, logs = self.serve("no_library", (2,))
        self.assert_planned(maps[0], maps[1])
        self.assertEqual([len(log) for log in logs], [0, 0, 1, 0])
        self.assertIn("this rank cannot plan: EPLB_LIBRARY is /none/", logs[2][0])
        self.assertIn(". Rank 0 of its group plans for all ranks; if this is rank 0, the placement stays", logs[2][0])

    def test_all_ranks_keep_the_placement_if_rank_0_cannot_plan(self):
        for fault, cause, lines in (("no_library", "EPLB_LIBRARY is /none/libeplb.so", 2), ("plan_fails", "no memory", 1)):
            with self.subTest(fault=fault):
                maps, logs = self.serve(fault, (0,))
                self.assertEqual(maps, [START.tolist()] * 3)
                self.assertEqual([len(log) for log in logs], [lines, 0, 0, 0])
                self.assertRegex(logs[0][-1], f"the placement stays as it is: .*{cause}")

    def test_all_ranks_keep_the_placement_for_a_request_that_cannot_be_planned(self):
        for fault, cause in (("nan", "layer 1 expert 3 is nan"), ("negative", "layer 1 expert 3 is -"),
                             ("keyword", "unexpected keyword argument 'unknown'")):
            with self.subTest(fault=fault):
                maps, logs = self.serve(fault, range(WORLD))
                self.assertEqual(maps[1], START.tolist())
                self.assert_planned(maps[1], maps[2])
                self.assertEqual([len(log) for log in logs], [2, 0, 0, 0])
                self.assertIn(cause, logs[0][0])
                self.assertTrue(logs[0][1].endswith(": balances again"))

    def test_a_plan_that_lowers_no_load_keeps_the_placement_of_all_ranks(self):
        maps, logs = self.serve(loads=[LOADS[1], *[[[1000] * 8] * 2] * 2, LOADS[0], LOADS[2]])
        self.assert_planned(START.tolist(), maps[0])
        self.assertEqual(maps[2], maps[3])
        self.assertEqual(maps[1], maps[2])
        self.assert_planned(maps[3], maps[4])
        self.assertEqual(logs, [[]] * WORLD)

    def test_a_rank_without_the_plugin_makes_all_ranks_use_the_engines_own(self):
        for fault, absent, teller in (("no_plugin", 2, 0), ("no_plugin", 0, 1), ("other_version", 2, 0)):
            with self.subTest(fault=fault, absent=absent):
                maps, logs = self.serve(fault, (absent,))
                self.assertEqual(maps, [OWN] * 3)
                self.assertEqual([len(log) for log in logs], [int(rank == teller) for rank in range(WORLD)])
                self.assertRegex(logs[teller][0], f"rank {absent} of 4 lacks EPLB's plugin or was late: all ranks use {self.NAME}'s own")


class VllmTest(Cases, ranks.RankTest):
    KIND, NAME = Vllm, "vLLM"

    def test_each_pipeline_stage_agrees_by_itself(self):
        found = self.succeed(WORLD, serve, Vllm, ranks.harness.free_port(), "no_plugin", (3,), LOADS[1:], [(0, 1), (2, 3)])
        self.assertEqual([each[0][-1] == OWN for each in found], [False, False, True, True])
        self.assertEqual(found[0][0], found[1][0])
        self.assertIn("rank 1 of 2 lacks EPLB's plugin", found[2][1][0])

    def test_a_second_model_is_a_question_of_its_own(self):
        """The layers of the draft model differ from those of the main model, and both are asked for one after the other."""
        maps, logs = self.serve("late", (2,), [LOADS[1], LOADS[2][:1], LOADS[2]])
        self.assertEqual([len(each) for each in maps], [2, 1, 2])
        self.assertEqual(logs, [[]] * WORLD)


def serve_scaled(rank, port):
    begin(rank, port)
    engine = Sglang(None)
    engine.register(timeout=TIMEOUT)
    state = types.SimpleNamespace(has_scaled=False)
    manager = types.SimpleNamespace(instance=lambda: state)
    engine_stand_ins.module("sglang.srt.elastic_ep.elastic_ep", ElasticEPStateManager=manager)
    first = engine.ask(torch.tensor(LOADS[1]))
    state.has_scaled = True
    start = time.monotonic()
    second = engine.ask(torch.tensor(LOADS[2])) if rank == 0 else None
    seconds = time.monotonic() - start
    dist.barrier()
    return first, second, seconds


class SglangTest(Cases, ranks.RankTest):
    KIND, NAME = Sglang, "SGLang"

    def test_after_a_scale_up_rank_0_plans_alone(self):
        found = self.succeed(WORLD, serve_scaled, ranks.harness.free_port())
        first, second, seconds = found[0]
        self.assertEqual([each[0] for each in found], [first] * WORLD)
        self.assert_planned(first, second)
        self.assertLess(seconds, TIMEOUT)


if __name__ == "__main__":
    unittest.main()
