"""eplbctl plan: the table form at several widths, with and without a terminal."""

import json
import os
import pty
import re
import subprocess
import time
import unittest

import command

SEQUENCE = re.compile(r"\x1b\[[0-9;]*[mK]")


def on_terminal(*arguments, stream="stdout", **environment):
    """Returns the text that the command writes to a pseudo-terminal in place of `stream`, and its exit code."""
    leader, follower = pty.openpty()
    other = "stderr" if stream == "stdout" else "stdout"
    environment = {"TERM": "xterm", **environment}
    environment.update((name, value) for name, value in os.environ.items() if name.endswith("SAN_OPTIONS"))
    process = subprocess.Popen([command.EPLBCTL, *map(str, arguments)], env=environment,
                               **{stream: follower, other: subprocess.DEVNULL})
    os.close(follower)
    text = b""
    try:
        while chunk := os.read(leader, 65536):
            text += chunk
    except OSError:  # the terminal closes with its last process
        pass
    os.close(leader)
    return text.decode().replace("\r\n", "\n"), process.wait(command.DEADLINE)


class PlanTableTest(command.CommandTest):
    def setUp(self):
        super().setUp()
        self.loads = {name: self.write(f"{name}.json", json.dumps(command.draw(layers, experts)))
                      for name, layers, experts in (("small", 2, 8), ("grouped", 12, 64), ("wide", 1, 160))}
        self.loads["other"] = self.write("other.json", json.dumps(command.draw(12, 64, seed=4)))
        # More layers than are listed; bars, columns and histograms; constraints and figures of every kind.
        self.shapes = {
            "bars": (self.loads["small"], "--gpus", 8, "--slots", 16),
            "columns": (self.loads["grouped"], "--gpus", 32, "--nodes", 4, "--groups", 8, "--slots", 96),
            "histogram": (self.loads["wide"], "--gpus", 320, "--slots", 330, "--effort", "fast"),
            "split": (self.loads["grouped"], "--gpus", 16, "--slots", 80, "--split", "optimal"),
            "soft": (self.loads["grouped"], "--gpus", 8, "--nodes", 2, "--groups", 2, "--slots", 72, "--hierarchy", "soft"),
            "speeds": (self.loads["grouped"], "--gpus", 20, "--slots", 100, "--gpu-speed", ",".join(["1"] * 19 + ["0.5"]),
                       "--unusable-gpus", "3,7,8,9"),
            "bars with speeds": (self.loads["small"], "--gpus", 8, "--slots", 16, "--unusable-gpus", "2"),
            "scenarios": (self.loads["grouped"], "--load", self.loads["other"], "--gpus", 8, "--slots", 72),
            "duplicates": (self.loads["small"], "--gpus", 2, "--slots", 20),
        }

    def table(self, name, columns=80, locale="C.UTF-8"):
        result = command.run("plan", "--load", *self.shapes[name],
                             environment={"COLUMNS": str(columns), "LANG": locale})
        self.assertEqual((result.returncode, command.without_notes(result.stderr)), (0, ""), name)
        return result.stdout

    def test_no_line_is_wider_than_the_terminal(self):
        for name in self.shapes:
            for columns in (60, 80, 160):
                for locale in ("C", "C.UTF-8"):
                    with self.subTest(shape=name, columns=columns, locale=locale):
                        text = self.table(name, columns, locale)
                        self.assertIn("balancedness", text)
                        self.assertNotIn("\x1b", text)
                        self.assertNotRegex(text, r"(?i)\b(nan|inf)\b")
                        self.assertEqual(text.isascii(), locale == "C" or name == "scenarios")  # bars
                        self.assertFalse([line for line in text.splitlines() if line != line.rstrip()])
                        if columns >= 80:
                            self.assertLessEqual(max(map(len, text.splitlines())), columns)

    def test_more_columns_are_used(self):
        for name in ("bars", "histogram"):
            self.assertGreater(max(map(len, self.table(name, 160).splitlines())), 110, name)

    def test_constraints_and_worst_layers_are_named(self):
        self.assertIn("every expert group stays on one node", self.table("columns"))
        self.assertIn("10 least balanced of 12 layers", self.table("columns"))
        self.assertIn("best split", self.table("split"))
        self.assertIn("off the node of their expert group", " ".join(self.table("soft").split()))
        self.assertIn("Unusable: 4 GPUs (3, 7-9).", self.table("speeds"))
        self.assertIn("slowest: 1 GPU (19)", self.table("speeds"))
        self.assertIn("No GPU holds an expert twice.", self.table("bars"))
        self.assertIn("8 replicas are beyond the first on their GPU.", self.table("duplicates"))

    def test_gpu_loads_are_multiples_of_the_mean(self):
        text = self.table("bars").splitlines()
        rows = [line for line in text if re.match(r" +\d  ", line)][-8:]
        for half in (0, 1):
            multiples = [float(re.findall(r"([0-9.]+)x", line)[half]) for line in rows]
            self.assertAlmostEqual(sum(multiples) / 8, 1, delta=0.01)

    def test_unusable_gpus_are_marked(self):
        marked = [line for line in self.table("bars with speeds").splitlines() if line.endswith("unusable")]
        self.assertEqual([line.split()[0] for line in marked], ["2"])

    def test_many_gpus_are_counted_in_a_histogram(self):
        text = self.table("histogram")
        rows = [line for line in text.splitlines() if re.match(r"\d\.\d\d \.\.", line)]
        self.assertTrue(2 <= len(rows) <= 16, rows)
        self.assertEqual(sum(int(line.split()[-1]) for line in rows), 320)
        self.assertRegex(text, r"plan +hottest GPU \d+ [0-9.]+x, ")

    def test_an_idle_load_has_no_picture(self):
        self.loads["small"].write_text(json.dumps([[0] * 8] * 2))
        self.assertIn("No layer has load.", self.table("bars"))

    def test_colour_only_on_a_terminal_and_not_with_no_color(self):
        arguments = ["plan", "--load", *self.shapes["bars"]]
        for more, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
            text, code = on_terminal(*arguments, LANG="C.UTF-8", COLUMNS="80", **more)
            self.assertEqual((code, "\x1b[" in text), (0, coloured), more)
            self.assertLessEqual(max(map(len, SEQUENCE.sub("", text).splitlines())), 80)
            if more:
                without = re.sub(r"solved in .*", "", self.table("bars"))
                self.assertEqual(re.sub(r"solved in .*", "", text), without)

    def test_progress_only_on_a_terminal_after_two_seconds(self):
        quick, code = on_terminal("plan", "--load", *self.shapes["bars"], stream="stderr")
        self.assertEqual((quick, code), ("", 0))
        load = self.write("long.json", json.dumps(command.draw(3, 256)))
        arguments = ["plan", "--load", load, "--gpus", 32, "--slots", 288, "--effort", "thorough"]
        start = time.monotonic()
        text, code = on_terminal(*arguments, stream="stderr")
        self.assertEqual(code, 0)
        if time.monotonic() - start > 3:  # a fast machine is not long enough about it
            self.assertRegex(text, r"\r\x1b\[Keplbctl: planning, [2-9]\.\d s")
        self.assertEqual(text.split("\x1b[K")[-1], "")


if __name__ == "__main__":
    unittest.main()
