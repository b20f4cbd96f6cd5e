"""A headless Chromium for tests of the web page. What is missing is told, for a test that then is skipped."""

import json
import os
import pathlib
import shutil
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
MODULES = pathlib.Path(os.environ.get("EPLB_NODE_MODULES", HERE.parents[3] / "build" / "npm" / "node_modules"))


def missing():
    """Why no browser can be had; "" when one can."""
    if shutil.which("node") is None or shutil.which("chromium") is None:
        return "node or chromium is not installed: deploy/setup.sh --tests installs both"
    if not (MODULES / "playwright-core").is_dir() or not (MODULES / "axe-core").is_dir():
        return f"playwright-core or axe-core is not in {MODULES}: deploy/setup.sh --tests installs both"
    return ""


class Browser:
    """One page of one browser. Each call ends within 30 s, or raises."""

    def __init__(self):
        self.process = subprocess.Popen(["node", HERE / "driver.mjs", shutil.which("chromium")], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env={**os.environ, "EPLB_NODE_MODULES": str(MODULES)})

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self.process.stdout.close()

    def ask(self, command, **rest):
        self.process.stdin.write(json.dumps({"command": command, **rest}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError("the browser has ended")
        answer = json.loads(line)
        if "error" in answer:
            raise AssertionError(f"{command} {rest}: {answer['error']}")
        return answer["value"]

    def open(self, url, **options):
        """width, height, theme: of the window."""
        self.ask("open", url=url, **options)

    def value(self, script):
        """Returns the value of a JavaScript expression."""
        return self.ask("evaluate", script=script)

    def wait(self, script):
        """Until a JavaScript expression is true."""
        self.ask("wait", script=script)

    def texts(self, selector):
        return self.value(f"[...document.querySelectorAll({json.dumps(selector)})].map((node) => node.textContent)")

    def text(self, selector):
        return self.value(f"document.querySelector({json.dumps(selector)}).textContent")

    def unfold(self, place):
        """Opens every line below a selector, so that its whole text is there."""
        self.value(f"document.querySelectorAll('{place} details.more').forEach((one) => {{ one.open = true; }})")
        self.wait(f"[...document.querySelectorAll('{place} details.more')].every((one) => one.children.length > 1)")

    def table(self, panel, column=None, inside=""):
        """Rows of a panel's first table as {column: text}; opens what it stands behind. inside: a selector."""
        place = f"#{panel} {inside} .scroll table"
        script = """(place) => {
          const table = document.querySelector(place);
          const names = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent);
          return [...table.querySelectorAll("tbody tr")].map((row) =>
            Object.fromEntries([...row.cells].map((cell, i) => [names[i], cell.textContent])));
        }"""
        self.value(f"document.querySelectorAll('#{panel} details').forEach((one) => {{ one.open = true; }})")
        self.wait(f"document.querySelector('{place}') !== null")
        rows = self.value(f"({script})({json.dumps(place)})")
        return rows if column is None else [row[column] for row in rows]
