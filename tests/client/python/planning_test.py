"""eplb._planning: what rank 0 of an engine asks a daemon, beside modules that stand for the engines, and a stand-in for the calls."""

import ctypes
import os
import socket
import time
import unittest
import unittest.mock

import numpy as np
import torch

import engine_stand_ins
import eplb
import eplb.sglang
import eplb.vllm
from eplb import _library, _planning

LOAD = torch.tensor([[90, 80, 10, 20, 30, 40, 5, 6]])
START = torch.arange(12)[None] % 8
MOVED = START.flip(1)


class Calls:
    """In the place of the library's calls: answers with `slots`, or keeps the current placement if they are None."""

    def __init__(self, test):
        self.slots, self.endpoint, self.asked, self.settled = None, gone(), [], []
        test.addCleanup(_planning.Daemon._runs.clear)
        for name in ("eplb_ask_plan", "eplb_settle_plan"):
            patch = unittest.mock.patch.object(_library.load(), name, getattr(self, name))
            patch.start()
            test.addCleanup(patch.stop)

    def eplb_ask_plan(self, question, slots, answer):
        asked = {name: getattr(question._obj, name) for name, _ in question._obj._fields_}
        for name, columns in (("counts", asked["num_experts"]), ("current", asked["num_slots"])):
            cells = (ctypes.c_int64 * (asked["num_layers"] * columns)).from_address(asked[name])
            asked[name] = np.array(cells).reshape(-1, columns).tolist()
        self.asked.append(asked)
        if self.slots is not None:
            answer._obj.changes, answer._obj.version, answer._obj.endpoint = 1, len(self.asked), self.endpoint.encode()
            given = np.ascontiguousarray(self.slots, np.int64)
            ctypes.memmove(slots, given.ctypes.data, given.nbytes)
        return 0

    def eplb_settle_plan(self, question, answer, taken, reason):
        self.settled.append((question._obj.job.decode(), answer._obj.version, taken, reason.decode()))
        return 0


