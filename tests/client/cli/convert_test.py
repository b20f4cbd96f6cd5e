"""eplbctl convert between the files of six systems, and their loads in plan and lint."""

import json
import re
import struct
import unittest
import zipfile

import command

FORMS = {"eplb": "p.json", "deepseek": "d.npz", "sglang": "s.json", "trtllm": "t.yaml", "vllm": "v.jsonl",
         "ascend": "a.json"}
FLAGS = ["--gpus", 2, "--nodes", 1, "--groups", 1, "--first-layer", 3]
MAPS = {"physical_to_logical_map": [[0, 1, 0, 2], [2, 0, 1, 0]],
        "logical_to_physical_map": [[[2, 0], [1, -1], [3, -1]], [[1, 3], [2, -1], [0, -1]]],
        "logical_replica_count": [[2, 1, 1], [2, 1, 1]]}
EPLB = {"format": "eplb.placement.v1", "num_layers": 2, "num_logical_experts": 3, "num_slots": 4, "num_gpus": 2,
        "num_nodes": 1, "num_groups": 1, **MAPS}
SLOTS = MAPS["physical_to_logical_map"]
ASCEND = {"moe_layer_count": 2, "layer_list": [
    {"layer_id": layer, "device_count": 2, "device_list": [
        {"device_id": device, "device_expert": row[2 * device:2 * device + 2]} for device in range(2)]}
    for layer, row in enumerate(SLOTS)]}
VLLM = {"record_type": "eplb_initial_mapping", "version": 1, "num_redundant_experts": 1, "num_slots": 4,
        "initial_global_assignments": {"0": SLOTS[0], "1": SLOTS[1]}}
TRTLLM = ("num_slots: 4\nlayer_updates_per_iter: 0\ninitial_global_assignments:\n"
          "  3: [0, 1, 0, 2]\n  4: [2, 0, 1, 0]\n")
STATS = {"record_type": "eplb_load_stats", "version": 1, "step": 10, "num_ranks": 2,
         "expert_load": [[3, 5, 4, 1], [2, 1, 9, 0]], "p2l_map": SLOTS}
LOAD = [[7, 5, 1], [1, 9, 2]]  # what STATS adds up to


