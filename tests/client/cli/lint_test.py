"""eplbctl lint: each rule broken alone, all at once, and files that are no placement."""

import copy
import json
import random
import unittest

import command

# 2 layers, 3 experts in 4 slots on 2 GPUs; expert 0 has two replicas, in layer 1 the primary is slot 3.
GOOD = {
    "format": "eplb.placement.v1", "num_layers": 2, "num_logical_experts": 3, "num_slots": 4, "num_gpus": 2,
    "num_nodes": 1, "num_groups": 1,
    "physical_to_logical_map": [[0, 1, 0, 2], [2, 0, 1, 0]],
    "logical_to_physical_map": [[[0, 2], [1, -1], [3, -1]], [[3, 1], [2, -1], [0, -1]]],
    "logical_replica_count": [[2, 1, 1], [2, 1, 1]],
}
SHARES = [[0.25, 1, 0.75, 1], [1, 0.5, 1, 0.5]]


def changed(*path_and_value):
    *path, value = path_and_value
    placement = copy.deepcopy(GOOD)
    target = placement
    for key in path[:-1]:
        target = target[key]
    if value is None:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    return placement


# Each fault, with its placement and a word of each line that must be printed.
BROKEN = {
    "layers missing": (changed("num_layers", None), ["num_layers is missing"]),
    "slots are text": (changed("num_slots", "4"), ["num_slots is a string"]),
    "nodes zero": (changed("num_nodes", 0), ["num_nodes is 0"]),
    "groups real": (changed("num_groups", 1.5), ["num_groups is a number"]),
    "GPUs above slots": (changed("num_gpus", 8), ["fewer than the 8 GPUs"]),
    "nodes do not divide": (changed("num_nodes", 3), ["not a multiple of the 3 nodes"]),
    "fewer slots than experts": (changed("num_logical_experts", 5), ["fewer than the 5 experts"]),
    "map missing": (changed("physical_to_logical_map", None), ["physical_to_logical_map is missing"]),
    "counts missing": (changed("logical_replica_count", None), ["logical_replica_count is missing"]),
    "table missing": (changed("logical_to_physical_map", None), ["logical_to_physical_map is missing"]),
    "ragged map": (changed("physical_to_logical_map", 1, [2, 0, 1]), ["layer 1 has 3 entries, expected 4 slots"]),
    "layer too many": (changed("logical_replica_count", [[2, 1, 1]] * 3), ["has 3 layers, num_layers is 2"]),
    "ragged counts": (changed("logical_replica_count", 0, [2, 1]), ["logical_replica_count layer 0 has 2"]),
    "ragged table": (changed("logical_to_physical_map", 0, 1, [1]), ["layer 0 expert 1 has 1 entries"]),
    "id too large": (changed("physical_to_logical_map", 0, 3, 7), ["layer 0 slot 3 holds expert 7",
                                                                 "layer 0: expert 2 is in no slot"]),
    "id negative": (changed("physical_to_logical_map", 0, 0, -2), ["layer 0 slot 0 holds expert -2"]),
    "id is real": (changed("physical_to_logical_map", 0, 0, 0.5), ["physical_to_logical_map[0][0] is 0.5, expected an integer"]),
    "one slot empty": (changed("physical_to_logical_map", 0, 0, -1), ["layer 0 slot 0 holds -1, but GPU 0"]),
    "expert missing": (changed("physical_to_logical_map", 1, 2, 0), ["layer 1: expert 1 is in no slot"]),
    "count wrong": (changed("logical_replica_count", 1, 0, 1), ["logical_replica_count layer 1 expert 0 is 1"]),
    "slot out of range": (changed("logical_to_physical_map", 0, 2, [9, -1]), ["expert 2 names slot 9",
                                                                            "leaves out slot 3"]),
    "slot of another": (changed("logical_to_physical_map", 0, 2, [1, -1]), ["expert 2 names slot 1, where"]),
    "slot twice": (changed("logical_to_physical_map", 0, 0, [0, 0]), ["expert 0 names slot 0 twice",
                                                                    "expert 0 leaves out slot 2"]),
    "padding in front": (changed("logical_to_physical_map", 0, 1, [-1, 1]), ["padding -1 before slot 1"]),
    "padding too wide": (changed("logical_to_physical_map",
                                 [[row + [-1] for row in layer] for layer in GOOD["logical_to_physical_map"]]),
                         ["has 3 entries an expert, the largest replica count is 2"]),
    "share above 1": (changed("replica_share", [[1.5, 1, -0.5, 1], SHARES[1]]), ["slot 0 is 1.5", "slot 2 is -0.5"]),
    "share sum": (changed("replica_share", [[0.3, 1, 0.6, 1], SHARES[1]]), ["expert 0 sum to 0.9"]),
    "share shape": (changed("replica_share", [[1, 1, 1], SHARES[1]]), ["replica_share layer 0 has 3"]),
    "share text": (changed("replica_share", "half"), ["replica_share is a string"]),
    "slots_per_gpu wrong": (changed("slots_per_gpu", [3, 1]), ["slots_per_gpu of GPU 0 is 3", "of GPU 1 is 1"]),
    "slots_per_gpu short": (changed("slots_per_gpu", [4]), ["slots_per_gpu has 1 entries"]),
    "slots_per_gpu missing": (changed("num_gpus", 3), ["slots_per_gpu is missing"]),
}