def gone():
    """An endpoint without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class QuestionTest(unittest.TestCase):
    def setUp(self):
        self.policies = engine_stand_ins.vllm()
        self.addCleanup(engine_stand_ins.remove)
        self.calls = Calls(self)

    def register(self, **settings):
        return eplb.vllm.register(endpoint="daemon:1", job="chat", **settings)

    def test_a_question_has_what_the_engine_measured_and_its_answer_is_settled(self):
        policy, self.calls.slots = self.register(expert_bytes=44, timeout=8), MOVED
        self.assertTrue(torch.equal(policy.rebalance_experts(LOAD + 0.4, 12, None, 1, 4, START), MOVED))
        policy, self.calls.slots = self.register(expert_bytes=44), None  # a second time, as plugins may be loaded
        self.assertTrue(torch.equal(policy.rebalance_experts(0 * LOAD, 12, None, 1, 4, MOVED), MOVED))
        first, second = self.calls.asked
        self.assertEqual((first["counts"], first["current"]), (LOAD.tolist(), START.tolist()))
        self.assertEqual((second["counts"], second["current"]), ([[0] * 8], MOVED.tolist()))
        self.assertEqual((first["job"], first["endpoint"], first["engine"]), (b"chat-1x8", b"daemon:1", b"vLLM"))
        self.assertEqual((first["number"], second["number"], first["replaces_run_id"]), (1, 2, b""))
        self.assertEqual((first["run_id"], len(first["run_id"])), (second["run_id"], 32))
        self.assertEqual((first["expert_bytes"], first["timeout_s"]), (44, 6))
        self.assertEqual([first[f"num_{name}"] for name in ("layers", "experts", "slots", "gpus", "nodes", "groups")],
                         [1, 8, 12, 4, 1, 1])
        self.assertEqual(self.calls.settled, [("chat-1x8", 1, 1, "")])

    def test_nodes_and_groups_count_as_in_the_algorithm_of_the_engine(self):
        policy = self.register()
        for (groups, nodes), expected in (((4, 2), (4, 2)), ((3, 2), (1, 2)), ((None, 4), (1, 4)), ((1, 3), (1, 1))):
            policy.rebalance_experts(LOAD, 12, groups, nodes, 4, START)
            asked = self.calls.asked[-1]
            self.assertEqual((asked["num_groups"], asked["num_nodes"]), expected)
        algorithms, location = engine_stand_ins.sglang()
        location.metadata = engine_stand_ins.sglang_metadata(START)
        eplb.sglang.register(endpoint="daemon:1", job="chat")
        for algorithm, expected in (("deepseek", 1), ("deepseek_hierarchical", 4)):
            algorithms.rebalance_experts(LOAD[None], 12, 3, 4, 2, algorithm)
            asked = self.calls.asked[-1]
            self.assertEqual((asked["engine"], asked["num_groups"], asked["num_nodes"]), (b"SGLang", expected, 2))

    def test_models_are_jobs_and_another_shape_is_another_run_of_the_job(self):
        policy = self.register()
        for load, slots, gpus in ((LOAD, 12, 4), (LOAD.repeat(2, 1), 12, 4), (LOAD, 16, 8), (LOAD, 12, 4)):
            policy.rebalance_experts(load, slots, 1, 1, gpus, torch.arange(slots).repeat(len(load), 1) % 8)
        main, draft, grown, shrunk = self.calls.asked
        self.assertEqual([each["job"] for each in self.calls.asked], [b"chat-1x8", b"chat-2x8", b"chat-1x8", b"chat-1x8"])
        self.assertEqual(len({each["run_id"] for each in self.calls.asked}), 4)
        self.assertEqual([each["replaces_run_id"] for each in self.calls.asked], [b"", b"", main["run_id"], grown["run_id"]])
        self.assertEqual([each["number"] for each in self.calls.asked], [1] * 4)

    def test_without_a_current_placement_the_next_question_has_the_answer_of_the_engine(self):
        def maps(weight, num_replicas, num_groups, num_nodes, num_ranks, old_global_expert_indices=None) -> tuple:
            return MOVED, None, None

        for own, expected in ((None, engine_stand_ins.own_map(1, 8, 12)), (maps, MOVED)):
            if own:
                self.policies["default"] = type("Policy", (), {"rebalance_experts": staticmethod(own)})
            policy = self.register()
            policy.rebalance_experts(LOAD, 12, 1, 1, 4)
            self.assertEqual(self.calls.asked, [])
            policy.rebalance_experts(LOAD, 12, 1, 1, 4)
            self.assertEqual(self.calls.asked.pop()["current"], expected.tolist())

    def test_a_rank_without_a_daemon_keeps_the_answer_of_the_engine_as_the_others_do(self):
        def own(weight, num_replicas, num_groups, num_nodes, num_ranks, old_global_expert_indices=None):
            answers.append(START.roll(len(answers) + 1, 1))  # another one each time, as for other loads
            return answers[-1]

        self.policies["default"] = type("Policy", (), {"rebalance_experts": staticmethod(own)})
        for policy in (eplb.vllm.register(returns="map"), self.register(returns="map")):
            answers = []
            maps = [policy.rebalance_experts(0 * LOAD, 12, 1, 1, 4) for _ in range(2)]
            self.assertTrue(torch.equal(maps[0], answers[0]))
            self.assertTrue(torch.equal(maps[1], answers[0]))

    def test_a_load_that_cannot_be_one_is_not_sent(self):
        policy = self.register()
        for load, message in ((LOAD / 0 * 0, "is nan"), (-LOAD, "is -90"), (LOAD[0], "has shape")):
            with self.assertLogs("eplb") as log:
                self.assertTrue(torch.equal(policy.rebalance_experts(load, 12, 1, 1, 4, START), START))
            self.assertIn(message, log.output[0])
        self.assertEqual(self.calls.asked, [])

    def test_an_outcome_that_this_rank_does_not_know_is_not_reported(self):
        policy, self.calls.slots = self.register(), MOVED
        guard = policy.rebalance_experts
        for error, settled in ((eplb.DeadlineExceeded("rank 2 of 4"), [("chat-1x8", 1, 0, "rank 2 of 4")]),
                               (eplb.Unavailable("the job's store"), []), (RuntimeError("store"), [])):
            self.calls.asked, self.calls.settled = [], []
            guard._plan(guard._arguments((LOAD, 12, 1, 1, 4, START), {}))
            guard._settle(error)
            guard._settle(None)
            self.assertEqual(self.calls.settled, settled)


class GoneTest(unittest.TestCase):
    def setUp(self):
        engine_stand_ins.vllm()
        self.addCleanup(engine_stand_ins.remove)

    def test_without_an_answer_the_placement_stays_and_the_cause_is_logged_once(self):
        endpoint = gone()
        policy = eplb.vllm.register(endpoint=endpoint, job="chat", timeout=1)
        with self.assertLogs("eplb") as log:
            for _ in range(3):
                self.assertTrue(torch.equal(policy.rebalance_experts(LOAD, 12, 1, 1, 4, START), START))
            calls = Calls(self)
            policy.rebalance_experts(LOAD, 12, 1, 1, 4, START)
        self.assertEqual([line.split(": ", 1)[1] for line in log.output], [
            f"the placement stays as it is: eplbd at {endpoint}: connection refused", "balances again"])
        self.assertEqual(calls.asked[0]["number"], 4)  # questions in vain count

    def test_a_daemon_that_ends_before_the_report_delays_the_engine_by_less_than_a_second(self):
        settle, calls = _library.load().eplb_settle_plan, Calls(self)
        calls.slots = MOVED
        policy = eplb.vllm.register(endpoint="daemon:1", job="chat")
        with unittest.mock.patch.object(_library.load(), "eplb_settle_plan", settle), self.assertLogs("eplb") as log:
            start = time.monotonic()
            self.assertTrue(torch.equal(policy.rebalance_experts(LOAD, 12, 1, 1, 4, START), MOVED))
        self.assertLess(time.monotonic() - start, 1)
        self.assertIn(f"the daemon received no report whether its placement was taken: eplbd at {calls.endpoint}: connection refused",
                      log.output[0])


class SettingsTest(unittest.TestCase):
    def test_what_cannot_be_a_daemon_is_named(self):
        for given, variables, message in (
                ({"job": "chat"}, {}, "^endpoint: None, expected that of an eplbd beside job 'chat', here or in EPLB_ENDPOINT$"),
                ({"endpoint": "a:1"}, {}, r"^job: None, expected 1..100 characters of \[A-Za-z0-9._-\], here or in EPLB_JOB$"),
                ({"endpoint": "a:1", "job": "my chat"}, {}, "^job: 'my chat', expected"),
                ({"endpoint": "a:1", "job": "x" * 101}, {}, "^job: "),
                ({"endpoint": 7, "job": "chat"}, {}, "^endpoint: 7, expected"),
                ({"endpoint": "nonsense", "job": "chat"}, {}, "^endpoint: 'nonsense', expected HOST:PORT or unix:PATH"),
                ({"endpoint": "a:1", "job": "chat", "expert_bytes": -1}, {}, "^expert_bytes is -1, expected at least 0$"),
                ({"endpoint": "a:1", "job": "chat", "policy": "balanced"}, {},
                 r"^policy: given beside endpoint a:1, whose daemon has the settings of job chat \(eplbctl set policy\)$"),
                ({"endpoint": "a:1", "job": "chat", "max_moves_per_gpu": -1}, {}, "^max_moves_per_gpu: given beside"),
                ({"endpoint": "a:1", "job": "chat", "profiles": "p.json"}, {}, "^profiles: given beside"),
                ({"endpoint": "a:1", "job": "chat"}, {"EPLB_PROFILES": "p.json"}, "^EPLB_PROFILES: given beside"),
                ({"effort": "fast"}, {"EPLB_JOB": "chat", "EPLB_ENDPOINT": "a:1"}, "^effort: given beside endpoint a:1")):
            for register in (eplb.vllm.register, eplb.sglang.register):
                with self.subTest(message), unittest.mock.patch.dict(os.environ, variables):
                    with self.assertRaisesRegex(eplb.InvalidArgument, message):
                        register(**given)

    def test_an_endpoint_in_the_environment_counts_with_a_job(self):
        for variables, given, asks in (({"EPLB_ENDPOINT": "a:1"}, {}, False), ({"EPLB_ENDPOINT": "a:1", "EPLB_JOB": "chat"}, {}, True),
                                       ({"EPLB_ENDPOINT": "a:1"}, {"job": "chat"}, True), ({"EPLB_JOB": "chat"}, {"endpoint": "a:1"}, True)):
            with unittest.mock.patch.dict(os.environ, variables):
                found = _planning.daemon_of("vLLM", given.get("endpoint"), given.get("job"), 0)
            self.assertEqual(found is not None, asks)


if __name__ == "__main__":
    unittest.main()
