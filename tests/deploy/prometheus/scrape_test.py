"""A real Prometheus scrapes two real daemons: names and units are clean, the rules load, and no query is without a series."""

import json
import pathlib
import subprocess
import tempfile
import unittest
import urllib.request

from prometheus import DASHBOARD, RULES, Prometheus, dashboard_queries, metrics_of, needs_prometheus, promtool, rules_in

import job as harness  # noqa: E402
import raw_rank  # noqa: E402
import tls_test  # noqa: E402

WITHOUT_A_SWITCH = {"eplb_spent_seconds"}  # absent, because no job of this test switches
CONFIG = """[report]
every_steps = 10
[cost]
token_ns = 500
[metrics]
per_expert = true
"""


@needs_prometheus
class ScrapeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="eplb-prometheus-")))
        cls.daemon = harness.Daemon(cls.directory, policy_every=10, config=CONFIG)
        authority = tls_test.Authority(cls.directory)
        authority.sign("server", "DNS:localhost,IP:127.0.0.1", days=365)
        cls.tls = harness.Daemon(cls.directory, name="tls")
        cls.tls.config.write_text(tls_test.CONFIG.format(cls.directory))
        for daemon in (cls.daemon, cls.tls):
            daemon.start()
            cls.addClassCleanup(daemon.kill)
        cls.switches = []
        job = raw_rank.RawJob(cls.daemon.grpc_port, "train", uneven=True, on_switch=cls.switches.append)
        cls.addClassCleanup(job.close)
        job.connect().train()
        cls.prometheus = Prometheus(cls.directory, [f"127.0.0.1:{one.http_port}" for one in (cls.daemon, cls.tls)], RULES)
        cls.addClassCleanup(cls.prometheus.close)
        cls.prometheus.wait_until_ready()
        subprocess.run([harness.BIN / "eplbctl", "status", "--endpoint", cls.daemon.endpoint], check=True, capture_output=True,
                       timeout=60)
        harness.wait_for(lambda: cls.prometheus.query("eplb_seen_balancedness_ratio"), 30, "a prediction was compared")
        # Rates need two scrapes of each series.
        harness.wait_for(lambda: cls.prometheus.query("rate(eplb_rpc_seconds_count[30s])"), 30, "two scrapes")

    def test_names_and_units_are_those_of_prometheus(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.daemon.http_port}/metrics", timeout=20) as answer:
            text = answer.read().decode()
        self.assertIn('eplb_expert_tokens{training_job="train"', text)
        self.assertEqual(promtool("check", "metrics", stdin=text), "")

    def test_both_daemons_are_scraped(self):
        self.assertEqual([sample["value"][1] for sample in self.prometheus.query('up{job="eplb"}')], ["1", "1"])
        self.assertEqual(len(self.prometheus.query('eplb_expert_tokens{training_job="train"}')), 4)
        self.assertEqual([one["metric"]["job"] for one in self.prometheus.query("eplb_job_step")], ["eplb"])

    def test_the_shipped_rules_load_and_none_fires(self):
        shipped = rules_in(RULES.read_text())
        harness.wait_for(lambda: all(rule["health"] == "ok" for rule in self.prometheus.rules().values()), 30, "rules are evaluated")
        loaded = self.prometheus.rules()
        self.assertEqual(list(loaded), list(shipped))
        for name, rule in loaded.items():
            self.assertEqual(metrics_of(rule["query"]), metrics_of(shipped[name]["expr"]), name)
        self.assertEqual(self.prometheus.firing(), set())

    def test_every_metric_of_dashboard_and_alerts_is_there(self):
        expressions = [expression for _, expression in dashboard_queries(json.loads(DASHBOARD.read_text()))]
        expressions += [rule["expr"] for rule in rules_in(RULES.read_text()).values()]
        names = set().union(*map(metrics_of, expressions))
        self.assertGreaterEqual(len(names), 30)
        missing = {name for name in names if not self.prometheus.query(name)}
        self.assertEqual(missing, WITHOUT_A_SWITCH)
        self.assertEqual(self.prometheus.query("eplb_no_such_metric"), [])

    def test_every_query_of_the_dashboard_has_an_answer(self):
        dashboard = json.loads(DASHBOARD.read_text())
        values = {"$__rate_interval": "30s", "$instance": ".*", "$training_job": "train"}
        for title, expression in dashboard_queries(dashboard):
            with self.subTest(panel=title, expression=expression):
                for name, value in values.items():
                    expression = expression.replace(name, value)
                found = self.prometheus.query(expression)
                # Commits are marks of moments only.
                if title != "Commits" and not metrics_of(expression) <= WITHOUT_A_SWITCH:
                    self.assertTrue(found)
        for variable in ("instance", "training_job"):
            query, = [one["query"]["query"] for one in dashboard["templating"]["list"] if one["name"] == variable]
            metric = query.removeprefix("label_values(").split(",")[0]
            self.assertTrue(all(variable in one["metric"] for one in self.prometheus.query(metric)), query)
            self.assertTrue(self.prometheus.query(metric), query)


if __name__ == "__main__":
    unittest.main(verbosity=2)