def safetensors(tensors):
    header, data = {}, b""
    for name, numbers in tensors.items():
        raw = struct.pack(f"<{len(numbers)}q", *numbers)
        header[name] = {"dtype": "I64", "shape": [len(numbers)], "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def npy(shape, numbers):
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + struct.pack(f"<{len(numbers)}q", *numbers)


# Format -> the bytes of a file that is none of it, and a word of the message. The tests of each reader have the others.
MALFORMED = {
    "eplb": (json.dumps(MAPS), "format is missing"),
    "deepseek": (npy("(1000000000, 4)", [0]), "at most"),
    "sglang": ('{"physical_to_logical_map":[[0,1],[0]]}', "layer 1 has 1 entries"),
    "trtllm": ("a: &a [1]\nb: *a\n", "line 1"),
    "vllm": (json.dumps(VLLM) + "\n" + json.dumps(VLLM)[:20], "line 2"),
    "ascend": (json.dumps(ASCEND).replace('"device_count": 2', '"device_count": 3', 1), "device_count is 3"),
}


class ConvertTest(command.CommandTest):
    def path(self, name):
        return self.directory / name

    def convert(self, source, target, in_path, out_path, *more):
        if not {source, target} & {"sglang", "trtllm"} and more == tuple(FLAGS):
            more = more[:-2]  # refused where no file numbers the model's layers
        return command.run("convert", "--from", source, "--to", target, in_path, out_path, *more)

    def assert_converts(self, *arguments):
        result = self.convert(*arguments)
        self.assertEqual((result.returncode, result.stdout), (0, ""), result.stderr)
        self.assertLessEqual(result.stderr.count("\n"), 1)
        return result.stderr

    def test_each_format_is_written_as_its_system_reads_it(self):
        source = self.write("p.json", json.dumps(EPLB))
        for target, name in FORMS.items():
            self.assert_converts("eplb", target, source, self.path("out_" + name), *FLAGS)
        self.assertEqual(json.loads(self.path("out_p.json").read_text()), EPLB)
        self.assertEqual(json.loads(self.path("out_s.json").read_text()), {"physical_to_logical_map": [[0, 1, 2, 0]] * 3 + SLOTS})
        self.assertEqual(self.path("out_t.yaml").read_text(), TRTLLM)
        self.assertEqual(json.loads(self.path("out_v.jsonl").read_text()), VLLM)
        self.assertEqual(json.loads(self.path("out_a.json").read_text()), ASCEND)
        with zipfile.ZipFile(self.path("out_d.npz")) as archive:
            self.assertIsNone(archive.testzip())
            self.assertEqual(archive.namelist(), [name + ".npy" for name in MAPS])
            self.assertEqual(archive.read("physical_to_logical_map.npy"), npy("(2, 4)", sum(SLOTS, [])))
            self.assertEqual(archive.read("logical_to_physical_map.npy"),
                             npy("(2, 3, 2)", [2, 0, 1, -1, 3, -1, 1, 3, 2, -1, 0, -1]))
        for name, expected in (("x.json", json.dumps(MAPS, separators=(",", ":")) + "\n"),
                               ("x.csv", "0,1,0,2\n2,0,1,0\n")):
            self.assert_converts("eplb", "deepseek", source, self.path(name))
            self.assertEqual(self.path(name).read_text(), expected)
        self.assert_converts("eplb", "deepseek", source, self.path("x.npy"))
        self.assertEqual(self.path("x.npy").read_bytes(), npy("(2, 4)", sum(SLOTS, [])))

    def test_what_is_lost_or_assumed_is_one_note(self):
        said = self.assert_converts("eplb", "sglang", self.write("p.json", json.dumps(EPLB)), self.path("s.json"))
        self.assertRegex(said, r"\Aeplbctl: note: \S*s\.json: .*; .*\n\Z")
        self.assertIn("give --gpus 2 to convert back", said)

    def test_what_is_missing_names_its_flag_and_out_stays(self):
        source = self.write("s.json", json.dumps({"physical_to_logical_map": SLOTS}))
        out = self.write("out.yaml", "precious")
        before = sorted(entry.name for entry in self.directory.iterdir())
        for target, more, word in (("eplb", [], "--gpus"), ("eplb", ["--gpus", 0], "num_gpus"),
                                   ("eplb", ["--gpus", 2, "--nodes", 3], "nodes"), ("eplb", ["--gpus", "x"], "--gpus"),
                                   ("trtllm", ["--first-layer", -1], "--first-layer"), ("deepseek", [], ".npz"),
                                   ("nonsense", [], "--to")):
            with self.subTest(target=target, more=more):
                self.assert_fails(self.convert("sglang", target, source, out, *more), 2, word)
                self.assertEqual(out.read_text(), "precious")
        self.assertEqual(sorted(entry.name for entry in self.directory.iterdir()), before)
        self.assert_fails(command.run("convert", "--from", "sglang", source, out), 2, "--to")
        self.assert_fails(command.run("convert", "--from", "sglang", "--to", "vllm", source), 2, "--out is required")

    def test_malformed_files_are_exit_2_with_their_name(self):
        out = self.write("out.json", "precious")
        empty = self.write("empty", "")
        for source, (content, word) in MALFORMED.items():
            with self.subTest(source=source):
                path = self.write("bad", content)
                self.assert_fails(self.convert(source, "eplb", path, out, *FLAGS), 2, path, word)
                for unreadable in (self.path("missing"), self.directory, empty):
                    self.assert_fails(self.convert(source, "eplb", unreadable, out, *FLAGS), 2, unreadable)
                self.assertEqual(out.read_text(), "precious")

    def test_a_zip_bomb_is_not_unpacked(self):
        bomb = self.path("bomb.npz")
        with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("physical_to_logical_map.npy", npy("(1, 4)", [0, 1, 2, 3]) + b"\0" * (300 << 20))
        self.assertLess(bomb.stat().st_size, 1 << 20)
        self.assert_fails(self.convert("deepseek", "sglang", bomb, self.path("o.json")), 2, bomb, "at most")
        self.assert_fails(command.run("plan", "--load", bomb, "--gpus", 2, "--slots", 4), 2, bomb, "at most")

    def test_a_failed_write_is_exit_1(self):
        source = self.write("s.json", json.dumps({"physical_to_logical_map": SLOTS}))
        for out in (self.path("no") / "o.json", self.directory, "/dev/null"):
            self.assert_fails(self.convert("sglang", "vllm", source, out), 1, out)
        self.assert_converts("sglang", "vllm", source, source)  # in place
        self.assertEqual(json.loads(source.read_text()), VLLM)


class LoadFormatTest(command.CommandTest):
    def plan(self, load, *more):
        return command.run("plan", "--load", load, "--policy", "deepseek", "--gpus", 2, "--slots", 4, "-o", "json",
                           *more)

    def expected(self):
        return json.loads(self.plan(self.write("own.json", json.dumps(LOAD))).stdout)["placement"]

    def statistics(self):
        directory = self.directory / "statistics"
        directory.mkdir()
        (directory / "meta_info.json").write_text('{"num_experts": 3, "num_experts_per_token": 2, "ep_size": 2}')
        # Layers 3 and 4 of the model; iteration 9 is noise, 10 is LOAD.
        for rank, share in ((0, lambda n: n // 2), (1, lambda n: n - n // 2)):
            tensors = {f"10_{layer + 3}": [share(n) for n in row] for layer, row in enumerate(LOAD)}
            tensors.update({f"9_{layer + 3}": [1, 1, 100] for layer in range(2)})
            (directory / f"rank{rank}.safetensors").write_bytes(safetensors(tensors))
        return directory

    def test_peers_loads_are_known_by_their_content_and_by_name(self):
        expected = self.expected()
        noise = dict(STATS, step=9, expert_load=[[9, 9, 9, 9]] * 2)
        files = {
            "sglang": self.write("s.json", json.dumps({"logical_count": [[[9] * 3] * 2, LOAD], "rank": 0})),
            "vllm": self.write("v.jsonl", json.dumps(noise) + "\n" + json.dumps(STATS) + "\n"),
            "deepseek": self.write("d.csv", "7,5,1\n1,9,2\n"),
            "trtllm": self.statistics(),
        }
        archive = self.directory / "d.npz"
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as written:
            written.writestr("weight.npy", npy("(2, 3)", sum(LOAD, [])))
        for name, path in [*files.items(), ("deepseek", archive)]:
            for more in ((), ("--format", name)):
                with self.subTest(name=name, more=more):
                    result = self.plan(path, "--window", "last", *more)
                    self.assertEqual((result.returncode, result.stderr), (0, ""))
                    self.assertEqual(json.loads(result.stdout)["placement"], expected)
        own = self.write("own.json", json.dumps(LOAD))
        wanted = command.run("sweep", "--load", own, "--gpus", 2, "--slots", 4, "-o", "json").stdout
        for name, path in files.items():
            more = ("--gpus", 2, "--slots", 4, "-o", "json", "--format", name)
            sweep = command.run("sweep", "--load", path, "--window", "last", *more)
            self.assertEqual(sweep.returncode, 0, sweep.stderr)
            swept = json.loads(sweep.stdout)
            if swept["scored_on"] == "planned_load":  # one window, as `own` is
                self.assertEqual(swept, json.loads(wanted))
            self.assertEqual([row["slots"] for row in swept["rows"]], [4])
            replay = command.run("replay", "--trace", path, *more)
            self.assertEqual(replay.returncode, 0, replay.stderr)
            self.assertIn("balancedness_mean", json.loads(replay.stdout)["summary"])
        placement = self.write("p.json", json.dumps(expected))
        for path in files.values():
            self.assertEqual(command.run("lint", "--placement", placement, "--load", path).returncode, 0, path)
        other = command.run("lint", "--placement", self.write("p.json", json.dumps(EPLB)), "--load", files["trtllm"])
        self.assertEqual(other.returncode, 0, other.stdout)

    def test_each_flag_that_a_hint_names_is_taken_by_the_command_that_prints_it(self):
        dense = [[0] * 4] * 3
        between = [[0] * 4, [9, 1, 2, 3], [0] * 4, [4, 7, 8, 9]]
        loads = {name: self.write(name + ".json", json.dumps({"logical_count": rows}))
                 for name, rows in (("front", dense + [[9, 1, 2, 3]]), ("between", between))}
        maps = {name: self.write(name + "_map.json", json.dumps({"physical_to_logical_map": rows}))
                for name, rows in (("front", [[0, 1, 2, 3]] * 3 + [[3, 1, 2, 0]]),
                                   ("between", [[0, 1, 2, 3], [3, 1, 2, 0]] * 2))}
        shape = ("--gpus", 2, "--slots", 4)
        planned = self.plan(self.write("l.json", "[[9,1,2,3],[4,7,8,9]]")).stdout
        placement = self.write("p.json", json.dumps(json.loads(planned)["placement"]))
        for name, load in loads.items():
            for arguments in (("plan", "--load", load, *shape), ("sweep", "--load", load, *shape),
                              ("replay", "--trace", load, *shape), ("lint", "--placement", placement, "--load", load),
                              ("convert", "--from", "sglang", "--to", "vllm", maps[name], self.directory / "o")):
                with self.subTest(arguments=arguments):
                    said = command.run(*arguments).stderr
                    flags = re.search(r"give (--\S+ \S+) to leave them out", said)
                    self.assertIsNotNone(flags, said)
                    again = command.run(*arguments, *flags.group(1).split())
                    self.assertIn(again.returncode, (0, 8), again.stderr)
                    self.assertNotIn("leave them out", again.stderr)

    def test_a_named_format_takes_nothing_else(self):
        own = self.write("own.json", json.dumps({"format": "eplb.load.v1", "load": LOAD}))
        sglang = self.write("s.json", json.dumps({"logical_count": LOAD}))
        for path, name, word in ((own, "sglang", "logical_count"), (own, "vllm", "record"), (own, "deepseek", "tried"),
                                 (own, "trtllm", "directory"), (sglang, "eplb", "tried"), (own, "ascend", "is no load of ascend")):
            self.assert_fails(self.plan(path, "--format", name), 2, word)
            shape = ("--gpus", 2, "--slots", 4, "--format", name)
            self.assert_fails(command.run("sweep", "--load", path, *shape), 2, word)
            self.assert_fails(command.run("replay", "--trace", path, *shape), 2, word)
        for name in ("plan", "replay", "sweep", "lint"):
            self.assertIn("eplb|deepseek|sglang|vllm|trtllm|ascend", command.run(name, "--help").stdout)
        for name in ("plan", "convert"):
            self.assertRegex(" ".join(command.run(name, "--help").stdout.split()), r"vllm is the .* of an open pull request")


if __name__ == "__main__":
    unittest.main()
