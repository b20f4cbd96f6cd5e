"""eplb.profiles: the file, and the placements of eplb.vllm and eplb.sglang with one."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import numpy as np
import torch

import engine_stand_ins
import eplb
import eplb.sglang
import eplb.vllm
from engines import check_maps, peaks
from eplb import placement, profiles
from eplb.profiles import Profile

# Two workloads that are each uneven where the other is even.
CHAT, CODE = [[90, 80, 10, 20]], [[90, 10, 80, 20]]


class FileTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "profiles.json")

    def written(self, content):
        pathlib.Path(self.path).write_text(content if isinstance(content, str) else json.dumps(content))
        return self.path

    def test_what_is_written_is_read(self):
        profiles.write(self.path, [Profile("chat", torch.tensor(CHAT)), Profile("code", np.array(CODE, float), 2)])
        found = profiles.read(self.path)
        self.assertEqual((found.names, found.weights.tolist(), found.measured_weight), (("chat", "code"), [1, 2], 3))
        self.assertEqual(found.loads.tolist(), [CHAT, CODE])
        profiles.write(self.path, [Profile("chat", CHAT)], measured_weight=0)
        self.assertEqual(profiles.read(pathlib.Path(self.path)).measured_weight, 0)

    def test_a_file_that_cannot_be_used_gets_one_line(self):
        def file(**changed):
            return {"format": "eplb.profiles.v1", "profiles": [{"name": "chat", "load": CHAT, **changed}]}

        two = [{"name": "chat", "load": CHAT}, {"name": "code", "load": [[1, 2]]}]
        for content, message in (
                ("{", "is no JSON: "), ([], 'expected an object with "format": "eplb.profiles.v1"$'),
                ({"format": "eplb.load.v1"}, "expected an object with"), ({**file(), "profiles": []}, "is no list of 1 to 63"),
                ({**file(), "profiles": two[:1] * 64}, "is no list of 1 to 63"), ({**file(), "profiles": [7]}, "profile 0 has no"),
                ({**file(), "profiles": two[:1] * 2}, "profile 1 has no name of its own$"),
                ({**file(), "measured": 1}, "unknown key 'measured', expected format, profiles, measured_weight$"),
                ({**file(), "measured_weight": -1}, "measured_weight: -1, expected a number, 0 or 1e-9..1e9$"),
                ({**file(), "measured_weight": 2e9}, "measured_weight: 2000000000.0, expected"),
                (file(wieght=1), "profile 'chat': unknown key 'wieght', expected name, weight, load$"),
                (file(weight=0), "profile 'chat': weight: 0, expected a number, 1e-9..1e9$"),
                (file(weight=1e-12), "profile 'chat': weight: 1e-12, expected"), (file(weight=float("nan")), "weight: nan, expected"),
                (file(weight=10 ** 400), "profile 'chat': weight: an integer of 1329 bits is above a double's range$"),
                (file(weight=True), "profile 'chat': weight: True, expected"), (file(weight="1"), "profile 'chat': weight: '1'"),
                (file(load=[1, 2]), r"profile 'chat': load has shape \[2\], expected \[layers, experts\]$"),
                (file(load=[[1], [1, 2]]), "profile 'chat': load: list, expected numbers"),
                (file(load=None), "profile 'chat': load: object"), (file(load=[[]]), r"profile 'chat': load has shape \[1, 0\]"),
                (file(load=[[0, 0]]), "profile 'chat': load: expected tokens of at least 0, some above 0, and a finite sum in each layer$"),
                (file(load=[[1, 2], [1e308, 1e308]]), "profile 'chat': load: expected tokens"),
                (file(load=[[1, -2]]), "profile 'chat': load: expected tokens"),
                (file(load=[[1, float("nan")]]), "profile 'chat': load: expected tokens"),
                ({**file(), "profiles": two}, r"profile 'code': load has shape \[1, 2\], that of the first has \[1, 4\]$")):
            with self.subTest(message), self.assertRaisesRegex(eplb.InvalidArgument, f"^{self.path}: .*{message}") as caught:
                profiles.read(self.written(content))
            self.assertNotIn("\n", str(caught.exception))
        with self.assertRaisesRegex(eplb.InvalidArgument, "^/nonexistent: No such file or directory$"):
            profiles.read("/nonexistent")
        with self.assertRaisesRegex(eplb.InvalidArgument, "weight: -1"):
            profiles.write("/nonexistent/file", [Profile("chat", CHAT, -1)])

    def test_load_files_become_profiles(self):
        trace = pathlib.Path(os.environ["EPLB_DATA"], "moe64_aux.jsonl")
        one = pathlib.Path(self.path).with_name("one.json")
        windows = [json.loads(line)["load"] for line in trace.read_text().splitlines()]
        one.write_text(json.dumps({"format": "eplb.load.v1", "load": windows[0]}))
        run = [sys.executable, "-B", "-m", "eplb.profiles", self.path]
        environment = {**os.environ, "PATH": f"{os.environ['EPLB_BIN']}:{os.environ['PATH']}"}
        done = subprocess.run([*run, f"all={trace}", f"one={one}"], capture_output=True, text=True, timeout=60, env=environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = profiles.read(self.path)
        self.assertEqual(found.names, ("all", "one"))
        self.assertEqual(found.loads.tolist(), [np.sum(windows, axis=0).tolist(), windows[0]])
        for argument, message in (("chat", "eplb.profiles: chat: expected NAME=FILE"), ("chat=/nonexistent", "/nonexistent")):
            done = subprocess.run([*run, argument], capture_output=True, text=True, timeout=60, env=environment)
            self.assertEqual(done.returncode, 2)
            self.assertIn(message, done.stderr)


class EnginesTest(unittest.TestCase):
    START = torch.tensor([[0, 1, 2, 3]])

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(engine_stand_ins.remove)
        self.path = os.path.join(folder.name, "profiles.json")
        profiles.write(self.path, [Profile("chat", CHAT), Profile("code", CODE)])
        self.policies, (self.algorithms, _) = engine_stand_ins.vllm(), engine_stand_ins.sglang()

    def pairs(self, slots):
        return sorted(sorted(pair) for pair in slots.reshape(2, 2).tolist())

    def asked_vllm(self, policy, load=CHAT, incumbent=START):
        return policy.rebalance_experts(1000 * torch.tensor(load), 4, 1, 1, 2, incumbent)

    def asked_sglang(self, hook, load=CHAT):
        return hook(1000 * torch.tensor(load)[None], 4, 2, None, 1, "deepseek")

    def test_both_engines_serve_the_profiles_and_the_measured_load(self):
        for policy in ("balanced", "incremental"):
            for incumbent in (None, self.START):
                made = eplb.vllm.make_policy(policy, profiles=self.path)
                check_maps(self, self.asked_vllm(made, CODE, incumbent), 1, 4, 4)
                self.assertEqual(self.pairs(self.asked_vllm(made, CHAT, incumbent)[0]), [[0, 3], [1, 2]])
            hook = eplb.sglang.make_hook(policy, profiles=self.path)
            self.assertEqual(self.pairs(self.asked_sglang(hook)[0]), [[0, 3], [1, 2]])
        chosen = eplb.vllm.register("balanced", profiles=self.path)
        self.assertEqual(self.pairs(self.asked_vllm(chosen)), [[0, 3], [1, 2]])
        hook = eplb.sglang.register("balanced", profiles=self.path)
        self.assertEqual(self.pairs(self.asked_sglang(hook)[0]), [[0, 3], [1, 2]])

    def test_the_environment_names_the_file(self):
        with mock.patch.dict(os.environ, EPLB_PROFILES=self.path):
            self.assertEqual(self.pairs(self.asked_vllm(eplb.vllm.register("balanced"))), [[0, 3], [1, 2]])
        self.assertNotEqual(self.pairs(self.asked_vllm(eplb.vllm.register("balanced"))), [[0, 3], [1, 2]])

    def test_the_measured_load_has_the_weight_of_all_profiles_unless_the_file_has_another(self):
        random = np.random.default_rng(3)
        loads = random.pareto(1.5, (3, 2, 8)) + .1
        kept = [Profile("a", loads[0], 2), Profile("b", loads[1], 3)]
        for measured, expected in ((None, placement.plan(loads=loads, weights=[2, 3, 5], num_slots=12, num_gpus=4,
                                                         allow_duplicates=True)),
                                   (0, placement.plan(loads=loads[:2], weights=[2, 3], num_slots=12, num_gpus=4,
                                                      allow_duplicates=True))):
            profiles.write(self.path, kept, measured)
            slots = eplb.vllm.make_policy("balanced", profiles=self.path).rebalance_experts(
                torch.tensor(loads[2]), 12, 1, 1, 4)[0]
            self.assertEqual(slots.tolist(), expected.physical_to_logical_map.tolist())
            figures = [1 / 4 / peaks(load / load.sum(axis=1, keepdims=True), slots, 4) for load in loads]
            np.testing.assert_allclose(figures[:len(expected.scenarios)], expected.scenarios)

    def test_weights_at_the_ends_of_their_range_are_planned_for(self):
        for weight, measured in ((1e-9, 2e-9), (1e9, 1e9)):
            profiles.write(self.path, [Profile("chat", CHAT, weight), Profile("code", CODE, weight)])
            self.assertEqual(profiles.read(self.path).measured_weight, measured)
            slots = self.asked_vllm(eplb.vllm.make_policy("balanced", profiles=self.path))[0]
            self.assertEqual(self.pairs(slots), [[0, 3], [1, 2]])

    def test_profiles_of_another_shape_are_logged_once_and_left_aside(self):
        load = torch.tensor([[5, 4, 3, 2, 1, 1]])
        policy, plain = eplb.vllm.make_policy("balanced", profiles=self.path), eplb.vllm.make_policy("balanced")
        with self.assertLogs("eplb") as log:
            for _ in range(2):
                slots = policy.rebalance_experts(load, 6, 1, 1, 2)[0]
                self.assertTrue(torch.equal(slots, plain.rebalance_experts(load, 6, 1, 1, 2)[0]))
        self.assertEqual(len(log.output), 1)
        self.assertIn(f"{self.path} is not used: its loads have shape [1, 4], weight has [1, 6]", log.output[0])

    def test_a_file_or_policy_that_cannot_be_used_is_named_at_registration(self):
        for register in (eplb.vllm.register, eplb.sglang.register):
            with self.assertRaisesRegex(eplb.InvalidArgument, "^/nonexistent: No such file or directory$"):
                register(profiles="/nonexistent")
            with self.assertRaisesRegex(eplb.InvalidArgument, "policy deepseek plans for one load; use incremental or balanced"):
                register("deepseek", profiles=self.path)


if __name__ == "__main__":
    unittest.main()