class LintTest(command.CommandTest):
    def lint(self, placement, *more):
        self.path = self.write("p.json", placement if isinstance(placement, (str, bytes)) else json.dumps(placement))
        return command.run("lint", "--placement", self.path, *more)

    def assert_clean(self, result):
        self.assertEqual((result.returncode, result.stdout), (0, ""), result.stderr)

    def assert_broken(self, result, words):
        self.assertEqual(result.returncode, 8, result.stderr)
        lines = result.stdout.splitlines()
        for line in lines:
            self.assertTrue(line.startswith(f"{self.path}: ") or line.startswith(f"warning: {self.path}: "), line)
        for word in words:
            self.assertTrue(any(word in line for line in lines), (word, lines))

    def test_a_good_placement_breaks_nothing(self):
        self.assert_clean(self.lint(GOOD))
        self.assert_clean(self.lint(dict(GOOD, replica_share=SHARES, slots_per_gpu=[2, 2], note="x")))

    def test_several_loads_are_compared_and_their_balancedness_is_printed(self):
        loads = [self.write(f"{name}.json", json.dumps(rows)) for name, rows in
                 (("chat", [[4, 4, 4], [1, 2, 1]]), ("code", [[2, 9, 1], [1, 1, 2]]), ("odd", [[1, 2]]))]
        good = self.lint(GOOD, "--load", loads[0], "--load", loads[1])
        self.assert_clean(good)
        self.assertRegex(good.stderr, rf"balancedness [01]\.\d{{4}} under {loads[0]}; balancedness 0\.\d{{4}} under {loads[1]}\n")
        self.assertNotIn("balancedness", self.lint(GOOD, "--load", loads[0]).stderr)
        self.assert_broken(self.lint(GOOD, "--load", loads[0], "--load", loads[2]), [f"the load in {loads[2]} has 1"])

    def test_each_rule_is_told(self):
        self.assertGreaterEqual(len(BROKEN), 30)
        for name, (placement, words) in BROKEN.items():
            with self.subTest(name=name):
                self.assert_broken(self.lint(placement), words)

    def test_all_broken_rules_are_told_at_once(self):
        placement = changed("logical_replica_count", [[9, 1, 1], [2, 1, 8]])
        placement["physical_to_logical_map"][0][3] = 5
        placement["replica_share"] = [[0.25, 1, 0.7, 1], SHARES[1]]
        placement["num_nodes"] = 0
        result = self.lint(placement)
        self.assert_broken(result, ["num_nodes is 0", "holds expert 5", "expert 2 is in no slot", "expert 0 is 9",
                                    "expert 2 is 8", "names slot 3, where", "sum to 0.95"])

    def test_a_flood_of_findings_is_cut_and_counted(self):
        placement = dict(GOOD, num_layers=1000, physical_to_logical_map=[[9, 9, 9, 9]] * 1000)
        lines = self.lint(placement).stdout.splitlines()
        self.assertLess(len(lines), 500)
        self.assertTrue(any("more like the one above" in line for line in lines))

    def test_an_unusable_gpu_holds_minus_one_in_all_layers(self):
        empty = dict(GOOD, num_slots=6, num_gpus=3,
                     physical_to_logical_map=[[0, 1, -1, -1, 0, 2], [2, 0, -1, -1, 1, 0]],
                     logical_to_physical_map=[[[0, 4], [1, -1], [5, -1]], [[5, 1], [4, -1], [0, -1]]])
        self.assert_clean(self.lint(empty))
        half = copy.deepcopy(empty)
        half["physical_to_logical_map"][1] = [2, 0, 0, -1, 1, 0]
        self.assert_broken(self.lint(half), [
            "layer 0 slot 2 holds -1, but GPU 1 holds an expert in layer 1 slot 2",
            "layer 1 slot 3 holds -1"])

    def test_placements_of_other_systems_are_read(self):
        rows = GOOD["physical_to_logical_map"]
        devices = [{"device_list": [{"device_expert": row[:2]}, {"device_expert": row[2:]}]} for row in rows]
        good = {
            "trtllm": "num_slots: 4\ninitial_global_assignments:\n  3: [0, 1, 0, 2]\n  5: [2, 0, 1, 0]\n",
            "vllm": json.dumps({"record_type": "eplb_initial_mapping", "version": 1,
                                "initial_global_assignments": {"0": rows[0], "1": rows[1]}}) + "\n",
            "sglang": json.dumps({"physical_to_logical_map": rows}),
            "deepseek": "0,1,0,2\n2,0,1,0\n",
            "ascend": json.dumps({"layer_list": devices}),
        }
        for name, text in good.items():
            with self.subTest(name=name):
                result = self.lint(text, "--against", self.write("own.json", json.dumps(GOOD)))
                self.assert_clean(result)
                self.assertIn("is read as " + name, result.stderr)
                self.assert_broken(self.lint(text.replace("1", "2")) if name == "deepseek" else
                                   self.lint(text.replace("[0, 1, 0, 2]", "[0, 2, 0, 2]").replace("[0, 1]", "[0, 2]")),
                                   ["layer 0: expert 1 is in no slot"])
        self.assertIn("layers 3,5", self.lint(good["trtllm"]).stderr)
        broken = good["trtllm"].replace("[0, 1, 0, 2]", "[0, 0, -1, 9]")
        self.assert_broken(self.lint(broken, "--gpus", 2, "--strict"),
                           ["slot 2 holds no expert", "slot 3 holds expert 9", "GPU 0 holds expert 0 in 2 slots"])
        self.assert_broken(self.lint(good["trtllm"], "--gpus", 3), ["4 slots on 3 GPUs: in trtllm all"])
        self.assertIn("give --gpus: two replicas", self.lint(good["trtllm"]).stderr)
        for gpus in (-5, 0, 5, 1000000000):
            self.assert_fails(self.lint(good["trtllm"], "--gpus", gpus), 2, f"--gpus is {gpus}, expected 1..4")
        self.assert_fails(self.lint(good["ascend"], "--gpus", 4), 2, "the file has 2, --gpus is 4")
        self.assert_fails(self.lint(GOOD, "--gpus", 4), 2, "the file has 2, --gpus is 4")
        self.assert_fails(self.lint(GOOD, "--layers", "0"), 2, "--layers requires --load")
        wide = good["trtllm"].replace("0, 2]", "0, 2, 1]").replace("1, 0]", "1, 0, 0]").replace("4", "5")
        self.assert_broken(self.lint(GOOD, "--against", self.write("wide.yaml", wide)), ["num_slots is 4, in"])
        self.assert_fails(self.lint(good["trtllm"].replace("[0", "[")), 2, "initial_global_assignments layer 3")

    def test_duplicates_are_warnings_unless_strict(self):
        duplicates = changed("physical_to_logical_map", 0, [0, 0, 1, 2])
        duplicates["logical_to_physical_map"][0] = [[0, 1], [2, -1], [3, -1]]
        result = self.lint(duplicates)
        self.assertEqual(result.returncode, 0)
        self.assertEqual(result.stdout, f"warning: {self.path}: layer 0 GPU 0 holds expert 0 in 2 slots\n")
        strict = self.lint(duplicates, "--strict")
        self.assert_broken(strict, ["holds expert 0 in 2 slots"])
        self.assertNotIn("warning", strict.stdout)

    def test_shape_is_compared_with_a_placement_and_a_load(self):
        other = self.write("other.json", json.dumps(dict(GOOD, num_gpus=4, num_groups=3)))
        self.assert_broken(self.lint(GOOD, "--against", other), ["num_gpus is 2", "num_groups is 1"])
        load = self.write("load.json", "[[1,2,3],[4,5,6]]")
        self.assert_clean(self.lint(GOOD, "--load", load))
        load.write_text("[[1,2,3,4]]")
        self.assert_broken(self.lint(GOOD, "--load", load), ["num_layers is 2, the load in", "num_logical_experts is 3"])
        for name, content in (("--load", "x"), ("--against", "x"), ("--against", "{}"),
                              ("--against", '{"format":"eplb.placement.v1"}')):
            bad = self.write("bad", content)
            self.assert_fails(self.lint(GOOD, name, bad), 2, bad)
            self.assert_fails(self.lint(GOOD, name, self.directory / "missing"), 2, "missing")

    def test_what_is_no_placement_is_exit_2(self):
        text = json.dumps(GOOD)
        for content in ("", "x", "[]", "[[1,2]]", "{}", "42", text[:50], text + "}", "\ufeff" + text, b"\xff\xfe",
                        text.replace("placement.v1", "placement.v2"), text.replace('"format"', '"kind"'),
                        text.replace('"num_gpus"', '"num_slots"'), '{"format":["eplb.placement.v1"]}', "[" * 100000):
            with self.subTest(content=content[:40]):
                self.assert_fails(self.lint(content), 2, self.path)
        self.assert_fails(command.run("lint", "--placement", self.directory), 2, self.directory)
        self.assert_fails(command.run("lint"), 2, "--placement")

    def test_random_damage_never_crashes_it(self):
        seed = 5
        source = random.Random(seed)
        text = json.dumps(dict(GOOD, replica_share=SHARES, slots_per_gpu=[2, 2])).encode()
        for i in range(60):
            damaged = bytearray(text)
            for _ in range(source.randint(1, 3)):
                damaged[source.randrange(len(damaged))] = source.choice(b'0123456789-.,[]{}":ex ')
            result = self.lint(bytes(damaged))
            self.assertIn(result.returncode, (0, 2, 8), (seed, i, bytes(damaged), result.stderr))


if __name__ == "__main__":
    unittest.main()
