"""The page as one file, written by `eplbctl report --html` and `eplbctl replay --html`, in a real browser without a daemon."""

import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "integration"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import browser  # noqa: E402
import job  # noqa: E402

MISSING = browser.missing()
TRACE = job.DATA / "moe64_aux.jsonl"
STEPS, WINDOW = 120, 10
HOSTILE = "</script><script>window.hurt=1</script><img src=x onerror='window.hurt=2'><!-- \u202egnp\u202c \"'&amp; {{7*7}}"
SHOWN = HOSTILE.replace("\u202e", "?").replace("\u202c", "?")  # the direction of text is not the name's to change


def eplbctl(*arguments):
    done = job.eplbctl(*arguments)
    if done.returncode != 0:
        raise AssertionError(f"eplbctl {arguments}: exit {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def figure(value):
    return "–" if value is None else f"{value:.3f}"


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def on_gpus(load, placement):
    """Tokens [layers][gpus], replicas in equal shares, from the placement's own maps."""
    gpus, slots = placement["num_gpus"], placement["num_slots"]
    assert slots % gpus == 0
    rows = []
    for tokens, experts in zip(load, placement["physical_to_logical_map"]):
        row = [0.0] * gpus
        for slot, expert in enumerate(experts):
            row[slot * gpus // slots] += tokens[expert] / experts.count(expert)
        rows.append(row)
    return rows


def added(matrices):
    return [[sum(cells) for cells in zip(*rows)] for rows in zip(*matrices)]


def balancedness(loads):
    return mean(mean(row) / max(row) for row in loads if max(row) > 0)


@unittest.skipIf(MISSING, MISSING)
class FilePageTest(unittest.TestCase):
    """Checks that pages of any source share."""

    def setUp(self):
        self.browser = browser.Browser()
        self.addCleanup(self.browser.close)

    def show(self, file, view="", **options):
        self.browser.open(f"file://{file}{view}", **options)
        self.browser.wait("eplb.main.data()?.job && document.querySelector('#decisions .log li') !== null")
        self.browser.wait("document.querySelector('#layer .note').textContent !== ''")

    def check_clean(self, file):
        """Nothing was asked for but the file, and nothing failed."""
        seen = self.browser.ask("seen")
        self.assertEqual(seen["errors"], [])
        self.assertEqual({url.split("#")[0] for url in seen["requests"]}, {f"file://{file}"})

    def tiles(self, place):
        return dict(zip(self.browser.texts(f"{place} .tile dt"), self.browser.texts(f"{place} .tile dd:nth-of-type(1)")))

    def formatted(self, kind, value):
        return self.browser.value(f"eplb.format.{kind}({value!r})")

    def transfers(self):
        """Sum of the flows between GPUs."""
        return sum(int(one.replace(",", "")) for one in self.browser.table("traffic", "transfers", inside="details"))

    def check_accessible(self, file):
        for width, height, theme in ((1440, 900, "light"), (390, 844, "dark")):
            with self.subTest(width=width, theme=theme):
                self.show(file, width=width, height=height, theme=theme)
                self.browser.value("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
                found = [one for one in self.browser.ask("axe") if one["impact"] in ("serious", "critical")]
                self.assertEqual(found, [])
                self.assertLessEqual(self.browser.value("document.documentElement.scrollWidth"), width)


class RunReportTest(FilePageTest):
    @classmethod
    def setUpClass(cls):
        cls.directory = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        daemon = job.Daemon(cls.directory, policy_every=20)
        daemon.start()
        cls.addClassCleanup(daemon.kill)
        one = job.Job(cls.directory, daemon.endpoint, world=4, steps=STEPS, step_ms=5,
                      extra=("--report-every", str(WINDOW), "--nodes", "2"))
        cls.addClassCleanup(one.kill_all)
        if one.wait(90) != [0] * one.world:
            raise AssertionError("the job did not end well")
        (cls.directory / "events.json").write_text(
            json.dumps(eplbctl("get", "events", "--limit", "1000", "-o", "json", "--endpoint", daemon.endpoint)))
        cls.file = cls.directory / "report.html"
        cls.report = eplbctl("report", cls.directory, "--window-steps", WINDOW, "--html", cls.file, "-o", "json")
        cls.loads = [line["load"] for line in job.read_lines(cls.directory / "loads.jsonl")]
        cls.placements = job.read_lines(cls.directory / "placements.jsonl")

    def placed(self, step):
        return [one for one in self.placements if one["step"] <= step][-1]

    def window(self, index, unmoved=False):
        """Tokens [layers][gpus] of a window, from the logs alone."""
        steps = range(index * WINDOW, (index + 1) * WINDOW)
        return added([on_gpus(self.loads[step], (self.placements[0] if unmoved else self.placed(step))["placement"])
                      for step in steps])

    def test_the_file_asks_for_nothing_and_says_what_it_is(self):
        self.show(self.file)
        self.assertIn("a report, made by eplbctl", self.browser.text("#connection"))
        self.assertEqual(self.browser.text(".headline")[:len("finished at step")], "finished at step")
        self.check_clean(self.file)
        self.assertLess(self.file.stat().st_size, 2_000_000)
        # The policy lets no script run that the file did not have when it was written.
        self.browser.value("(() => { const one = document.createElement('script'); one.textContent = 'window.hurt = 1'; "
                           "document.body.append(one); })()")
        self.assertIsNone(self.browser.value("window.hurt ?? null"))
        self.assertIn("Content Security Policy", " ".join(self.browser.ask("seen")["errors"]))

    def test_tiles_and_account_are_the_reports(self):
        self.show(self.file)
        report, tiles = self.report, self.tiles(".top")
        comparison = report["comparison"]
        self.assertEqual(tiles["measured"], figure(report["balancedness"]["run"]))
        self.assertEqual(tiles["without EPLB"], figure(report["balancedness"]["without_eplb"]))
        self.assertEqual(tiles["step"], str(STEPS - 1))
        self.assertEqual(tiles["fullest GPUs' load"], self.formatted("percent", -report["time_saved"]))
        self.assertNotIn("predicted", tiles, "a run's directory has predictions in the reasons of its decisions alone")
        account = self.tiles("#account")
        net = comparison["without_eplb_predicted"]["total_seconds"] - report["time"]["measured_seconds"]
        self.assertEqual({one["time saved, by the log"] for one in (tiles, account)}, {self.formatted("seconds", net)})
        self.assertEqual(account["spent"], self.formatted("seconds", report["time"]["boundary_seconds"]))
        self.assertIn("all boundaries", self.browser.text("#account .tiles"))
        self.assertEqual(account["moved"], self.formatted("bytes", sum(one["bytes_moved"] for one in report["switches"])))
        self.check_clean(self.file)

    def test_windows_are_those_of_the_logs_and_of_the_report(self):
        self.show(self.file)
        rows = self.browser.table("balance")[::-1]  # oldest first
        self.assertEqual([row["steps"] for row in rows], [f"{at}..{at + WINDOW - 1}" for at in range(0, STEPS, WINDOW)])
        self.assertEqual([row["measured"] for row in rows], [figure(balancedness(self.window(i))) for i in range(len(rows))])
        self.assertEqual([row["static layout"] for row in rows],
                         [figure(balancedness(self.window(i, unmoved=True))) for i in range(len(rows))])
        self.assertEqual([row["versions"] for row in rows],
                         [", ".join(str(one) for one in sorted({self.placed(step)["version"] for step in range(at, at + WINDOW)}))
                          for at in range(0, STEPS, WINDOW)])
        self.assertNotIn("coverage", rows[0], "a run's directory does not know it")
        for decision in self.report["decisions"]:
            if decision["decided_last_step"] - decision["decided_first_step"] + 1 == WINDOW:
                self.assertEqual(rows[decision["decided_first_step"] // WINDOW]["measured"], figure(decision["balancedness_before"]))
        expected = {"static: fullest GPU": self.window(len(rows) - 1, unmoved=True), "that ran: fullest GPU": self.window(len(rows) - 1)}
        for column, loads in expected.items():
            self.assertEqual(self.browser.table("heat", column),
                             [f"{row.index(max(row))}: {max(row) / mean(row):.2f} × mean" for row in loads])
        tokens = [sum(step[0][expert] for step in self.loads[-WINDOW:]) for expert in range(len(self.loads[0][0]))]
        self.assertEqual([row["tokens"] for row in self.browser.table("layer")], [f"{one:,}" for one in sorted(tokens, reverse=True)])
        self.check_clean(self.file)

    def test_decisions_and_their_traffic_are_the_reports(self):
        self.show(self.file)
        decisions = self.report["decisions"][::-1]  # newest first
        self.assertGreater(len(decisions), 0)
        rows = self.browser.table("rebalances")
        self.assertEqual([row["plan"] for row in rows], [str(one["decision"]) for one in decisions])
        self.assertEqual([row["switched at"] for row in rows], [str(one["switch_steps"][-1]) for one in decisions])
        self.assertEqual([row["pause"] for row in rows], [self.formatted("seconds", one["pause_seconds"]) for one in decisions])
        self.assertEqual([row["received"] for row in rows], [self.formatted("bytes", one["bytes_moved"]) for one in decisions])
        # The report counts what a step ran under: not a switch behind the last step.
        counted = [int(row["transfers"]) for row in rows if int(row["switched at"]) < STEPS - 1]
        self.assertEqual(sum(counted), self.report["comparison"]["run"]["transfers"])
        self.assertIn("to the next decision's first", self.browser.value(
            "[...document.querySelectorAll('#rebalances th')].find((one) => one.textContent === 'until next').title"))
        self.browser.unfold(".top")
        self.assertEqual(self.browser.text(".top .reason .more:last-of-type p"), decisions[0]["reason"])
        events = json.loads((self.directory / "events.json").read_text())["events"]
        self.assertTrue(all(row["time (UTC)"] != "–" for row in rows), "events.json knows when each was decided")
        self.browser.unfold("#decisions")
        log = self.browser.texts("#decisions .log li")
        for decision in decisions:
            line = next(one for one in log if f"plan {decision['decision']}: committed" in one)
            self.assertIn(decision["reason"], line)
            self.assertIn(f", measured {figure(decision['balancedness_before'])}, ", line)
            self.assertIn(f", computed {figure(decision['balancedness_computed'])}", line)
            if decision["balancedness_until_next"] is None:  # a switch behind the last step
                self.assertNotIn(", until next ", line)
            else:
                self.assertIn(f", until next {figure(decision['balancedness_until_next'])}", line)
        told = {decision["reason"] for decision in decisions}
        self.assertEqual(len(log), len(decisions) + len([event for event in events if event["reason"] not in told]))
        for row, decision in zip(rows, decisions):
            self.browser.value(f"location.hash = '#/demo?plan={row['plan']}'")
            self.browser.wait(f"document.querySelector('#traffic .note').textContent.startsWith('Plan {row['plan']}:')")
            self.assertEqual(self.transfers(), int(row["transfers"]))
            self.assertIn(self.formatted("bytes", decision["bytes_moved"]), self.browser.text("#traffic .note"))
        self.check_clean(self.file)

    def test_ranks_are_those_of_the_logs(self):
        self.show(self.file)
        rows = self.browser.table("ranks")
        self.assertEqual([row["rank"] for row in rows], ["0", "1", "2", "3"])
        self.assertEqual({row["state"] for row in rows}, {"finished"})
        self.assertEqual({row["runs"] for row in rows}, {str(self.placements[-1]["version"])})
        self.assertFalse({"pause", "prepare"} & set(rows[0]))
        self.assertIn("the time line has the longest pause of each switch", self.browser.text("#ranks .help"))

    def test_an_address_of_a_file_shows_one_view(self):
        self.show(self.file, "#/demo?window=3&layer=2&find=committed")
        self.browser.wait("document.querySelector('#heat .when').textContent.startsWith('steps 20..29')")
        self.browser.wait("document.querySelector('#layer .note').textContent.startsWith('Layer 2, steps 20..29')")
        self.browser.value("location.hash = '#/demo?window=5&layer=1'")
        self.browser.wait("document.querySelector('#layer .note').textContent.startsWith('Layer 1, steps 40..49')")
        self.assertEqual(len(self.browser.table("balance")), STEPS // WINDOW, "no window is there twice")
        self.check_clean(self.file)

    def test_axe_finds_nothing_serious(self):
        self.check_accessible(self.file)

    def test_hostile_names_and_reasons_stay_text(self):
        copy = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        for file in self.directory.glob("*.json*"):
            (copy / file.name).write_bytes(file.read_bytes())
        run = json.loads((copy / "run.json").read_text())
        run["job"] = HOSTILE
        for one in run["switches"]:
            one["reason"] = HOSTILE
        (copy / "run.json").write_text(json.dumps(run))
        (copy / "events.json").unlink()
        eplbctl("report", copy, "--html", copy / "hostile.html", "-o", "json")
        self.show(copy / "hostile.html")
        self.assertEqual(self.browser.text(".jobname"), SHOWN)
        self.browser.unfold("#decisions")
        self.assertTrue(any(SHOWN in text for text in self.browser.texts("#decisions .text")))
        self.assertIsNone(self.browser.value("window.hurt ?? null"))
        self.assertEqual(self.browser.value("document.querySelectorAll('main img, main script').length"), 0)
        self.assertIn("eplbctl get events", self.browser.text("#decisions .note"), "without events.json the page says so")
        self.assertLessEqual(self.browser.value("document.documentElement.scrollWidth"), 1440)
        self.check_clean(copy / "hostile.html")


class ReplayPageTest(FilePageTest):
    SHAPE = ("--trace", TRACE, "--gpus", 8, "--nodes", 2, "--slots", 72, "--every", 10, "--history", 10, "--policy", "incremental")

    def replay(self, *more):
        directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        file = directory / "replay.html"
        return file, eplbctl("replay", *self.SHAPE, *more, "--html", file, "-o", "json")

    def check_windows(self, replayed):
        rows = self.browser.table("balance")[::-1]
        shown = replayed["windows"][-len(rows):]
        self.assertEqual(len(rows), min(len(replayed["windows"]), 200), "a table shows the newest 200")
        self.assertEqual([row["replayed"] for row in rows], [figure(one["balancedness"]) for one in shown])
        self.assertEqual([row["static layout"] for row in rows], [figure(one["balancedness_static"]) for one in shown])
        self.assertEqual(self.browser.value("eplb.main.data().windows.map((one) => one.balancedness)"),
                         [one["balancedness"] for one in replayed["windows"]])

    def test_a_replay_shows_the_figures_of_its_json(self):
        file, replayed = self.replay("--expert-bytes", 1000000, "--token-ns", 100)
        self.show(file)
        summary, tiles, account = replayed["summary"], self.tiles(".top"), self.tiles("#account")
        self.assertEqual(self.browser.text(".jobname"), TRACE.name)
        self.assertEqual(tiles["replayed"], figure(summary["balancedness_mean"]))
        self.assertEqual(tiles["without EPLB"], figure(summary["balancedness_without_eplb_mean"]))
        self.assertEqual(tiles["fullest GPUs' load"],
                         self.formatted("percent", -summary["seconds_saved"] / summary["seconds_without_eplb"]))
        self.assertEqual(tiles["time saved"], self.formatted("seconds", summary["seconds_saved"] - summary["seconds_spent"]))
        self.assertEqual(account["gross"], self.formatted("seconds", summary["seconds_saved"]))
        self.assertEqual(account["spent"], self.formatted("seconds", summary["seconds_spent"]))
        self.assertEqual(account["moved"], self.formatted("bytes", summary["bytes"]))
        self.check_windows(replayed)
        decided = [one for one in replayed["windows"] if one["decided_by"] != "nothing_due"][::-1]
        moved = [one for one in decided if one["rebalanced"]]
        self.assertGreater(len(moved), 1)
        rows = self.browser.table("rebalances")
        self.assertEqual([row["plan"] for row in rows], [str(one["window"]) for one in moved])
        self.assertEqual([row["transfers"] for row in rows], [f"{one['transfers']:,}" for one in moved])
        self.assertEqual([row["received"] for row in rows], [self.formatted("bytes", one["bytes"]) for one in moved])
        self.browser.unfold("#decisions")
        self.assertEqual(self.browser.texts("#decisions .log .text"), [one["reason"] for one in decided])
        self.assertEqual(self.transfers(), moved[0]["transfers"])
        predicted = [one for one in moved if one["balancedness_predicted"] is not None]
        self.assertGreater(len(predicted), 1)
        begins = [json.loads(line)["first_step"] for line in TRACE.read_text().splitlines()]
        seen = {one["window"]: next(row["balancedness"] for row in replayed["windows"][one["window"]:]
                                    if begins[row["window"]] >= one["switched_step"]) for one in predicted}
        self.assertEqual([(row["plan"], row["seen"]) for row in self.browser.table("account")],
                         [(str(one["window"]), figure(seen[one["window"]])) for one in predicted])
        judged = [abs(seen[one["window"]] - one["balancedness_predicted"]) <= one["prediction_error"]
                  for one in predicted if one["prediction_error"] is not None]
        self.assertEqual(account["predictions that held"], f"{sum(judged)} of {len(judged)}")
        self.assertEqual(self.browser.value("document.getElementById('ranks')"), None, "a trace has no ranks")
        self.assertLess(file.stat().st_size, 2_000_000)
        self.check_clean(file)

    def test_exact_splits_and_what_has_no_price(self):
        file, replayed = self.replay("--split", "batch")
        self.show(file)
        self.check_windows(replayed)
        account = self.tiles("#account")
        self.assertEqual((account["spent"], account["time saved"], account["moved"]), ("–", "not known", "not known"))
        self.assertIn("splits each window exactly", self.browser.text("#balance .note"))
        self.check_clean(file)
        self.check_accessible(file)


del FilePageTest  # it has no tests of its own

if __name__ == "__main__":
    unittest.main()
