"""python -m eplb.convert: recorder dumps become load files; nothing that a file contains is executed."""

import collections
import contextlib
import io
import json
import os
import pathlib
import pickle
import resource
import subprocess
import sys
import tempfile
import types
import unittest
import zipfile

import numpy as np
import torch

from eplb import _torch_file, convert

BIN = pathlib.Path(os.environ["EPLB_BIN"])


class Call:
    """Pickles into a call of any function."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


class ConvertTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="eplb-convert-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.dump, self.out = self.directory / "dump.pt", self.directory / "out.jsonl"
        self.counts = torch.arange(1, 1 + 3 * 2 * 4, dtype=torch.int32).view(3, 2, 4)

    def run_convert(self, *arguments, in_process=True):
        arguments = [str(each) for each in arguments]
        if not in_process:
            return subprocess.run([sys.executable, "-B", "-m", "eplb.convert", *arguments], capture_output=True, text=True,
                                  timeout=120)
        with contextlib.redirect_stdout(io.StringIO()) as stdout, contextlib.redirect_stderr(io.StringIO()) as stderr:
            try:
                code = convert.main(arguments)
            except SystemExit as end:
                code = end.code
        return types.SimpleNamespace(returncode=code, stdout=stdout.getvalue(), stderr=stderr.getvalue())

    def convert(self, dump, out=None, *more):
        torch.save(dump, self.dump)
        done = self.run_convert(self.dump, out or self.out, *more)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        return [json.loads(line) for line in (out or self.out).read_text().splitlines()]

    def refuse(self, *words, write=None, in_process=True):
        if write is not None:
            torch.save(write, self.dump)
        done = self.run_convert(self.dump, self.out, in_process=in_process)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertRegex(done.stderr, r"\Aeplb\.convert: [^\n]+\n\Z")
        for word in (str(self.dump), *words):
            self.assertIn(word, done.stderr)
        self.assertFalse(self.out.exists())

    def recorded(self, **more):
        return {"rank": 0, "logical_count": self.counts, "average_utilization_rate_over_window": 0.75, **more}

    def test_each_step_becomes_a_window(self):
        lines = self.convert(self.recorded(), self.out, "--first-step", "100")
        self.assertEqual(lines, [{"first_step": 100 + step, "last_step": 100 + step, "load": self.counts[step].tolist()}
                                 for step in range(3)])

    def test_a_sum_becomes_one_load(self):
        out = self.directory / "out.json"
        line, = self.convert(self.recorded(), out)
        self.assertEqual(line, {"format": "eplb.load.v1", "load": self.counts.sum(0).tolist()})

    def assert_eplbctl_agrees(self, source, converted, *more):
        """The same figures for a file and for what eplb.convert makes of it, however eplbctl reads it."""
        for command in (["plan", "--load"], ["replay", "--trace"]):
            plans = []
            for arguments in ([source, *more], [converted]):
                done = subprocess.run([BIN / "eplbctl", *command, *map(str, arguments), "--gpus", "2", "--slots", "4", "-o", "json"],
                                      capture_output=True, text=True, timeout=120)
                self.assertEqual(done.returncode, 0, done.stderr)
                plans.append({key: value for key, value in json.loads(done.stdout).items() if key != "solve_seconds"})
            self.assertEqual(*plans)

    def test_eplbctl_reads_the_files_as_they_are(self):
        whole = torch.arange(100, dtype=torch.int64)
        choices = torch.tensor([[[0, 3], [1, -1]], [[3, 2], [1, 0]]])
        dense = torch.cat([torch.zeros(3, 3, 4, dtype=torch.int32), self.counts], dim=1)
        for dump, more in ((self.recorded(), ()), (self.recorded(nested=[collections.OrderedDict(a=[None, torch.rand(2)])]), ()),
                           (self.recorded(logical_count=dense), ("--first-layer", 3)), (self.counts[0], ()), (self.counts, ()),
                           (whole[10:34].view(3, 2, 4), ()), (whole[:48].view(3, 2, 8)[:, :, ::2], ()),
                           (whole[:24].view(4, 2, 3).permute(2, 1, 0), ()),
                           *((self.counts.to(dtype), ()) for dtype in (torch.uint8, torch.int8, torch.int16, torch.float16,
                                                                        torch.bfloat16, torch.float32, torch.float64)),
                           *((choices.to(dtype), ("--experts", 4)) for dtype in (torch.int8, torch.int16, torch.int64))):
            self.convert(dump, self.out, *more)
            self.assert_eplbctl_agrees(self.dump, self.out, *more)

    def test_eplbctl_reads_router_traces_as_they_are(self):
        line = {"stage": "pre_dispatch", "block": "decoder"}
        files = self.traces([{**line, "step": 7, "layer": 4, "top_indices": [[0, 1], [1, 2]]},
                             {**line, "step": 7, "layer": 2, "top_indices": [[0, 1]]},
                             {**line, "step": 9, "block": "mtp", "mtp_idx": 0, "layer": 0, "top_indices": [[2, 1]]}],
                            [{**line, "step": 9, "layer": 4, "top_indices": []}, {**line, "step": 7, "layer": 2, "top_indices": [[0, 2]]}])
        for source, converted in ((files[0], files[:1]), (self.directory, files)):
            self.run_convert(*converted, self.out, "--experts", 3)
            self.assert_eplbctl_agrees(source, self.out, "--experts", 3)

    def test_views_types_and_extras_of_tensors(self):
        whole = torch.arange(100, dtype=torch.int64)
        for counts in (whole[10:34].view(3, 2, 4), whole[:48].view(3, 2, 8)[:, :, ::2], whole[:24].view(4, 2, 3).permute(2, 1, 0),
                       self.counts.float(), self.counts.bfloat16(), self.counts.to(torch.uint8), self.counts.double()):
            lines = self.convert(self.recorded(logical_count=counts, average_utilization_rate_over_window=torch.rand(3),
                                               extra=torch.nn.Parameter(torch.rand(2)), size=torch.Size([1]),
                                               nested=collections.OrderedDict(a=[None, True, (1.5, "b")])))
            self.assertEqual([line["load"] for line in lines], counts.long().tolist())

    def test_a_matrix_is_one_step(self):
        self.assertEqual(len(self.convert({"logical_count": self.counts[0]})), 1)

    def test_a_plain_tensor_of_counts(self):
        self.assertEqual(self.convert(self.counts), self.convert(self.recorded()))

    def test_choices_of_a_routing_replay_are_counted(self):
        choices = torch.tensor([[[0, 3], [1, -1]], [[3, 2], [1, 0]]], dtype=torch.int16)
        self.assertEqual(self.convert(choices, None, "--experts", "4"),
                         [{"first_step": 0, "last_step": 0, "load": [[1, 0, 1, 2], [1, 2, 0, 0]]}])
        torch.save(choices, self.dump)
        done = self.run_convert(self.dump, self.out, "--experts", 3)
        self.assertIn(f"{self.dump}: has expert 3 in layer 0, --experts is 3", done.stderr)

    def traces(self, *ranks):
        files = [self.directory / f"router_trace_rank{rank}.jsonl" for rank in range(len(ranks))]
        for file, lines in zip(files, ranks):
            file.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
        return files

    def test_router_traces_are_summed_over_ranks(self):
        def line(step, layer, indices, **more):
            return {"step": step, "stage": "pre_dispatch", "block": "decoder", "layer": layer, "top_indices": indices, **more}

        files = self.traces([line(7, 4, [[0, 1], [1, 2]]), line(7, 2, [[0, 1]]), line(7, 0, [[2, 1]], block="mtp", mtp_idx=0),
                             line(9, 2, [[0, 2]])], [line(7, 2, [[0, 2]])])
        self.assertEqual(self.run_convert(*files, self.out, "--experts", 3).returncode, 0)
        found = [json.loads(each)["load"] for each in self.out.read_text().splitlines()]
        self.assertEqual(found, [[[2, 1, 1], [1, 2, 1], [0, 1, 1]], [[1, 0, 1], [0, 0, 0], [0, 0, 0]]])

    def test_bad_router_traces_are_refused_by_line(self):
        good = {"step": 0, "layer": 1, "top_indices": [[0]]}
        for bad, words in (("{", "line 2 is no JSON"), ({**good, "step": -1}, "line 2 has no step, layer and top_indices"),
                           ({**good, "top_indices": [[0], [1, 2]]}, "line 2 has top_indices that are no integers"),
                           ({**good, "top_indices": [[0.9]]}, "line 2 has top_indices that are no integers"),
                           ({**good, "top_indices": [[True]]}, "line 2 has top_indices that are no integers"),
                           ({**good, "top_indices": [[9]]}, "line 2 has expert 9 in layer 1, --experts is 4")):
            file, = self.traces([good, bad])
            done = self.run_convert(file, self.out, "--experts", 4)
            self.assertEqual((done.returncode, done.stderr[:len(f"eplb.convert: {file}: ")]), (2, f"eplb.convert: {file}: "))
            self.assertIn(words, done.stderr)
        file, = self.traces([])
        self.assertIn("has no line", self.run_convert(file, self.out, "--experts", 4).stderr)
        self.assertIn("give --experts", self.run_convert(*self.traces([good]), self.out).stderr)
        self.assertIn("leave out --first-layer", self.run_convert(*self.traces([good]), self.out, "--experts", 4, "--first-layer", 1).stderr)

    def test_a_trace_is_not_overwritten_and_a_shorter_one_is_noted(self):
        good = {"step": 0, "layer": 1, "top_indices": [[0]]}
        files = self.traces([good, {**good, "step": 1}], [good])
        before = files[1].read_text()
        done = self.run_convert(*files, "--experts", 4)
        self.assertEqual((done.returncode, files[1].read_text()), (2, before))
        self.assertIn("a router trace: name the file to write at the end", done.stderr)
        done = self.run_convert(*files, self.out, "--experts", 4)
        self.assertEqual(done.stderr, f"eplb.convert: note: {files[1]}: it lacks 1 of 2 pairs of a step and a layer that other files have\n")

    def test_several_dumps_are_one_trace(self):
        paths = [self.directory / f"dump_{number}.pt" for number in range(3)]
        for number, path in enumerate(paths):
            torch.save(self.recorded(logical_count=self.counts + number), path)
        done = self.run_convert(*paths, self.out, "--first-step", 10)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        lines = [json.loads(line) for line in self.out.read_text().splitlines()]
        self.assertEqual([line["first_step"] for line in lines], list(range(10, 19)))
        self.assertEqual(lines[8]["load"], (self.counts[2] + 2).tolist())
        torch.save(self.recorded(logical_count=self.counts[:, :1]), paths[1])
        done = self.run_convert(*paths, self.out)
        self.assertEqual(done.returncode, 2)
        self.assertIn(f"{paths[1]}: has 1 layers x 4 experts, {paths[0]} has 2 x 4", done.stderr)

    def test_rows_of_dense_layers_are_left_out_or_said(self):
        model = torch.cat([torch.zeros(3, 3, 4, dtype=torch.int32), self.counts], dim=1)
        torch.save(self.recorded(logical_count=model), self.dump)
        done = self.run_convert(self.dump, self.out)
        self.assertEqual(done.returncode, 0)
        self.assertEqual(done.stderr, f"eplb.convert: note: {self.dump}: rows 0..2 of each step have no tokens, as dense layers "
                                      f"have; give --first-layer 3 to leave them out\n")
        lines = self.convert(self.recorded(logical_count=model), self.out, "--first-layer", "3")
        self.assertEqual([line["load"] for line in lines], self.counts.tolist())
        done = self.run_convert(self.dump, self.out, "--first-layer", "4")
        self.assertIn("--first-layer 4 leaves out 1 rows that have tokens", done.stderr)
        done = self.run_convert(self.dump, self.out, "--first-layer", "5")
        self.assertEqual(done.returncode, 2)
        self.assertIn(f"{self.dump}: has 5 rows a step, --first-layer 5 leaves none of them", done.stderr)

    def test_a_map_becomes_json_that_eplbctl_converts(self):
        slots = torch.tensor([[0, 1, 2, 0]] * 3 + [[2, 0, 1, 0], [1, 2, 0, 1]], dtype=torch.int64)
        out, placement = self.directory / "map.json", self.directory / "placement.json"
        line, = self.convert({"physical_to_logical_map": slots}, out)
        self.assertEqual(line, {"physical_to_logical_map": slots.tolist()})
        done = subprocess.run([BIN / "eplbctl", "convert", "--from", "sglang", "--to", "eplb", out, placement, "--gpus", "2",
                               "--first-layer", "3"], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(placement.read_text())["physical_to_logical_map"], slots[3:].tolist())
        for arguments, words in (((self.dump, self.out), "write it as OUT.json"), ((self.dump, self.dump, out), "one file alone"),
                                 ((self.dump, out, "--first-layer", 3), "eplbctl convert --from sglang")):
            done = self.run_convert(*arguments)
            self.assertEqual(done.returncode, 2)
            self.assertIn(words, done.stderr)
        out.unlink()
        self.refuse("has a physical_to_logical_map that is float32 [2, 2], expected integers [layers, slots]",
                    write={"physical_to_logical_map": torch.rand(2, 2)})

    def test_what_is_no_recorder_dump_is_refused(self):
        self.refuse("has no key logical_count, its keys are 'records', 'rank'", write={"records": [], "rank": 1})
        self.refuse("logical_count that is a list", write={"logical_count": [[1]]})
        self.refuse("of shape [24]", write={"logical_count": self.counts.flatten()})
        self.refuse("of shape [0, 2, 4]", write={"logical_count": self.counts[:0]})
        self.refuse("of float32, expected whole numbers", write={"logical_count": self.counts + 0.5})
        self.refuse("of -1 at step 0, layer 0, expert 0", write={"logical_count": self.counts - 2})
        self.refuse("has a tensor of 24000000 elements over a storage of 24",
                    write={"logical_count": self.counts.expand(1000000, 3, 2, 4)})
        self.refuse("of bool", write={"logical_count": self.counts > 1})

    def test_what_is_no_file_of_torch_is_refused(self):
        self.refuse("No such file")
        for data, words in ((b"", "no zip archive"), (b"[[1, 2]]", "no zip archive"), (pickle.dumps({"a": 1}), "is a pickle")):
            self.dump.write_bytes(data)
            self.refuse(words)
        torch.save(self.recorded(), self.dump, _use_new_zipfile_serialization=False)
        self.refuse("before 1.6")
        with zipfile.ZipFile(self.dump, "w") as archive:
            archive.writestr("a/b.txt", "")
        self.refuse("has 0 members data.pkl")
        torch.save(self.recorded(), self.dump)
        whole = self.dump.read_bytes()
        self.dump.write_bytes(whole[:len(whole) // 2])
        self.refuse("no zip archive")

    def test_nothing_in_the_file_is_executed(self):
        mark = self.directory / "mark"
        for call in (Call(os.system, f"touch {mark}"), Call(eval, f"open('{mark}', 'w')"), Call(pathlib.Path, "x"),
                     Call(np.array, [1]), Call(getattr, "a", "upper"), Call(torch.load, "x")):
            self.refuse("to be called, which is refused", write=self.recorded(call=call))
        self.assertFalse(mark.exists())

    def rewritten(self, data=None, storage=None):
        """The dump with another data.pkl or other bytes of its tensor."""
        torch.save(self.recorded(), self.dump)
        with zipfile.ZipFile(self.dump) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(self.dump, "w") as archive:
            for name, content in members.items():
                if name.endswith("data.pkl") and data is not None:
                    content = data
                if "/data/" in name and storage is not None:
                    content = storage
                archive.writestr(name, content)

    def test_damaged_archives_are_refused(self):
        self.rewritten(storage=bytes(8))
        self.refuse("reaches to element 23 of a storage of 2")
        self.rewritten(storage=bytes(7))
        self.refuse("cannot be read")
        for data in (b"", b"\x80\x02", b"\x80\x02}q\x00(X\x01", b"garbage", b"\x80\x02ccollections\nOrderedDict\n)R}b.",
                     b"\x80\x02Nc"):
            self.rewritten(data=data)
            self.refuse()

    def test_a_small_file_does_not_fill_the_memory(self):
        self.rewritten(data=b"\x80\x02]r\xff\xff\xff\x0f.")  # object number 2^28 - 1
        self.refuse("numbers an object 268435455", in_process=False)
        torch.save(self.recorded(), self.dump)
        with zipfile.ZipFile(self.dump, "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("data/zeros", bytes(1 << 20))
        self.refuse("it never compresses", in_process=False)
        self.assertLess(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, 1 << 20, "KiB")

    def test_every_truncation_and_flip_of_the_pickle_is_refused_or_read(self):
        torch.save(self.recorded(), self.dump)
        with zipfile.ZipFile(self.dump) as archive:
            name = next(each for each in archive.namelist() if each.endswith("data.pkl"))
            data = archive.read(name)
        source = np.random.default_rng(5)
        for trial in range(300):
            changed = bytearray(data)
            changed[source.integers(len(data))] = source.integers(256)
            if trial % 3 == 0:
                changed = changed[:source.integers(len(data))]
            self.rewritten(data=bytes(changed))
            try:
                _torch_file.read_torch_file(str(self.dump))
            except _torch_file.BadFile as error:
                self.assertNotIn("\n", str(error))

    def test_usage(self):
        for arguments in ((), ("a.pt",), ("a.pt", "out.txt"), ("a.pt", "out.json", "--first-step", "-1"), ("a.pt", "out.json", "--first-layer", "-1")):
            self.assertEqual(self.run_convert(*arguments).returncode, 2)
        torch.save(self.recorded(), self.dump)
        done = self.run_convert(self.dump, self.directory / "none" / "out.json")
        self.assertEqual(done.returncode, 1)
        self.assertIn("No such file", done.stderr)


if __name__ == "__main__":
    unittest.main()
