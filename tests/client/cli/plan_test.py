"""eplbctl plan: recorded cases, malformed loads, wrong flags, --out."""

import json
import os
import resource
import struct
import subprocess
import unittest

import command

GOLDEN = json.loads((command.DATA / "deepseek_eplb.json").read_text())["cases"]


def npy(descr, shape, data, fortran=False):
    header = f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}".encode()
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def flags(case):
    return ["--gpus", case["gpus"], "--nodes", case["nodes"], "--groups", case["groups"], "--slots", case["slots"]]


def unpadded(table):
    return [[[slot for slot in expert if slot >= 0] for expert in layer] for layer in table]


GOOD_NPY = npy("<i4", "(2, 3)", struct.pack("<6i", 1, 2, 3, 4, 5, 6))
WINDOW = '{"first_step":0,"last_step":9,"load":[[1,2,3],[4,5,6]]}\n'

# Name -> bytes of a load that cannot be used, and a word of the message.
MALFORMED = {
    "empty": (b"", "empty"),
    "blank": (b" \n\n", "empty"),
    "text": (b"hello\n", "tried"),
    "csv": (b"layer,expert,tokens\n0,0,5\n", "tried"),
    "csv_nan": (b"1,nan\n0,0\n", 'line 1, column 2 is "nan", expected a finite number'),
    "zeros": (b"\0" * 64, "tried"),
    "zip": (b"PK\x03\x04" + b"\0" * 30, "no whole zip archive"),
    "truncated_json": (b"[[1,2,3],[4,5", "line 1"),
    "trailing": (b"[[1,2,3]]]", "line 1"),
    "unquoted": (b"{load:[[1,2,3]]}", "line 1"),
    "single_quotes": (b"{'load':[[1,2,3]]}", "line 1"),
    "byte_order_mark": (b"\xef\xbb\xbf[[1,2,3]]", "byte order mark"),
    "utf16": ("[[1,2,3]]".encode("utf-16"), "tried"),
    "not_utf8": (b'{"format":"\xff\xfe","load":[[1]]}', "line 1"),
    "ragged": (b"[[1,2,3],[4,5,6],[7,8,9],[1,2]]", "layer 3 has 2 experts, layer 0 has 3"),
    "negative": (b"[[1,2,3],[4,-5,6]]", "layer 1 expert 1 is -5"),
    "negative_float": (b"[[1,2,3],[4,-0.5,6]]", "layer 1 expert 1"),
    "nan": (b"[[1,NaN,3]]", "line 1"),
    "infinity": (b"[[1,Infinity,3]]", "line 1"),
    "overflow": (b"[[1,1e999,3]]", "1e999"),
    "above_int64": (b"[[1,9223372036854775808,3]]", "9223372036854775808"),
    "sum_above_int64": (b"[[9223372036854775807,9223372036854775807]]", "sum"),
    "string": (b'[[1,"2",3]]', "a string"),
    "null": (b"[[1,null,3]]", "null"),
    "bool": (b"[[1,true,3]]", "a boolean"),
    "object_inside": (b"[[1,{},3]]", "an object"),
    "flat": (b"[1,2,3]", "levels"),
    "deep": (b"[[[[1,2,3]]]]", "levels"),
    "no_layers": (b"[]", "no layers"),
    "no_experts": (b"[[],[]]", "0 experts"),
    "scalar": (b"42", "tried"),
    "other_object": (b'{"counts":[[1,2,3]]}', "tried"),
    "other_format": (b'{"format":"eplb.load.v9","load":[[1,2,3]]}', "eplb.load.v9"),
    "placement": (b'{"format":"eplb.placement.v1"}', "is a placement"),
    "key_twice": (b'{"format":"eplb.load.v1","load":[[1,2]],"load":[[3,4]]}', "given twice"),
    "no_load": (b'{"format":"eplb.load.v1"}', "load is missing"),
    "very_deep": (b"[" * 100000, "nested"),
    "deep_objects": (b'{"a":' * 100000, "nested"),
    "torn_trace": ((WINDOW + WINDOW[:30]).encode(), "line 2"),
    "negative_in_trace": ((WINDOW + WINDOW.replace("5", "-5", 1)).encode(), "line 2"),
    "shapes_in_trace": ((WINDOW + WINDOW.replace("3]", "3,0]")).encode(), "line 2"),
    "other_line_in_trace": ((WINDOW + "[[1,2,3],[4,5,6]]\n").encode(), "line 2"),
    "steps_backwards": ((WINDOW.replace("0", "5", 1) + WINDOW).encode(), "line 2"),
    "steps_swapped": (b'{"first_step":9,"last_step":0,"load":[[1,2,3]]}', "first_step"),
    "npy_magic": (b"\x93NUMPX" + GOOD_NPY[6:], "tried"),
    "npy_only_magic": (GOOD_NPY[:6], "truncated"),
    "npy_half_header": (GOOD_NPY[:40], "truncated"),
    "npy_half_data": (GOOD_NPY[:-5], "truncated"),
    "npy_trailing": (GOOD_NPY + b"\0", "too long"),
    "npy_absurd": (npy("<i8", "(1000000, 1000000)", b"\0" * 8), "at most"),
    "npy_claims_more": (npy("<i8", "(16384, 16384)", b"\0" * 8), "truncated"),
    "npy_big_endian": (npy(">i4", "(1, 2)", b"\0" * 8), "big endian"),
    "npy_float16": (npy("<f2", "(1, 2)", b"\0" * 4), "float16"),
    "npy_object": (npy("|O", "(1, 2)", b"\0" * 16), "pickle"),
    "npy_one_dimension": (npy("<i4", "(2,)", b"\0" * 8), "dimensions"),
    "npy_nan": (npy("<f8", "(1, 2)", struct.pack("<2d", 1, float("nan"))), "expert 1"),
    "npy_negative": (npy("<i2", "(1, 2)", struct.pack("<2h", 1, -1)), "expert 1"),
    "npy_above_int64": (npy("<u8", "(1, 2)", struct.pack("<2Q", 1, 1 << 63)), "9223372036854775808"),
}


