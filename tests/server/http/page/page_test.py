"""The web page in a real browser, beside a live job: its figures, its failures, its keyboard, its accessibility."""

import json
import pathlib
import shutil
import subprocess
import sys
import time
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "integration"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import browser  # noqa: E402
import job  # noqa: E402

MISSING = browser.missing()


@unittest.skipIf(shutil.which("node") is None, "node is not installed: deploy/setup.sh --tests installs it")
class FormatTest(unittest.TestCase):
    def test_numbers_and_sentences(self):
        done = subprocess.run(["node", "--test", pathlib.Path(__file__).with_name("format_test.mjs")], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("# fail 0", done.stdout)


@unittest.skipIf(MISSING, MISSING)
class PageTest(job.DaemonTest):
    def setUp(self):
        super().setUp()
        self.daemon = self.started_daemon(policy_every=10, config="[cost]\ntoken_ns = 100\n")
        self.browser = browser.Browser()
        self.addCleanup(self.browser.close)

    def url(self, view="#/demo"):
        return f"http://127.0.0.1:{self.daemon.http_port}/{view}"

    def api(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.daemon.http_port}/api/v1/{path}", timeout=10) as answer:
            return json.loads(answer.read())

    def start_job(self, steps=120, step_ms=5, extra=()):
        return self.started_job(self.daemon.endpoint, world=4, steps=steps, step_ms=step_ms,
                                extra=("--report-every", "10", "--nodes", "2", *extra))

    def run_job(self, **options):
        """A job that has ended, so that page and API are asked about the same."""
        one = self.start_job(**options)
        self.assertEqual(one.wait(60), [0] * one.world)
        return one

    def show(self, view="#/demo", **options):
        self.browser.open(self.url(view), **options)
        self.browser.wait("eplb.main.data()?.job && document.querySelector('#decisions .log li') !== null")

    def check_clean(self):
        seen = self.browser.ask("seen")
        self.assertEqual(seen["errors"], [])
        self.assertEqual([url for url in seen["requests"] if not url.startswith(self.url(""))], [])

    def test_panels_show_what_the_api_says(self):
        self.run_job()
        self.show()
        status, windows = self.api("jobs/demo"), self.api("jobs/demo/windows?limit=1000")["windows"]
        tiles = dict(zip(self.browser.texts(".top .tile dt"), self.browser.texts(".top .tile dd:nth-of-type(1)")))
        self.assertEqual(tiles["measured"], f"{status['balancedness']:.3f}")
        self.assertEqual(tiles["without EPLB"], f"{status['balancedness_without_eplb']:.3f}")
        self.assertEqual((tiles["step"], tiles["version"]), (str(status["step"]), str(status["version"])))
        shown = self.browser.table("balance")
        self.assertEqual([row["measured"] for row in shown],
                         [f"{one['balancedness']:.3f}" if one["balancedness"] else "–" for one in reversed(windows)])
        for column, key in (("static layout", "balancedness_static"), ("without EPLB", "balancedness_without_eplb")):
            self.assertEqual([row[column] for row in shown],
                             [f"{one[key]:.3f}" if one[key] else "–" for one in reversed(windows)])
        loads = self.api("jobs/demo/gpu_loads")
        for key, column in (("gpu_loads_static", "static: fullest GPU"), ("gpu_loads", "that ran: fullest GPU")):
            expected = [f"{row.index(max(row))}: {max(row) / (sum(row) / len(row)):.2f} × mean" for row in loads[key]]
            self.assertEqual(self.browser.table("heat", column), expected)
        tops = self.browser.value("[...document.querySelectorAll('#heat canvas')].map((one) => one.getBoundingClientRect().top)")
        self.assertEqual(tops[0], tops[1], "the maps are side by side")
        self.assertEqual(self.browser.texts("#heat .map:first-child .axis.columns span"), ["0", "1", "2", "3"])
        traffic = self.api("jobs/demo/traffic")
        self.assertEqual(sorted((row["from GPU"], row["to GPU"], row["transfers"]) for row in self.browser.table("traffic", inside="details")),
                         sorted(tuple(map(str, flow)) for flow in traffic["gpus"]))
        self.assertEqual(sum(flow[2] for flow in traffic["gpus"]), traffic["transfers"])
        counts = self.api(f"jobs/demo/load?layer=0&window={windows[-1]['window']}")["load"][0]
        self.assertEqual([row["tokens"] for row in self.browser.table("layer")], [f"{one:,}" for one in sorted(counts, reverse=True)])
        self.assertEqual([row["runs"] for row in self.browser.table("ranks")],
                         [str(rank["running_version"]) for rank in status["ranks"]])
        account = dict(zip(self.browser.texts("#account dt"), self.browser.texts("#account .tile dd:nth-of-type(1)")))
        saved = self.browser.value(f"eplb.format.seconds({status['saved_seconds']!r})")
        self.assertEqual((tiles["time saved"], account["time saved"]), (saved, saved))
        self.assertEqual(self.browser.text("#account .note"), f"Time saved: {status['saved_basis']}.")
        self.check_clean()

    def test_the_table_of_jobs_has_trouble_first_and_fits_a_screen(self):
        self.run_job()
        status = self.api("jobs?ranks=0")["jobs"][0]
        hostile = "<img src=x onerror='window.hurt=1'>"
        jobs = [{**status, "job": f"job-{i:02}", "state": "IDLE", "connected_ranks": 4, "saved_seconds": 100.5 * (i + 1),
                 "balancedness": 0.9, "balancedness_without_eplb": 0.6, "worse_reason": ""} for i in range(20)]
        jobs[7] |= {"stalled": "coverage", "stalled_reason": hostile + " x" * 100}
        jobs[9] |= {"saved_seconds": -9, "last_switched_step": None}
        jobs[11]["job"] = "prod-moe-" + "x" * 60 + "-run-11"
        jobs[3]["saved_seconds"] = None
        jobs[5] |= {"state": "FINISHED", "end_reason": "all 4 ranks finished"}
        answer = {"jobs": jobs, "jobs_hidden": False, "warnings": [], "refusals": [{"job": "old", "reason": "too old", "count": 2, "seconds_ago": 1}]}
        self.browser.open(self.url(), width=1280, height=800)
        self.browser.wait("eplb.main.data()?.job")
        self.browser.value(f"""(() => {{ const ask = window.fetch; window.fetch = async (path, options) => path.startsWith('api/v1/jobs?')
          ? new Response(JSON.stringify({json.dumps(answer)})) : ask(path, options); location.hash = '#/'; }})()""")
        self.browser.wait("document.querySelectorAll('.jobs tbody tr').length === 21")
        names = lambda: self.browser.texts(".jobs td.job")  # noqa: E731
        self.assertEqual(names()[:4], ["job-07", "old", "job-09", "job-00"])
        self.assertEqual(names()[-1], "job-05")
        self.assertLessEqual(self.browser.value("document.querySelector('.jobs').getBoundingClientRect().bottom"), 800)
        self.assertLessEqual(max(map(len, self.browser.texts(".jobs td.text"))), 72)
        self.assertRegex(next(name for name in names() if name.startswith("prod")), r"^prod-moe-x+…x+-run-11$")
        text = {row[0]: row for row in self.browser.value("[...document.querySelectorAll('.jobs tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))")}
        self.assertEqual(text["job-04"][3:], [self.browser.value("eplb.format.seconds(502.5)"), "0.900", "0.600", str(status["step"]), "4"])
        self.assertEqual((text["job-09"][3], text["job-03"][3]), ("−9.00 s", "–"))
        self.assertEqual(self.browser.texts(".jobs td.saved_seconds.busy"), ["−9.00 s"])
        self.browser.ask("click", selector=".jobs [data-sort=saved_seconds]")
        self.browser.wait("location.hash === '#/?sort=-saved_seconds'")
        self.assertEqual((names()[0], names()[-3:]), ("job-19", ["job-09", "job-03", "old"]))
        self.browser.ask("click", selector=".summary .bad")
        self.assertEqual(names(), ["job-07", "old"])
        self.assertEqual([one for one in self.browser.ask("axe") if one["impact"] in ("serious", "critical")], [])
        self.assertIsNone(self.browser.value("window.hurt ?? null"))
        answer |= {"jobs": [], "refusals": []}
        self.browser.value(f"window.fetch = async () => new Response(JSON.stringify({json.dumps(answer)}))")
        self.browser.wait("document.querySelector('.overview pre')?.textContent.includes('attached.step_boundary()')")
        self.check_clean()

    def test_a_decision_for_several_loads_has_a_row_for_each(self):
        self.run_job()
        self.show()
        plan = self.api("jobs/demo/plans")["plans"][0]
        self.assertEqual((plan["scenarios"], plan["objective"]), ([], None))
        hostile = "<img src=x onerror='window.hurt=1'>"
        scenarios = [{"load": name, "weight": weight, "balancedness": {"mean": 0.97125, "min": 0.93}, "balancedness_in_force": {"mean": before, "min": 0.5}}
                     for name, weight, before in (("steps 0..9", 3, 0.8123), (hostile, 0.3333333, 0.7411))]
        objective = {"name": "mean", "mean": 1.03, "mean_in_force": 1.25, "mixtures_at_least": 0.965, "mixtures_at_least_in_force": 0.735}
        self.browser.value(f"""(() => {{ const ask = window.fetch; window.fetch = async (path, options) => {{
          const answer = await ask(path, options);
          if (!path.includes('/plans')) return answer;
          const body = await answer.json();
          Object.assign(body.plans[0], {json.dumps({"scenarios": scenarios, "objective": objective})});
          return new Response(JSON.stringify(body));
        }}; }})()""")
        self.browser.wait("eplb.main.data().plans[0].scenarios.length === 2")
        line = f"#decisions .log [data-key='plan {plan['plan']}']"
        self.browser.ask("focus", selector=f"{line} summary")
        self.browser.ask("key", name="Enter")
        self.browser.wait("document.querySelector('#decisions .log table') !== null")
        self.assertIn("2 scenarios: balancedness under any mixture at least 0.9650, before 0.7350", self.browser.texts(f"{line} p"))
        names = ("balancedness under", "weight", "before", "proposed", "worst layer")
        self.assertEqual(self.browser.table("decisions"), [dict(zip(names, row)) for row in (
            ("steps 0..9", "3", "0.8123", "0.9712", "0.9300"), (hostile, "0.333", "0.7411", "0.9712", "0.9300"),
            ("any mixture, at least", "", "0.7350", "0.9650", ""))])
        self.assertEqual([one for one in self.browser.ask("axe") if one["impact"] in ("serious", "critical")], [])
        self.browser.value("new Promise((done) => { setTimeout(done, 2500); })")
        self.assertTrue(self.browser.value(f'document.querySelector("{line}").open'), "a refresh leaves it open")
        self.browser.ask("focus", selector=f"{line} summary")
        self.browser.ask("key", name="Enter")
        self.browser.wait("document.querySelector('#decisions .log table') === null")
        self.check_clean()

    def test_an_engine_asks_for_all_gpus(self):
        self.run_job()
        self.show()
        self.browser.value("""(() => { const ask = window.fetch; window.fetch = async (path, options) => {
          const answer = await ask(path, options);
          if (!path.endsWith("jobs/demo")) return answer;
          return new Response(JSON.stringify({ ...await answer.json(), state: "IDLE", engine: "vLLM <b>1</b>" }));
        }; })()""")
        self.browser.wait("document.querySelector('#ranks .note').textContent.startsWith('vLLM <b>1</b> asks for placements for 4 GPUs')")
        notes = self.browser.texts(".top .tile .note")
        self.assertLessEqual({"asks for all GPUs", "questions of vLLM <b>1</b>"}, set(notes))
        self.check_clean()

    def test_switches_are_those_of_the_report(self):
        self.run_job()
        self.show()
        report = json.loads(subprocess.run([job.BIN / "eplbctl", "report", self.directory, "-o", "json"], capture_output=True,
                                           text=True, check=True, timeout=60).stdout)
        plans = [plan for plan in self.browser.value("eplb.main.data().plans") if plan["chunks_committed"] > 0]
        self.assertGreater(len(plans), 0)
        self.assertEqual(sum(plan["received_bytes"] for plan in plans), sum(one["bytes_moved"] for one in report["switches"]))
        shown = {row["switched at"] for row in self.browser.table("rebalances")}
        self.assertLessEqual({str(plan["switched_step"]) for plan in plans}, shown)
        self.assertLessEqual({plan["switched_step"] for plan in plans}, {one["step"] for one in report["switches"]})

    def test_a_time_line_names_the_slowest_rank(self):
        self.run_job()
        self.show()
        newest = next(plan for plan in self.api("jobs/demo/plans")["plans"] if plan["chunks_committed"] > 0)
        self.assertIsNone(newest["times"], "lists come without times")
        times = self.api(f"jobs/demo/plans?plan={newest['plan']}")["plans"][0]["times"]
        chunk = times["chunks"][0]
        late = next(one["rank"] for one in chunk["ranks"] if one["prepared_unix_micros"] == chunk["prepared_unix_micros"])
        took = (chunk["prepared_unix_micros"] - chunk["proposed_unix_micros"]) / 1e6
        caption = f"Plan {newest['plan']},"
        self.browser.wait("document.querySelector('#rebalances .phase') !== null")
        rows = self.browser.value(f"""[...document.querySelectorAll('#rebalances figure')]
          .find((one) => one.textContent.startsWith({json.dumps(caption)})).querySelectorAll('.phase').values()
          .map((one) => [...one.querySelectorAll('span')].map((part) => part.textContent)).toArray()""")
        prepare = next(row for row in rows if row[0].startswith("prepare"))
        self.assertEqual(prepare[2:], [self.browser.value(f"eplb.format.seconds({took!r})"), f"rank {late} was the slowest"])
        pause = next(row for row in rows if row[0].startswith("pause"))
        self.assertEqual(pause[2], self.browser.value(f"eplb.format.seconds({chunk['longest_pause_seconds']!r})"))
        chunk |= {"committed": False, "ended_unix_micros": 0, "longest_pause_seconds": None}
        open_plan = newest | {"result": "proposed", "chunks_committed": 0, "times": times | {"chunks": [chunk]}}
        self.browser.value(f"""(() => {{ const ask = window.fetch; window.fetch = async (path, options) => path.includes('/plans?')
          ? new Response(JSON.stringify({{ job: 'demo', plans: [{json.dumps(open_plan)}] }})) : ask(path, options); }})()""")
        self.browser.wait("document.querySelector('#rebalances .note').textContent.includes('is in flight')")
        self.browser.wait("document.querySelectorAll('#rebalances figure').length === 1")
        self.assertIn("in flight", self.browser.texts("#rebalances .took"))
        self.assertNotIn("withdrawn", self.browser.text("#rebalances .lines"))

    def test_the_pointer_reads_the_chart(self):
        self.run_job()
        self.show()
        self.browser.ask("hover", selector="#balance .u-over")
        self.browser.wait("!document.querySelector('#balance .tip').hidden")
        tip = self.browser.text("#balance .tip b").removeprefix("steps ")
        row = next(row for row in self.browser.table("balance") if row["steps"] == tip)
        shown = self.browser.texts("#balance .tip div")
        self.assertLessEqual({f"{name}{row[name]}" for name in ("measured", "static layout", "without EPLB")}, set(shown))
        points = self.browser.value("[...document.querySelectorAll('#balance .u-cursor-pt')].map((one) => getComputedStyle(one).backgroundColor)")
        self.assertNotIn(self.browser.value("getComputedStyle(document.body).backgroundColor"), points, "a point does not look like a gap in its line")

    def test_a_refresh_leaves_the_reader_alone(self):
        one = self.start_job(steps=3000, step_ms=20)
        job.wait_for(lambda: one.last_step() > 60, 30, "the job has run 60 steps")
        self.show()
        self.browser.table("balance")
        self.browser.value("(() => { document.styleSheets[1].insertRule('#balance .scroll { max-height: 60px; }'); "
                           "document.querySelector('#balance .scroll').scrollTop = 40; document.querySelector('.sections a').focus(); })()")
        first = self.browser.value("eplb.main.data().windows.length")
        self.browser.wait(f"eplb.main.data().windows.length > {first + 1}")
        self.assertEqual(self.browser.value("document.querySelector('#balance .scroll').scrollTop"), 40)
        self.assertTrue(self.browser.value("document.activeElement.matches('.sections a')"))

    def test_figures_follow_a_live_job(self):
        one = self.start_job(steps=3000, step_ms=20)
        job.wait_for(lambda: one.last_step() > 20, 30, "the job has run 20 steps")
        self.show()
        first = self.browser.value("eplb.main.data().windows.length")
        self.browser.wait(f"eplb.main.data().windows.length > {first + 1}")
        self.assertEqual(self.browser.text("#connection"), "live")
        for rank in one.ranks:  # at once: a rank that sees another one end would report a failure
            rank.kill()
        self.browser.wait("document.querySelector('.headline').textContent.includes('not connected')")
        self.check_clean()

    def test_a_restart_and_a_lost_network_are_told_and_outlived(self):
        self.run_job()
        self.show()
        self.browser.wait("document.getElementById('connection').textContent === 'live'")
        self.daemon.kill()
        self.browser.wait("document.getElementById('connection').textContent.includes('connection lost')")
        self.assertTrue(self.browser.value("document.body.classList.contains('stale')"))
        self.assertNotEqual(self.browser.texts("#decisions .log li"), [], "the figures of then stay")
        self.daemon.start()
        self.browser.wait("document.getElementById('connection').textContent === 'live'")
        # Window numbers begin again: what the page shows is of this daemon.
        self.run_job(steps=60)
        newest = self.api("jobs/demo/windows?limit=1000")["windows"][-1]
        self.browser.wait(f"eplb.main.data().windows.at(-1)?.completed_unix_micros === {newest['completed_unix_micros']}")
        self.browser.wait(f"document.querySelector('#heat .when').textContent.startsWith('steps {newest['first_step']}..{newest['last_step']}')")
        loads = self.api("jobs/demo/gpu_loads")["gpu_loads"]
        expected = [f"{row.index(max(row))}: {max(row) / (sum(row) / len(row)):.2f} × mean" for row in loads]
        job.wait_for(lambda: self.browser.table("heat", "that ran: fullest GPU") == expected, 10, "the map is that of the API")
        self.browser.ask("offline", offline=True)
        self.daemon.kill()  # an open stream outlives the browser's idea of a network
        self.browser.wait("document.getElementById('connection').textContent.includes('connection lost')")
        self.daemon.start()
        self.browser.ask("offline", offline=False)
        self.browser.wait("document.getElementById('connection').textContent === 'live'")
        self.assertFalse(self.browser.value("document.body.classList.contains('stale')"))

    def test_one_address_shows_one_view(self):
        self.run_job()
        windows = [one for one in self.api("jobs/demo/windows?limit=1000")["windows"] if one["has_loads"]]
        old = windows[1]
        self.show(f"#/demo?window={old['window']}&layer=3&find=committed")
        self.browser.wait(f"document.querySelector('#heat .when').textContent.startsWith('steps {old['first_step']}..{old['last_step']}')")
        self.browser.wait("document.querySelector('#layer .note').textContent.startsWith('Layer 3')")
        self.assertEqual(self.browser.value("document.querySelector('#decisions input').value"), "committed")
        self.browser.unfold("#decisions")
        self.assertTrue(all("committed" in text for text in self.browser.texts("#decisions .log li")))
        loads = self.api(f"jobs/demo/gpu_loads?window={old['window']}")["gpu_loads"]
        self.browser.wait("document.querySelector('#heat canvas') !== null")
        self.browser.ask("focus", selector="#heat .map:nth-of-type(2) canvas")
        self.browser.ask("key", name="ArrowRight")
        self.browser.wait("document.querySelector('#heat .reading').textContent.startsWith('Layer 0, GPU')")
        self.browser.wait("!document.querySelector('#heat .map:nth-of-type(2) .cursor').hidden")
        self.assertIn(f"{int(loads[0][0] + 0.5):,} tokens", self.browser.text("#heat .reading").replace("\u202f", ","))

    def test_the_keyboard_reaches_everything_and_is_never_caught(self):
        self.run_job()
        self.show()
        reached = []
        for _ in range(60):
            self.browser.ask("key", name="Tab")
            reached.append(self.browser.value(
                "(() => { const node = document.activeElement; return node === document.body ? '' : "
                "node.id || node.className || node.tagName; })()"))
            if reached[-1] == "" and len(reached) > 5:
                break
        for wanted in ("skip", "theme", "CANVAS", "SELECT", "log"):
            self.assertTrue(any(wanted in one for one in reached), f"{wanted} is not among {reached}")
        self.assertIn("", reached, "the walk ends outside the page")

    def test_axe_finds_nothing_serious(self):
        self.run_job()
        for width, height, theme in ((1440, 900, "light"), (1440, 900, "dark"), (390, 844, "light"), (390, 844, "dark")):
            with self.subTest(width=width, theme=theme):
                self.show(width=width, height=height, theme=theme)
                self.browser.value("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
                time.sleep(0.5)
                found = [one for one in self.browser.ask("axe") if one["impact"] in ("serious", "critical")]
                self.assertEqual(found, [])
                self.assertLessEqual(self.browser.value("document.documentElement.scrollWidth"), width, "nothing is wider than the window")

    def test_hostile_text_stays_text(self):
        self.run_job()
        hostile = "<img src=x onerror='window.hurt=1'><script>window.hurt=2</script>\u202egnp\u202c \"'&amp; \\ {{7*7}}"
        for comment in (hostile, "x" * 256):
            subprocess.run([job.BIN / "eplbctl", "pause", "--job", "demo", "--comment", comment, "--endpoint", self.daemon.endpoint],
                           stdout=subprocess.DEVNULL, timeout=20, check=True)
        self.show()
        self.browser.unfold("#decisions")
        self.browser.wait("document.body.textContent.includes('onerror=')")
        self.assertIsNone(self.browser.value("window.hurt ?? null"))
        self.assertEqual(self.browser.value("document.querySelectorAll('main img, main script').length"), 0)
        self.assertLessEqual(self.browser.value("document.documentElement.scrollWidth"), 1440)
        self.check_clean()


if __name__ == "__main__":
    unittest.main()
