"""eplbctl join: dumps, choices and traces become one file of windows or one load, which the other commands read alike."""

import json
import unittest

import command

TORCH = command.DATA / "torch"


class JoinTest(command.CommandTest):
    def join(self, *arguments):
        out = self.directory / "out.jsonl"
        done = command.run("join", *arguments, out)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        return [json.loads(line) for line in out.read_text().splitlines()], done.stderr

    def test_dumps_follow_each_other(self):
        windows, said = self.join(TORCH / "recorder.pt", TORCH / "tensor.pt", "--first-step", 10)
        self.assertEqual([(window["first_step"], window["last_step"]) for window in windows], [(step, step) for step in range(10, 16)])
        self.assertEqual([window["load"][1][3] for window in windows], [8, 16, 24, 14, 30, 46])
        self.assertRegex(said, r"\Aeplbctl: note: [^\n]*/tensor\.pt: is read as windows of 4 experts; [^\n]+\n\Z")

    def test_windows_keep_their_lengths_and_alone_their_steps(self):
        first = self.write("a.jsonl", '{"first_step":5,"last_step":9,"load":[[1,2]]}\n')
        second = self.write("b.jsonl", '{"first_step":0,"last_step":1,"load":[[0.5,3]]}\n')
        self.assertEqual(self.join(first)[0], [{"first_step": 5, "last_step": 9, "load": [[1, 2]]}])
        self.assertEqual(self.join(first, second)[0], [{"first_step": 0, "last_step": 4, "load": [[1, 2]]},
                                                       {"first_step": 5, "last_step": 6, "load": [[0.5, 3]]}])

    def test_the_sum_is_one_load(self):
        out = self.directory / "sum.json"
        self.assertEqual(command.run("join", TORCH / "recorder.pt", TORCH / "recorder.pt", out).returncode, 0)
        self.assertEqual(json.loads(out.read_text()), {"format": "eplb.load.v1", "load": [[54, 60, 66, 72], [78, 84, 90, 96]]})

    def test_the_other_commands_read_what_it_writes(self):
        shape = ("--gpus", 2, "--slots", 4, "-o", "json")
        for source, more in ((TORCH / "recorder.pt", ()), (TORCH / "choices.pt", ("--experts", 4))):
            self.join(source, *more)
            direct, joined = (json.loads(command.run("plan", "--load", each, *flags, *shape).stdout) | {"solve_seconds": 0}
                              for each, flags in ((source, more), (self.directory / "out.jsonl", ())))
            self.assertEqual(direct, joined)

    def test_ranks_of_a_router_trace_are_summed_from_their_directory(self):
        line = '{"step":7,"layer":2,"top_indices":[[0,%d]]}\n'
        ranks = self.directory / "ranks"
        ranks.mkdir()
        files = [self.write(f"ranks/router_trace_rank{rank}.jsonl", line % (rank + 1)) for rank in range(2)]
        self.assertEqual(self.join(ranks, "--experts", 3)[0], [{"first_step": 7, "last_step": 7, "load": [[2, 1, 1]]}])
        out = self.directory / "x.jsonl"
        self.assert_fails(command.run("join", *files, out, "--experts", 3), 2, files[0], "give the directory of all ranks alone")
        self.assert_fails(command.run("join", *files, "--experts", 3), 2, files[1], "name the file to write at the end")
        self.assertEqual(files[1].read_text(), line % 2)

    def test_what_it_cannot_use_is_one_line_and_writes_nothing(self):
        dump, out = TORCH / "recorder.pt", self.directory / "out.json"
        for arguments, code, words in (((dump,), 2, "expected IN .. OUT"), ((dump, "out.txt"), 2, "ending in .json or .jsonl"),
                                       ((dump, out, "--first-step", -1), 2, "expected at least 0"),
                                       ((dump, out, "--first-step", 2 ** 63 - 8), 2, "end after step 4611686018427387904"),
                                       ((TORCH / "map.pt", out), 2, "is no tensor, and no dictionary"),
                                       ((self.directory / "none.pt", out), 2, "none.pt"),
                                       ((dump, self.write("l.json", "[[1,2]]"), out), 2, "has 1 layers x 2 experts"),
                                       ((dump, self.directory / "no" / "out.json"), 1, "No such file")):
            with self.subTest(arguments=arguments):
                self.assert_fails(command.run("join", *arguments), code, words)
                self.assertFalse(out.exists())


if __name__ == "__main__":
    unittest.main()