class RecordedCasesTest(command.CommandTest):
    def plan(self, case, tie_break, *more):
        load = self.write("load.json", json.dumps(case["weight"]))
        return command.run("plan", "--load", load, "--policy", "deepseek", "--tie-break", tie_break, "-o", "json",
                           *flags(case), *more)

    def test_every_recorded_case_in_both_tie_orders(self):
        checked = 0
        for case in GOLDEN:
            if "error" in case or min(map(min, case["weight"])) < 0:
                continue
            for tie_break in ("compat", "stable"):
                prefix = "stable_" if tie_break == "stable" else ""
                with self.subTest(case=case["name"], tie_break=tie_break):
                    result = self.plan(case, tie_break)
                    self.assertEqual((result.returncode, command.without_notes(result.stderr)), (0, ""))
                    placement = json.loads(result.stdout)["placement"]
                    expected = case.get(prefix + "phy2log", case["phy2log"])
                    self.assertEqual(placement["physical_to_logical_map"], expected)
                    expected = case.get(prefix + "log2phy", case["log2phy"])
                    self.assertEqual(unpadded(placement["logical_to_physical_map"]), unpadded(expected))
                    self.assertEqual(placement["logical_replica_count"], case["logcnt"])
                    checked += 1
        self.assertGreater(checked, 80)

    def test_every_refused_case_is_exit_2(self):
        refused = [case for case in GOLDEN if "error" in case or min(map(min, case["weight"])) < 0]
        self.assertGreater(len(refused), 2)
        for case in refused:
            with self.subTest(case=case["name"]):
                self.assert_fails(self.plan(case, "stable"), 2)

    def test_hierarchy_none_is_the_case_without_groups_and_nodes(self):
        case = next(case for case in GOLDEN if case["name"] == "readme_example")
        alone = dict(case, groups=1, nodes=1)
        none = json.loads(self.plan(case, "stable", "--hierarchy", "none").stdout)["placement"]
        self.assertEqual(none["physical_to_logical_map"],
                         json.loads(self.plan(alone, "stable").stdout)["placement"]["physical_to_logical_map"])
        self.assertEqual((none["num_nodes"], none["num_groups"]), (2, 4))


