"""Policy balanced against an exact solver: layers as integer programs, solved by cbc."""

import json
import math
import os
import pathlib
import random
import re
import shutil
import subprocess
import tempfile
import unittest

SOLVE = pathlib.Path(os.environ["EPLB_BIN"]) / "solve_json"
SEED = 21
LAYERS = 30
CBC_SECONDS = 1  # for a layer; most need a tenth of it
DEADLINE = 120  # seconds for all layers of the policy; sanitizer builds are slow
ROUNDING = 1e-6  # tolerance of a feasible solution of cbc
ALL_COUNTS = 20_000  # vectors of replica counts that thorough tries one by one
NEAR = 1.002  # found / optimum at most, where it tries all
NEARBY = 1.02  # and where it tries some


def layers():
    """Up to 12 experts on 2 to 4 GPUs, no GPU with more slots than experts; spread loads and nearly equal ones."""
    draw = random.Random(SEED)
    made = []
    while len(made) < LAYERS:
        experts, gpus = draw.randint(4, 12), draw.randint(2, 4)
        slots = draw.randint(experts, 2 * experts)
        if -(-slots // gpus) > experts:
            continue
        spread = draw.choice([1, 2, 4])
        load = [max(1, int(1000 * draw.random() ** spread)) for _ in range(experts)]
        made.append({"load": load, "slots": slots, "gpus": gpus})
    return made


def most_ratio(layer):
    experts = len(layer["load"])
    return NEAR if math.comb(layer["slots"] - 1, experts - 1) <= ALL_COUNTS else NEARBY


def program(layer):
    """CPLEX LP text: y_e_r, expert e has r replicas; x_e_g_r, and one of them is on GPU g; t, the largest GPU load."""
    load, gpus = layer["load"], layer["gpus"]
    experts, replicas = range(len(load)), range(1, layer["gpus"] + 1)
    rows = []
    for e in experts:
        rows.append(" + ".join(f"y_{e}_{r}" for r in replicas) + " = 1")
        for r in replicas:
            rows.append(" + ".join(f"x_{e}_{g}_{r}" for g in range(gpus)) + f" - {r} y_{e}_{r} = 0")
            rows += [f"x_{e}_{g}_{r} - y_{e}_{r} <= 0" for g in range(gpus)]
    slots_of = [layer["slots"] // gpus + (g < layer["slots"] % gpus) for g in range(gpus)]
    for g, slots in enumerate(slots_of):
        rows.append(" + ".join(f"x_{e}_{g}_{r}" for e in experts for r in replicas) + f" = {slots}")
        tokens = " + ".join(f"{load[e] / r:.12g} x_{e}_{g}_{r}" for e in experts for r in replicas)
        rows.append(f"{tokens} - t <= 0")
    binaries = [f"y_{e}_{r}" for e in experts for r in replicas]
    binaries += [f"x_{e}_{g}_{r}" for e in experts for g in range(gpus) for r in replicas]
    rows = "\n".join(f" c{i}: {row}" for i, row in enumerate(rows))
    return f"Minimize\n obj: t\nSubject To\n{rows}\nBounds\n t >= {sum(load) / gpus:.12g}\nBinaries\n {' '.join(binaries)}\nEnd\n"


def solve_exactly(layer, directory):
    """(objective, it is proved optimal); None without any solution."""
    (directory / "layer.lp").write_text(program(layer))
    subprocess.run(["cbc", "layer.lp", "-seconds", str(CBC_SECONDS), "-solve", "-solution", "found.txt"], cwd=directory,
                   check=True, stdout=subprocess.DEVNULL)
    head = (directory / "found.txt").read_text().splitlines()[0]
    found = re.match(r"(Optimal|Stopped).*objective value\s+([0-9.e+-]+)", head)
    return (float(found[2]), found[1] == "Optimal") if found else None


@unittest.skipUnless(shutil.which("cbc"), "cbc is not here (package coinor-cbc)")
class IntegerProgramTest(unittest.TestCase):
    def test_thorough_is_between_its_bound_and_a_little_above_the_optimum(self):
        problems = layers()
        answers = json.loads(subprocess.run([SOLVE], input=json.dumps(problems), capture_output=True, text=True, check=True,
                                            timeout=DEADLINE).stdout)
        proved = equal = near = tight = 0
        worst = 1
        with tempfile.TemporaryDirectory(prefix="eplb-ilp-") as directory:
            for layer, answer in zip(problems, answers, strict=True):
                exact = solve_exactly(layer, pathlib.Path(directory))
                with self.subTest(seed=SEED, layer=layer, answer=answer, exact=exact):
                    self.assertEqual(answer["duplicates"], 0)
                    self.assertLessEqual(answer["bound"], answer["found"] * (1 + ROUNDING))
                    if exact is None:
                        continue
                    objective, optimal = exact
                    self.assertLessEqual(answer["bound"], objective * (1 + ROUNDING))
                    if not optimal:
                        continue
                    proved += 1
                    ratio = answer["found"] / objective
                    worst = max(worst, ratio)
                    equal += ratio <= 1 + 1e-5
                    near += ratio <= NEAR
                    tight += answer["bound"] >= objective * (1 - 1e-5)
                    self.assertGreaterEqual(ratio, 1 - ROUNDING)
                    self.assertLessEqual(ratio, most_ratio(layer))
        print(f"{LAYERS} layers, {proved} proved by cbc: {equal} solved exactly, {near} within 0.2 %, "
              f"worst ratio {worst:.6f}, bound tight on {tight}")
        self.assertGreater(proved, LAYERS // 4)


if __name__ == "__main__":
    unittest.main(verbosity=2)
