"""The alerts that are shipped, read by promtool, and their page: each alert has its words, its section and its unit test."""

import json
import re
import unittest

from prometheus import CONFIG, DASHBOARD, ROOT, RULES, dashboard_queries, metrics_of, needs_prometheus, promtool, rules_in

TESTS = ROOT / "tests/deploy/prometheus/alerts_test.yml"
PAGE = ROOT / "docs/alerts.md"
SEVERITIES = {"critical", "warning", "info"}


@needs_prometheus
class PromtoolTest(unittest.TestCase):
    def test_rules_and_configuration_are_valid(self):
        self.assertIn(f"{len(rules_in(RULES.read_text()))} rules found", promtool("check", "rules", "--lint-fatal", RULES))
        promtool("check", "config", CONFIG)

    def test_the_unit_tests_of_the_rules_pass(self):
        self.assertIn("SUCCESS", promtool("test", "rules", TESTS))


class PageTest(unittest.TestCase):
    def setUp(self):
        self.rules = rules_in(RULES.read_text())
        self.page = PAGE.read_text()
        self.sections = dict(re.findall(r"^## (Eplb\w+)\n(.*?)(?=^## |\Z)", self.page, re.M | re.S))

    def test_each_alert_has_words_a_severity_and_a_section_of_the_page(self):
        self.assertGreaterEqual(len(self.rules), 10)
        for name, rule in self.rules.items():
            with self.subTest(alert=name):
                self.assertIn(rule["severity"], SEVERITIES)
                self.assertRegex(rule["summary"], r"\{\{ \$labels\.(instance|training_job) \}\}")
                self.assertRegex(rule["description"], r"^[A-Z].*\.$")
                self.assertEqual(rule["runbook_url"], f"docs/alerts.md#{name.lower()}")
                for part in ("**Means.**", "**See.**", "**Do.**", "**Clears**"):
                    self.assertIn(part, self.sections[name])

    def test_the_page_has_the_alerts_of_the_file_and_no_other(self):
        self.assertEqual(list(self.sections), list(self.rules))
        rows = re.findall(r"^\| \[(\w+)\]\(#(\w+)\) \| (\w+) \| .* \| (.+) \|$", self.page, re.M)
        self.assertEqual([row[0] for row in rows], list(self.rules))
        for name, anchor, severity, after in rows:
            self.assertEqual(anchor, name.lower())
            self.assertEqual(severity, self.rules[name]["severity"])
            self.assertEqual(after.replace(" min", "m"), self.rules[name].get("for", "at once"), name)

    def test_each_alert_has_a_unit_test(self):
        text = TESTS.read_text()
        for name in self.rules:
            self.assertIn(f'alertname="{name}"', text)


class ExpressionTest(unittest.TestCase):
    def test_names_of_metrics_are_found_in_expressions(self):
        self.assertEqual(metrics_of('sum by (instance) (rate(a_total{b="c d",e!~"f"}[5m])) > 0.5 * g:h'), {"a_total", "g:h"})
        self.assertEqual(metrics_of("(a > 0) < 0.95 and on (b, c) d == e unless f offset 10m"), {"a", "d", "e", "f"})
        self.assertEqual(metrics_of("x - time() < 14 * 86400 or vector(1)"), {"x"})

    def test_every_query_of_the_dashboard_has_a_metric_and_choices(self):
        dashboard = json.loads(DASHBOARD.read_text())
        self.assertGreaterEqual(dashboard["schemaVersion"], 38)
        variables = {one["name"] for one in dashboard["templating"]["list"]}
        self.assertEqual(variables, {"datasource", "instance", "training_job"})
        panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
        self.assertEqual(len({panel["id"] for panel in dashboard["panels"]}), len(dashboard["panels"]))
        for panel in panels:
            self.assertEqual(panel["datasource"]["uid"], "${datasource}")
            self.assertNotEqual(panel["description"], "")
            self.assertGreaterEqual(len(panel["targets"]), 1)
        for title, expression in dashboard_queries(dashboard):
            with self.subTest(panel=title):
                self.assertTrue(metrics_of(expression), expression)
                used = set(re.findall(r"\$(\w+)", expression)) - {"__rate_interval"}
                self.assertIn("instance", used)
                self.assertLessEqual(used, variables)


if __name__ == "__main__":
    unittest.main(verbosity=2)