class MalformedLoadTest(command.CommandTest):
    def assert_refused(self, path, word):
        out = self.write("out.json", "precious")
        before = sorted(entry.name for entry in self.directory.iterdir())
        result = command.run("plan", "--load", path, "--gpus", 1, "--slots", 4, "--out", out)
        self.assert_fails(result, 2, path, word)
        self.assertEqual(out.read_text(), "precious")
        self.assertEqual(sorted(entry.name for entry in self.directory.iterdir()), before)

    def test_each_is_one_line_with_the_files_name(self):
        self.assertGreaterEqual(len(MALFORMED), 30)
        for name, (content, word) in MALFORMED.items():
            with self.subTest(name=name):
                self.assert_refused(self.write(f"{name}.load", content), word)

    def test_what_is_no_file_is_refused_without_waiting(self):
        os.mkfifo(self.directory / "pipe")
        for path, word in ((self.directory, "directory"), (self.directory / "pipe", "regular file"),
                           ("/dev/zero", "regular file"), (self.directory / "missing", "No such file")):
            with self.subTest(path=path):
                self.assert_refused(path, word)

    def test_a_name_with_a_line_break_stays_one_line(self):
        self.assert_fails(command.run("plan", "--load", self.write("a\nb\x1b[31m", "x"), "--gpus", 1, "--slots", 4), 2)

    def test_only_deepseek_refuses_what_float32_cannot_hold(self):
        load = self.write("large.json", "[[1,1e39,3]]")
        arguments = ["plan", "--load", load, "--gpus", 2, "--slots", 4, "-o", "json"]
        self.assert_fails(command.run(*arguments, "--policy", "deepseek"), 2, load, "float32")
        plan = json.loads(command.run(*arguments).stdout, parse_constant=self.fail)
        self.assertEqual(plan["bound"]["gap_max"], 0)

    def test_stored_files_are_refused_by_name(self):
        files = sorted((command.DATA / "malformed").iterdir())
        self.assertGreater(len(files), 3)
        for path in files:
            with self.subTest(file=path.name):
                self.assert_refused(path, path.name)


