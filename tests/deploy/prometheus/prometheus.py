"""A Prometheus of Debian's package `prometheus` beside the daemons of a test: loopback, data in the test's folder."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import unittest
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/integration"))

RULES = ROOT / "deploy/prometheus/alerts.yml"
CONFIG = ROOT / "deploy/prometheus/prometheus.yml"
DASHBOARD = ROOT / "deploy/grafana/dashboard.json"
MISSING = [name for name in ("prometheus", "promtool") if shutil.which(name) is None]
needs_prometheus = unittest.skipIf(MISSING, f"{' and '.join(MISSING)} not found: package prometheus (deploy/setup.sh --tests)")

KEYWORDS = {"and", "or", "unless", "offset", "bool", "inf", "nan"}


def promtool(*arguments, stdin=None):
    """Output of both streams; AssertionError unless promtool exits with 0."""
    done = subprocess.run(["promtool", *map(str, arguments)], input=stdin, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise AssertionError(f"promtool {' '.join(map(str, arguments))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def metrics_of(expression):
    """The names of the metrics in a PromQL expression: what is left of it beside functions, labels, numbers and words."""
    text = re.sub(r'"(?:[^"\\]|\\.)*"', "", expression)
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", text)
    text = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", text)
    names = re.findall(r"(?<![\w.])([a-zA-Z_:][\w:]*)(?!\s*\()\b(?!\s*\()", text)
    return {name for name in names if name.lower() not in KEYWORDS}


def rules_in(text):
    """name -> {expr, for, ..} of the shipped file, read line by line: Debian's Python needs no YAML for it."""
    rules, rule, key = {}, None, None
    for line in text.splitlines():
        if found := re.match(r" +- alert: (\w+)$", line):
            rule = rules.setdefault(found[1], {})
            key = None
        elif rule is not None and (found := re.match(r" {8}(?:  )?(\w+): ?(.*)$", line)):
            key = found[1]
            rule[key] = "" if found[2] == "|-" else found[2].strip('"')
        elif rule is not None and key is not None and line.startswith(" " * 10):
            rule[key] += " " + line.strip().strip('"')
        elif re.match(r" {2}- name", line):
            rule = None
    return rules


def dashboard_queries(dashboard):
    """(title of the panel, expression) of every query of the dashboard, its annotations included."""
    queries = [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel.get("targets", ())]
    return queries + [(one["name"], one["expr"]) for one in dashboard["annotations"]["list"]]


class Prometheus:
    """Scrapes `targets` each second as job `eplb`. rules: a file of rules, evaluated each second; or None."""

    def __init__(self, directory, targets, rules=None):
        import job as harness
        self.harness = harness
        self.port = harness.free_port()
        config = directory / "prometheus.yml"
        listed = ", ".join(f'"{target}"' for target in targets)
        config.write_text("global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n" +
                          (f"rule_files: [{rules}]\n" if rules else "") +
                          f"scrape_configs:\n  - {{job_name: eplb, static_configs: [{{targets: [{listed}]}}]}}\n")
        promtool("check", "config", config)
        self.log = directory / "prometheus.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}", "--log.level=warn",
                 f"--web.listen-address=127.0.0.1:{self.port}"], stdout=log, stderr=log)

    def wait_until_ready(self):
        def ready():
            if self.process.poll() is not None:
                raise AssertionError(f"prometheus ended with {self.process.returncode}: {self.log.read_text()[-500:]}")
            try:
                return self._get("/-/ready").status == 200
            except OSError:
                return False

        self.harness.wait_for(ready, 30, "prometheus is ready")

    def close(self):
        self.process.kill()
        self.process.wait(10)

    def query(self, expression):
        """The samples of an instant query, [{"metric": labels, "value": [time, text]}]."""
        return self._json("/api/v1/query", query=expression)["result"]

    def firing(self):
        """{(alert, labels that tell the cause)} of every alert that fires: the training job, else the daemon."""
        alerts = [alert["labels"] for alert in self._json("/api/v1/alerts")["alerts"] if alert["state"] == "firing"]
        return {(alert["alertname"], alert.get("training_job", alert.get("instance"))) for alert in alerts}

    def rules(self):
        """name -> rule as Prometheus has loaded it."""
        return {rule["name"]: rule for group in self._json("/api/v1/rules")["groups"] for rule in group["rules"]}

    def _get(self, path, **parameters):
        address = f"http://127.0.0.1:{self.port}{path}?{urllib.parse.urlencode(parameters)}"
        return urllib.request.urlopen(address, timeout=10 * self.harness.PATIENCE)

    def _json(self, path, **parameters):
        try:
            with self._get(path, **parameters) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {parameters}: {error.read().decode()}") from error
