"""eplbctl get plan -o trace and report -o trace of a run of real processes: their figures are those of the logs."""

import json
import unittest

import job as harness
from trace_check import holds, problems_of, spans_of

FIRST_RANK = 10_000_000
WORLD = 3


class TracesTest(harness.DaemonTest):
    def setUp(self):
        super().setUp()
        self.daemon = self.started_daemon(40, "eplbd", "[report]\nevery_steps = 20\n[migration]\nlayers_per_chunk = 3\n")

    def ask(self, *arguments, code=0):
        done = harness.eplbctl(*arguments)
        self.assertEqual(done.returncode, code, done.stderr + done.stdout)
        return done

    def trace(self, *arguments):
        done = self.ask(*arguments, "-o", "trace")
        trace = json.loads(done.stdout)
        self.assertEqual(problems_of(trace), [], arguments)
        self.assertEqual(trace["baseTimeNanoseconds"], 0)
        return trace

    def plans(self):
        return json.loads(self.ask("get", "plans", "--limit", 1000, "-o", "json", "--endpoint", self.daemon.endpoint).stdout)["plans"]

    def test_the_figures_of_both_traces_are_those_of_the_logs(self):
        job = self.started_job(self.daemon.endpoint, world=WORLD, steps=240, slots=66,
                               extra=("--report-every", "20"))
        self.assertEqual(job.wait(120), [0] * WORLD, [path.read_text() for path in job.errors])
        committed = [plan for plan in self.plans() if plan["result"] == "committed"]
        self.assertTrue(committed)
        self.assertTrue(all(plan["times"] is None for plan in committed), "a list is short")
        boundaries = self.the_ranks_trace(job)
        self.assertGreaterEqual(len(boundaries), WORLD)
        for plan in committed:
            self.the_daemons_trace(plan, job, boundaries)
        self.assertEqual(self.ask("get", "plan", 10 ** 6, "--endpoint", self.daemon.endpoint, code=5).stdout, "")
        table = self.ask("get", "plan", committed[0]["plan"], "--endpoint", self.daemon.endpoint).stdout
        for word in ("window", "solve", "chunk 1/", "prepare", "vote and switch", "the slowest: rank "):
            self.assertIn(word, table)
        self.report_still_reads(job)

    def the_ranks_trace(self, job):
        """returns: the boundaries, by version and rank."""
        trace = self.trace("report", self.directory)
        spans = spans_of(trace, "boundary, ")
        logged = [line for rank in range(WORLD) for line in job.history(rank) if line["event"] == "boundary"]
        self.assertEqual(sorted((span["pid"] - FIRST_RANK, span["ts"], span["dur"], span["args"]["version"]) for span in spans),
                         sorted((line["rank"], line["unix_micros"], line["micros"], line["version"]) for line in logged))
        inner = [(line["rank"], one["name"], one["unix_micros"], one["micros"]) for line in logged for one in line["spans"]]
        inner += [(line["rank"], f"round {one['round']}", one["unix_micros"], one["micros"]) for line in logged
                  for one in line["rounds"]]
        self.assertEqual(sorted((span["pid"] - FIRST_RANK, span["name"], span["ts"], span["dur"]) for span in spans_of(trace)
                                if not span["name"].startswith("boundary, ")), sorted(inner))
        for line in logged:
            self.one_boundary_holds_its_parts(line)
        prepared = [event for event in trace["traceEvents"] if event["name"].startswith("PREPARED for version ")]
        commits = job.commits()
        self.assertGreaterEqual(len(prepared), WORLD * len(commits))
        by_version = {(span["args"]["version"], span["pid"] - FIRST_RANK): span for span in spans
                      if span["args"]["outcome"] == "committed"}
        for change in job.report()["switches"]:
            of_ranks = [by_version[change["version"], rank] for rank in range(WORLD)]
            self.assertEqual(sum(span["args"]["received_bytes"] for span in of_ranks), change["bytes_moved"])
            self.assertLessEqual(change["pause_seconds"], max(span["dur"] for span in of_ranks) / 1e6 + 2e-6)
            self.assertEqual({span["args"]["step"] for span in of_ranks}, {change["step"]})
        for event in prepared:
            boundary = by_version.get((event["args"]["version"], event["pid"] - FIRST_RANK))
            if boundary is not None:
                self.assertLess(event["ts"], boundary["ts"] + boundary["dur"])
        return by_version

    def one_boundary_holds_its_parts(self, line):
        parts = {one["name"]: {"ts": one["unix_micros"], "dur": one["micros"]} for one in line["spans"]}
        whole = {"ts": line["unix_micros"], "dur": line["micros"]}
        for name, part in parts.items():
            self.assertTrue(holds(whole, part), (name, line))
        if line["outcome"] != "committed":
            return
        order = [parts[name] for name in ("vote", "transfer", "second vote", "commit")]
        for before, after in zip(order, order[1:]):
            self.assertLessEqual(before["ts"] + before["dur"], after["ts"], line)
        self.assertTrue(line["rounds"] or "local rows" in parts or sum(r["received_bytes"] for r in line["rounds"]) == 0)
        for one in line["rounds"]:
            self.assertTrue(holds(parts["transfer"], {"ts": one["unix_micros"], "dur": one["micros"]}), line)
            self.assertLessEqual(one.get("checksum_micros", 0), one["micros"], line)
        self.assertEqual(line["transport"], "host")

    def the_daemons_trace(self, plan, job, boundaries):
        trace = self.trace("get", "plan", plan["plan"], "--endpoint", self.daemon.endpoint)
        self.assertEqual(trace["metadata"]["not_known"], [])
        told = json.loads(self.ask("get", "plan", plan["plan"], "-o", "json", "--endpoint", self.daemon.endpoint).stdout)["plan"]
        self.assertEqual({**told, "times": None}, plan)
        chunks = spans_of(trace, "chunk ")
        self.assertEqual([span["args"]["version"] for span in chunks],
                         list(range(plan["first_version"], plan["last_version"] + 1)))
        self.assertEqual(len(chunks), plan["chunks_committed"])
        prepares = {span["args"]["version"]: span for span in spans_of(trace, "prepare") if "timed_ranks" in span["args"]}
        self.assertAlmostEqual(max(span["dur"] for span in prepares.values()) / 1e6, plan["prepare_seconds"], delta=2e-6)
        events = {(event["name"], event["version"]): event["unix_micros"] for event in json.loads(
            self.ask("get", "events", "--limit", 1000, "-o", "json", "--endpoint", self.daemon.endpoint).stdout)["events"]}
        longest = []
        for span in chunks:
            version = span["args"]["version"]
            # The audit log is written a moment later, by the same clock.
            self.assertAlmostEqual(span["ts"], events["proposed", version], delta=1e6)
            self.assertAlmostEqual(span["ts"] + span["dur"], events["committed", version], delta=1e6)
            prepare = prepares[version]
            self.assertEqual(prepare["args"]["timed_ranks"], WORLD)
            ranks = [one for one in spans_of(trace, "prepare") if one["args"]["version"] == version and one is not prepare]
            self.assertEqual(len(ranks), WORLD)
            self.assertEqual(max(one["dur"] for one in ranks), prepare["dur"])
            self.assertEqual([one["name"] for one in ranks if one["dur"] == prepare["dur"]].count("prepare (the slowest)"), 1)
            switch, = [one for one in spans_of(trace, "vote and switch") if one["tid"] == span["tid"] and holds(span, one)
                       and one["args"]["version"] == version]
            longest.append(switch["args"]["longest_boundary_seconds"])
            for rank in range(WORLD):  # on one host daemon and ranks have one clock
                self.assertTrue(holds(span, boundaries[version, rank], slack=5000), (span, boundaries[version, rank]))
        self.assertAlmostEqual(max(longest), plan["pause_seconds"], delta=1e-9)
        window, = spans_of(trace, "window: ")
        solve, = spans_of(trace, "solve")
        self.assertLessEqual(window["ts"] + window["dur"], solve["ts"])
        self.assertAlmostEqual(plan["solve_seconds"], solve["dur"] / 1e6, delta=2e-6)
        self.assertLessEqual(solve["ts"] + solve["dur"], plan["unix_micros"])
        decided, = [event for event in trace["traceEvents"] if event["name"] == f"decision {plan['plan']}"]
        self.assertEqual((decided["ts"], decided["args"]["reason"]), (plan["unix_micros"], plan["reason"]))

    def report_still_reads(self, job):
        report = json.loads(self.ask("report", self.directory, "-o", "json").stdout)
        self.assertEqual(report["problems"], [])
        refused = self.ask("report", self.directory, "-o", "trace", "--html", self.directory / "x.html", code=2)
        self.assertIn("-o trace prints the ranks' logs alone", refused.stderr)
        for name in ("run.json", "loads.jsonl", "placements.jsonl"):
            (self.directory / name).unlink()
        self.trace("report", self.directory)  # a job that is none of eplb-trainer
        log = self.directory / "rank-1.jsonl"
        log.write_text(log.read_text().replace('"micros":', '"micros":-', 1))
        broken = self.ask("report", self.directory, "-o", "trace", code=2)
        self.assertRegex(broken.stderr, r"rank-1\.jsonl: line \d+: micros is -\d+, expected >= 0")


class CheckTest(unittest.TestCase):
    """The check itself finds what is wrong."""

    def trace(self, *events):
        return {"displayTimeUnit": "ms", "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 1, "tid": 2, "args": {"name": "p"}},
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "t"}}, *events]}

    def span(self, ts, dur, **more):
        return {"ph": "X", "name": "a", "pid": 1, "tid": 2, "ts": ts, "dur": dur, **more}

    def test_what_is_right_has_no_problem(self):
        self.assertEqual(problems_of(self.trace(self.span(0, 9), self.span(0, 4), self.span(4, 5), self.span(9, 1))), [])

    def test_each_fault_is_found(self):
        for fault, events in {"crosses the end": (self.span(0, 5), self.span(4, 5)), "not sorted": (self.span(5, 1), self.span(0, 1)),
                              "not all of": (self.span(0, -1),), "ph is": (self.span(0, 1, ph="Z"),),
                              "process 7 has 0": (self.span(0, 1, pid=7),), "track 3": (self.span(0, 1, tid=3),)}.items():
            with self.subTest(fault):
                self.assertIn(fault, " ".join(problems_of(self.trace(*events))))


if __name__ == "__main__":
    unittest.main()