class PlanFlagsTest(command.CommandTest):
    def setUp(self):
        super().setUp()
        self.load = self.write("load.json", json.dumps([[5, 1, 2, 9], [3, 3, 3, 3]]))

    def plan(self, *more):
        return command.run("plan", "--load", self.load, "--gpus", 2, *more)

    def test_wrong_flags_are_exit_2_with_one_line(self):
        for words, message in ((("--slots", 6, "--redundant", 2), "exclude"), ((), "--slots"),
                               (("--slots", "x"), "--slots"), (("--slots", 3), "--slots"), (("--slots", -6), "--slots"),
                               (("--slots", 99999999999), "--slots"), (("--redundant", -1), "--redundant"),
                               (("--slots", 6, "--policy", "best"), "best"), (("--slots", 6, "--nodes", 3), "nodes"),
                               (("--slots", 6, "--nodes", 0), "--nodes"), (("--slots", 6, "--groups", 0), "--groups"),
                               (("--slots", 6, "--window", "mean"), "mean"), (("--slots", 6, "-o", "xml"), "xml"),
                               (("--slots", 6, "--hierarchy", "strict", "--nodes", 2), "--hierarchy strict"),
                               (("--slots", 6, "--hierarchy", "soft", "--nodes", 2), "hierarchy soft"),
                               (("--slots", 6, "--groups", 3), "--groups 3"), (("--nonsense",), "--nonsense"),
                               (("--slots", 6, "--split", "best"), "--split"), (("--slots", 6, "--effort", "max"), "--effort"),
                               (("--slots", 6, "--gpu-speed", "1"), "--gpu-speed: 1 GPU speeds for 2 GPUs"),
                               (("--slots", 6, "--gpu-speed", "1,fast"), "--gpu-speed is \"1,fast\""),
                               (("--slots", 6, "--gpu-speed", "1,0"), "GPU 1 has speed 0"),
                               (("--slots", 6, "--gpu-speed", "1,nan"), '--gpu-speed is "1,nan"'),
                               (("--slots", 6, "--gpu-speed", "1,1e9"), "--gpu-speed: GPU 1"),
                               (("--slots", 6, "--unusable-gpus", "2"), "--unusable-gpus: unusable GPU 2"),
                               (("--slots", 6, "--unusable-gpus=-1"), "--unusable-gpus: unusable GPU -1"),
                               (("--slots", 6, "--unusable-gpus", "1,1"), "given twice"),
                               (("--slots", 6, "--unusable-gpus", "0,1"), "all 2 GPUs"),
                               (("--slots", 6, "--unusable-gpus", "1,"), "--unusable-gpus is \"1,\""),
                               (("--slots", 6, "--unusable-gpus", "1.5"), "--unusable-gpus is"),
                               (("--slots", 6, "--unusable-gpus", "1"), "policy balanced: the 1 usable GPUs have 3 slots"),
                               (("--slots", 6, "--max-moves-per-gpu", -1), "--max-moves-per-gpu is -1"),
                               (("--slots", 6, "--policy", "incremental"), "policy incremental needs --previous"),
                               (("--slots", 6, "stray"), "stray"), (("--slots", 6, "--slots", 6), "--slots")):
            with self.subTest(flags=words):
                self.assert_fails(self.plan(*words), 2, message)

    def test_an_empty_value_is_exit_2_with_the_flag(self):
        for flag in ("--previous", "--out", "--gpu-speed", "--unusable-gpus", "--window", "--policy"):
            for words in ((flag, ""), ("--slots", 6, flag, "")):
                self.assert_fails(self.plan(*words), 2, f"{flag} has an empty value")
        self.assert_fails(command.run("plan", "--load", "", "--gpus", 2, "--slots", 6), 2, "--load has an empty value")

    def test_a_limit_of_moves_without_a_past_is_noted(self):
        result = self.plan("--slots", 6, "--max-moves-per-gpu", 1)
        self.assertEqual(result.returncode, 0)
        self.assertEqual(result.stderr, "eplbctl: note: --max-moves-per-gpu has no effect without --previous\n")

    def test_a_previous_placement_of_another_system_is_named_with_its_command(self):
        previous = self.write("balancer.yaml", "num_slots: 2\ninitial_global_assignments:\n  0: [0, 1]\n")
        load = self.write("load.json", "[[1,2]]")
        result = command.run("plan", "--load", load, "--gpus", 2, "--slots", 2, "--previous", previous)
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stderr, f"eplbctl: {previous}: is a placement of trtllm, convert it: eplbctl convert "
                                        f"--from trtllm {previous} OUT.json\n")

    def test_a_previous_placement_that_lint_calls_broken_is_refused(self):
        placement = json.loads(self.plan("--slots", 5, "-o", "json").stdout)["placement"]
        previous = self.write("previous.json", json.dumps(placement))
        self.assertEqual(self.plan("--slots", 5, "--previous", previous).returncode, 0)
        del placement["slots_per_gpu"]
        previous.write_text(json.dumps(placement))
        self.assertEqual(command.run("lint", "--placement", previous).returncode, 8)
        self.assert_fails(self.plan("--slots", 5, "--previous", previous), 2, previous, "slots_per_gpu is missing")

    def test_what_a_policy_does_not_take_is_refused_with_its_name(self):
        for flags, name in ((("--hierarchy", "soft"), "--hierarchy soft"), (("--gpu-speed", "1,1"), "--gpu-speed"),
                            (("--unusable-gpus", "0"), "--unusable-gpus"), (("--allow-duplicates",), "--allow-duplicates"),
                            (("--max-moves-per-gpu", 1), "--max-moves-per-gpu")):
            self.assert_fails(self.plan("--slots", 6, "--policy", "deepseek", *flags), 2,
                              f"policy deepseek does not take {name}")
        for policy in ("balanced", "incremental"):
            self.assert_fails(self.plan("--slots", 6, "--policy", policy, "--tie-break", "compat"), 2,
                              f"policy {policy} does not take --tie-break compat")

    def test_shapes_that_the_reference_refuses_are_exit_2_with_its_name(self):
        self.assert_fails(self.plan("--slots", 5, "--policy", "deepseek"), 2, "policy deepseek: ", "multiple")
        self.assert_fails(self.plan("--slots", 6, "--policy", "deepseek", "--groups", 3), 2, "expert groups")
        # K % N != 0: the reference falls back to its global branch, which never looks at E % K.
        more = ("--slots", 6, "--nodes", 2, "--groups", 3)
        self.assertEqual(self.plan("--policy", "deepseek", *more).returncode, 0)
        self.assert_fails(self.plan(*more), 2, "--groups 3")

    def test_flags_of_any_policy_are_taken(self):
        for policy in ("balanced", "deepseek"):
            for words in (("--effort", "thorough"), ("--split", "equal"), ("--split", "optimal"), ("--tie-break", "stable"),
                          ("--hierarchy", "strict"), ("--hierarchy", "none"), ("--window", "last")):
                with self.subTest(policy=policy, flags=words):
                    self.assertEqual(self.plan("--slots", 6, "--policy", policy, *words).returncode, 0)

    def test_redundant_is_slots_beyond_the_experts(self):
        by_slots, by_redundant = (json.loads(self.plan(*words, "-o", "json").stdout)["placement"]
                                  for words in (("--slots", 6), ("--redundant", 2)))
        self.assertEqual(by_slots, by_redundant)


