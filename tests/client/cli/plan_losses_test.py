"""eplbctl plan --survive and --without-gpus: which experts have a replica on a second GPU or node and at what cost, and the placement
after the loss of GPUs."""

import json
import unittest

import command

GPUS, SLOTS, NODES = 4, 24, 2
SHAPE = ("--gpus", GPUS, "--slots", SLOTS, "--nodes", NODES)


def on_one_site(placement, per_site):
    """[experts that slots of one site alone hold, per layer]"""
    layers = []
    for held in placement["physical_to_logical_map"]:
        sites = {}
        for slot, expert in enumerate(held):
            sites.setdefault(expert, set()).add(slot // per_site)
        layers.append({expert for expert, at in sites.items() if len(at) == 1 and expert >= 0})
    return layers


def named(rows):
    return {row["layer"]: row["experts"] for row in rows}


class LossesTest(command.CommandTest):
    def setUp(self):
        super().setUp()
        self.load = command.draw(3, 16)
        self.path = self.write("load.json", json.dumps(self.load))
        self.flags = ("--load", self.path, *SHAPE)

    def plan(self, *more):
        result = command.run("plan", *self.flags, *more, "-o", "json")
        self.assertEqual((result.returncode, command.without_notes(result.stderr)), (0, ""))
        return json.loads(result.stdout, parse_constant=self.fail)

    def hottest(self, layer):
        return sorted(range(16), key=lambda expert: -self.load[layer][expert])

    def test_the_hottest_experts_are_covered_as_far_as_slots_allow(self):
        for domain, per_site in (("gpu", SLOTS // GPUS), ("node", SLOTS // NODES)):
            plan = self.plan("--survive", 1, "--domain", domain, "--survive-cost", 1)
            one_site = on_one_site(plan["placement"], per_site)
            survival = plan["survival"]
            self.assertEqual((survival["losses"], survival["domain"]), (1, domain))
            self.assertEqual((survival["num_covered"], survival["num_not_covered"]), (3 * 8, 3 * 8))
            for layer, experts in named(survival["not_covered"]).items():
                self.assertEqual(experts, self.hottest(layer)[8:])
                self.assertEqual(set(experts), one_site[layer])
            share = [sum(self.load[layer][e] for e in self.hottest(layer)[:8]) / sum(self.load[layer]) for layer in range(3)]
            self.assertAlmostEqual(survival["covered_tokens"], sum(share) / 3)

    def test_the_cost_is_that_against_the_plan_without_the_demand_and_within_its_limit(self):
        without = self.plan()["balancedness"]["per_layer"]
        covered = []
        for limit in (0, 0.02, 1):
            plan = self.plan("--survive", 1, "--survive-cost", limit)
            costs = [a - b for a, b in zip(without, plan["balancedness"]["per_layer"])]
            cost = plan["survival"]["balancedness_cost"]
            self.assertAlmostEqual(cost["mean"], sum(costs) / 3)
            self.assertAlmostEqual(cost["max"], max(costs))
            self.assertEqual(cost["limit"], limit)
            self.assertLessEqual(max(costs), limit + 1e-9)
            covered.append(plan["survival"]["num_covered"])
        self.assertEqual(covered, sorted(covered))

    def test_with_several_loads_the_hottest_are_those_of_the_weighted_mean(self):
        other = command.draw(3, 16, seed=9)
        path = self.write("other.json", json.dumps(other))
        plan = self.plan("--load", path, "--weights", "1,5", "--survive", 1, "--survive-cost", 1)
        for layer, experts in named(plan["survival"]["not_covered"]).items():
            mean = [a / sum(self.load[layer]) + 5 * b / sum(other[layer]) for a, b in zip(self.load[layer], other[layer])]
            self.assertEqual(set(experts), set(sorted(range(16), key=lambda e: -mean[e])[8:]))

    def test_a_covered_placement_stays_where_it_is(self):
        covered = self.directory / "covered.json"
        self.plan("--survive", 1, "--out", covered)
        again = self.plan("--survive", 1, "--policy", "incremental", "--previous", covered)
        self.assertLessEqual(again["moves"]["transfers"], 3)

    def repaired(self, previous, lost):
        """Checks the plan without these GPUs against the placement before."""
        answer = self.plan("--previous", previous, "--without-gpus", ",".join(map(str, lost)))
        before, after = json.loads(previous.read_text()), answer["placement"]
        loss = answer["loss"]
        self.assertEqual(loss["gpus"], lost)
        experts, filled = {}, 0
        for layer, (old, new) in enumerate(zip(before["physical_to_logical_map"], after["physical_to_logical_map"])):
            gone = [slot // (SLOTS // GPUS) in lost for slot in range(SLOTS)]
            self.assertEqual({expert for expert, is_gone in zip(new, gone) if is_gone}, {-1})
            self.assertEqual(set(new) - {-1}, set(range(16)))
            live = {expert for expert, is_gone in zip(old, gone) if not is_gone}
            if len(live) < 16:
                experts[layer] = sorted(set(range(16)) - live)
            filled += sum(a != b for a, b, is_gone in zip(old, new, gone) if not is_gone)
        self.assertEqual(named(loss["experts_lost"]), experts)
        self.assertEqual(loss["num_experts_lost"], sum(map(len, experts.values())))
        self.assertEqual((loss["slots_to_fill"], filled), (loss["num_experts_lost"],) * 2)
        return answer

    def test_after_a_loss_every_expert_is_alive_or_named_as_lost(self):
        now = self.directory / "now.json"
        shape = ("--load", self.path, "--gpus", GPUS, "--slots", 40, "--nodes", NODES)
        self.plan("--out", now)
        one = self.repaired(now, [2])
        text = command.run("plan", *self.flags, "--previous", now, "--without-gpus", 2).stdout
        self.assertIn(f"Loss of GPU 2: {one['loss']['slots_to_fill']} slots to fill.", text)
        self.assertEqual(command.run("plan", *shape, "--out", now).returncode, 0)
        answer = command.run("plan", *shape, "--previous", now, "--without-gpus", "0,3", "-o", "json")
        self.assertEqual(json.loads(answer.stdout)["loss"]["gpus"], [0, 3])

    def test_each_answers_for_every_gpu_as_a_plan_for_it_alone(self):
        now, folder = self.directory / "now.json", self.directory / "losses"
        self.plan("--survive", 1, "--out", now)
        answers = self.plan("--previous", now, "--without-gpus", "each", "--out", folder)
        self.assertEqual([row["gpus"] for row in answers["losses"]], [[gpu] for gpu in range(GPUS)])
        for gpu, row in enumerate(answers["losses"]):
            alone = self.repaired(now, [gpu])
            self.assertEqual({key: row[key] for key in alone["loss"]}, alone["loss"])
            self.assertEqual(row["placement"], alone["placement"])
            self.assertEqual(row["placement"], json.loads((folder / f"without-gpu-{gpu}.json").read_text()))
            self.assertEqual(row["balancedness"]["min"], alone["balancedness"]["min"])
        table = command.run("plan", *self.flags, "--previous", now, "--without-gpus", "each")
        self.assertEqual((table.returncode, command.without_notes(table.stderr)), (0, ""))
        self.assertEqual(len(table.stdout.splitlines()), 3 + GPUS + 2)

    def test_each_names_the_gpu_that_is_taken_away_beside_one_that_is_gone(self):
        self.flags = ("--load", self.path, "--gpus", GPUS, "--slots", 40)
        now, gone = self.directory / "now.json", self.directory / "gone.json"
        self.plan("--out", now)
        self.plan("--previous", now, "--without-gpus", 0, "--out", gone)
        for previous, flags, gpus, first in ((gone, (), [0, 1, 2, 3], [0]), (now, ("--unusable-gpus", 0), [1, 2, 3], [0, 1])):
            folder = self.directory / f"{len(gpus)} answers"
            flags = ("--previous", previous, *flags, "--without-gpus", "each")
            losses = self.plan(*flags, "--out", folder)["losses"]
            self.assertEqual([row["gpu"] for row in losses], gpus)
            self.assertEqual(losses[0]["gpus"], first)
            self.assertEqual({path.name: json.loads(path.read_text()) for path in folder.iterdir()},
                             {f"without-gpu-{row['gpu']}.json": row["placement"] for row in losses})
            table = command.run("plan", *self.flags, *flags).stdout.splitlines()
            self.assertEqual([line.split()[0] for line in table[3:3 + len(gpus)]], [str(gpu) for gpu in gpus])
        again = self.plan("--previous", gone, "--without-gpus", 0)["loss"]
        self.assertEqual(again, {"gpus": [0], "slots_to_fill": 0, "num_experts_lost": 0, "experts_lost": []})

    def test_a_loss_moves_more_than_the_limit_because_of_its_experts(self):
        now = self.directory / "now.json"
        self.plan("--out", now)
        for flags in (("--without-gpus", 0), ("--unusable-gpus", 0, "--policy", "incremental")):
            plan = command.run("plan", *self.flags, "--previous", now, *flags, "--max-moves-per-gpu", 0)
            self.assertIn("more than --max-moves-per-gpu 0: the experts of unusable GPUs move first", plan.stderr)

    def test_unusable_gpus_of_any_plan_name_what_is_lost_with_them(self):
        now = self.directory / "now.json"
        self.plan("--out", now)
        lost = self.plan("--previous", now, "--without-gpus", 1)["loss"]["experts_lost"]
        plan = self.plan("--previous", now, "--unusable-gpus", 1)
        self.assertEqual((plan["loss"]["gpus"], plan["loss"]["experts_lost"]), ([1], lost))

    def test_what_cannot_be_planned_is_refused_in_one_line(self):
        now = self.directory / "now.json"
        self.plan("--out", now)
        loss = ("--previous", now, "--without-gpus")
        full = self.directory / "full.json"
        tight = ("--load", self.path, "--gpus", GPUS, "--slots", 16)
        command.run("plan", *tight, "--out", full)
        for flags, word in (
                (("--survive", 2), "--survive is 2, expected 1"),
                (("--survive", 1, "--survive-cost", 2), "--survive-cost is 2, expected 0..1"),
                (("--survive", 1, "--policy", "deepseek"), "policy deepseek does not take --survive"),
                (("--survive", 1, "--split", "batch"), "--survive plans for equal shares, not for --split batch"),
                (("--survive", 1, "--domain", "node", "--groups", 4), "hierarchy strict"),
                (("--survive", 1, "--max-moves-per-gpu", 1), "--max-moves-per-gpu"),
                (("--domain", "node"), "--survive"),
                (("--without-gpus", 1), "--without-gpus needs --previous"),
                ((*loss, 4), "--without-gpus: "), ((*loss, "1,1"), "--without-gpus: "), ((*loss, "all"), "expected numbers separated by commas, or each"),
                ((*loss, 1, "--policy", "balanced"), "--policy"),
                ((*loss, 1, "--split", "optimal"), "--without-gpus plans for equal shares")):
            self.assert_fails(command.run("plan", *self.flags, *flags), 2, word)
        self.assert_fails(command.run("plan", *tight, "--survive", 1, "--domain", "node"), 2, "on one node")
        self.assert_fails(command.run("plan", *tight, "--previous", full, "--without-gpus", "each"), 2,
                          "without GPU 0: the 3 usable GPUs have 12 slots for 16 experts, next: 24 slots")
        self.assert_fails(command.run("plan", *self.flags, *loss, "each", "--out", now), 1, "now.json")
        command.run("plan", "--load", self.path, "--gpus", 1, "--slots", 16, "--out", full)
        self.assert_fails(command.run("plan", "--load", self.path, "--gpus", 1, "--slots", 16, "--previous", full,
                                      "--without-gpus", "each"), 2, "without GPU 0: all 1 GPUs are unusable")

    def test_a_number_of_slots_that_does_not_fit_names_the_next_that_does(self):
        load = ("--load", self.path, "--gpus", GPUS)
        for flags, word in ((("--slots", 18, "--policy", "deepseek"), "18 slots are not a multiple of 4 GPUs, next: 20 slots"),
                            (("--slots", 15), "--slots is 15, fewer than the 16 experts, next: 16 slots"),
                            (("--slots", 16, "--unusable-gpus", 3), "for 16 experts, next: 24 slots")):
            self.assert_fails(command.run("plan", *load, *flags), 2, word)
        self.assert_fails(command.run("plan", "--load", self.path, "--gpus", 17, "--slots", 16), 2,
                          "fewer than the 17 GPUs, next: 17 slots")


if __name__ == "__main__":
    unittest.main()