class PlanOutputTest(command.CommandTest):
    def setUp(self):
        super().setUp()
        self.rows = [[5, 1, 2, 9], [0, 0, 0, 0], [7, 7, 7, 7]]
        self.load = self.write("load.json", json.dumps(self.rows))
        self.arguments = ["plan", "--load", self.load, "--gpus", 2, "--slots", 6]

    def test_json_has_exactly_the_promised_keys_and_figures(self):
        plan = json.loads(command.run(*self.arguments, "-o", "json").stdout)
        self.assertEqual(plan["policy"], "balanced")
        self.assertEqual(list(plan), ["policy", "placement", "balancedness", "scored_on", "later_windows",
                                      "max_gpu_load_per_layer", "bound", "duplicates", "moves", "solve_seconds"])
        self.assertEqual(list(plan["balancedness"]), ["formula", "mean", "min", "per_layer"])
        self.assertEqual(list(plan["bound"]), ["max_gpu_load_per_layer", "gap_per_layer", "gap_mean", "gap_max"])
        self.assertEqual(plan["moves"], {"transfers": 0, "slots_changed": 0, "max_per_gpu": 0, "cross_node": 0})
        self.assertEqual((plan["balancedness"]["per_layer"][1], plan["bound"]["gap_per_layer"][1]), (None, None))
        self.assertEqual((plan["scored_on"], plan["later_windows"]), ("planned_load", None))
        placement = plan["placement"]
        for layer, slots in enumerate(placement["physical_to_logical_map"]):
            gpus = [sum(self.rows[layer][e] / slots.count(e) for e in slots[g:g + 3]) for g in (0, 3)]
            self.assertAlmostEqual(plan["max_gpu_load_per_layer"][layer], max(gpus))
            self.assertLessEqual(plan["bound"]["max_gpu_load_per_layer"][layer], max(gpus))
            if layer != 1:
                self.assertAlmostEqual(plan["balancedness"]["per_layer"][layer], sum(gpus) / 2 / max(gpus))
        loaded = [plan["balancedness"]["per_layer"][layer] for layer in (0, 2)]
        self.assertAlmostEqual(plan["balancedness"]["mean"], sum(loaded) / 2)
        self.assertEqual(plan["balancedness"]["min"], min(loaded))

    def test_a_load_without_tokens_has_no_figures(self):
        self.load.write_text("[[0,0,0,0]]")
        result = command.run(*self.arguments, "-o", "json")
        plan = json.loads(result.stdout, parse_constant=self.fail)
        self.assertEqual(result.returncode, 0)
        self.assertEqual(result.stderr, "eplbctl: note: the load has no tokens, so that no layer has figures\n")
        self.assertEqual([plan["balancedness"][key] for key in ("mean", "min", "per_layer")], [None, None, [None]])
        self.assertEqual([plan["bound"][key] for key in ("gap_mean", "gap_max", "gap_per_layer")], [None, None, [None]])
        table = command.run(*self.arguments)
        self.assertEqual(table.returncode, 0)
        self.assertNotIn("1.0000", table.stdout)

    def test_a_layer_without_load_is_noted_and_blank(self):
        result = command.run(*self.arguments)
        self.assertEqual(result.stderr, "eplbctl: note: 1 layer without load (the first is layer 1) has no balancedness, no "
                                        "gap and no part in means\n")
        self.assertRegex(result.stdout, r"\n +1 +- +- ")

    def test_a_trace_is_also_scored_on_its_later_windows(self):
        # The hot expert moves after window 1: planned on windows 0 and 1, it is wrong for 2 and 3.
        loads = [[90, 1, 1, 8]] * 2 + [[1, 90, 8, 1]] * 2
        trace = self.write("trace.jsonl", "".join(
            json.dumps({"first_step": i, "last_step": i, "load": [load]}) + "\n" for i, load in enumerate(loads)))
        arguments = ["plan", "--load", trace, "--gpus", 2, "--slots", 6]
        plan = json.loads(command.run(*arguments, "-o", "json").stdout)
        later = plan["later_windows"]
        self.assertEqual((plan["scored_on"], later["planned_windows"], later["scored_windows"]), ("planned_load", 2, 2))
        # GPU loads of either later window: an expert with one slot has its 90 tokens on one GPU.
        self.assertLess(later["balancedness_mean"], plan["balancedness"]["mean"] - .2)
        self.assertEqual(later["balancedness_min"], later["balancedness_mean"])
        text = " ".join(command.run(*arguments).stdout.split())
        self.assertIn("on the load that the plan was made for. Planned on windows 0..1, scored on windows 2..3: balancedness "
                      f"{later['balancedness_mean']:.4f}", text)
        self.assertIn("on the load that the plan was made for; later loads are less balanced",
                      " ".join(command.run(*self.arguments).stdout.split()))

    def test_slots_that_the_engines_cannot_hold_are_planned_and_noted(self):
        load = self.write("wide.json", json.dumps(command.draw(2, 64)))
        out = self.directory / "out.json"
        result = command.run("plan", "--load", load, "--gpus", 7, "--redundant", 8, "--out", out)
        note = ("note: 7 GPUs do not divide 72 slots (11 on the first 2, 10 on the others); the engines' formats need "
                "slots % GPUs == 0, next: 77 slots\n")
        self.assertEqual((result.returncode, result.stderr), (0, "eplbctl: " + note))
        self.assertEqual(json.loads(out.read_text())["slots_per_gpu"], [11, 11] + [10] * 5)
        linted = command.run("lint", "--placement", out)
        self.assertEqual(linted.returncode, 0)
        self.assertTrue(linted.stderr.endswith(": no rule is broken; " + note), linted.stderr)
        even = command.run("plan", "--load", load, "--gpus", 7, "--slots", 77)
        self.assertEqual((even.returncode, even.stderr), (0, ""))

    def test_the_largest_counts_have_finite_figures(self):
        self.load.write_text(json.dumps([[2**63 - 1, 0, 0, 0], [2**61] * 3 + [0]]))
        json.loads(command.run(*self.arguments, "-o", "json").stdout, parse_constant=self.fail)
        self.assertEqual(command.run(*self.arguments).returncode, 0)

    def test_a_trace_is_the_sum_of_its_windows(self):
        trace = self.write("trace.jsonl", "".join(
            json.dumps({"first_step": i, "last_step": i, "load": [[i, 2 * i, 5, 1]]}) + "\n" for i in range(4)))
        total = self.write("total.json", json.dumps([[6, 12, 20, 4]]))
        plans = [json.loads(command.run("plan", "--load", path, "--gpus", 2, "--slots", 6, "-o", "json").stdout)
                 for path in (trace, total)]
        for key in ("placement", "balancedness", "max_gpu_load_per_layer", "bound"):
            self.assertEqual(plans[0][key], plans[1][key])
        self.assertEqual(command.run("plan", "--load", command.DATA / "moe64_aux.jsonl", "--gpus", 8, "--slots", 72,
                                     "--window", "ema:0.9").returncode, 0)

    def test_out_is_a_placement_that_lint_and_previous_accept(self):
        out = self.directory / "out.json"
        first = command.run(*self.arguments, "--out", out, "-o", "json")
        self.assertEqual(json.loads(out.read_text()), json.loads(first.stdout)["placement"])
        self.assertEqual(command.run("lint", "--placement", out, "--load", self.load, "--against", out).returncode, 0)
        again = json.loads(command.run(*self.arguments, "--previous", out, "-o", "json").stdout)
        self.assertEqual(again["moves"], {"transfers": 0, "slots_changed": 0, "max_per_gpu": 0, "cross_node": 0})
        self.load.write_text("[[1,9,9,1],[0,5,0,0],[1,2,3,4]]")
        moved = json.loads(command.run(*self.arguments, "--previous", out, "-o", "json").stdout)
        before, after = (json.loads(text)["physical_to_logical_map"] for text in
                         (out.read_text(), json.dumps(moved["placement"])))
        changed = sum(a != b for old, new in zip(before, after) for a, b in zip(old, new))
        arrivals = [len(set(new[g:g + 3]) - set(old[g:g + 3])) for old, new in zip(before, after) for g in (0, 3)]
        self.assertEqual((moved["moves"]["slots_changed"], moved["moves"]["transfers"], moved["moves"]["max_per_gpu"]),
                         (changed, sum(arrivals), max(arrivals)))

    def test_previous_must_be_a_placement_of_the_same_shape(self):
        out = self.directory / "out.json"
        command.run(*self.arguments, "--out", out)
        self.assert_fails(command.run("plan", "--load", self.load, "--gpus", 2, "--slots", 8, "--previous", out), 2, out)
        broken = self.write("broken.json", out.read_text().replace("[[", "[[7,", 1))
        self.assert_fails(command.run(*self.arguments, "--previous", broken), 2, broken)
        self.assert_fails(command.run(*self.arguments, "--previous", self.directory / "no"), 2, "no")

    def test_a_failed_write_is_exit_1_and_leaves_nothing(self):
        names = sorted(entry.name for entry in self.directory.iterdir())
        for out in (self.directory / "no" / "out.json", self.directory, "/dev/null"):
            self.assert_fails(command.run(*self.arguments, "--out", out), 1, out)
        out = self.write("out.json", "precious")
        full = command.run(*self.arguments, "--out", out,
                           preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16)))
        self.assert_fails(full, 1, out)
        self.assertEqual(out.read_text(), "precious")
        self.assertEqual(sorted(entry.name for entry in self.directory.iterdir()), sorted(names + ["out.json"]))

    def test_a_stdout_that_cannot_be_written_is_exit_1(self):
        self.load.write_text("[[5,1,2,9]]")  # nothing to note
        with open("/dev/full", "w") as full:
            result = subprocess.run([command.EPLBCTL, *map(str, self.arguments)], stdout=full, stderr=subprocess.PIPE,
                                    text=True, timeout=command.DEADLINE)
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr.count("\n"), 1)

    def test_help_and_version_are_on_stdout(self):
        for arguments in (("--help",), ("plan", "--help"), ("lint", "-h"), ("get", "placement", "--help"),
                          ("--version",)):
            result = command.run(*arguments)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertTrue(result.stdout)
        for arguments in ((), ("nonsense",), ("get",), ("get", "nonsense")):
            self.assert_fails(command.run(*arguments), 2)


if __name__ == "__main__":
    unittest.main()
