"""eplbctl replay --html: one file that needs no other, the same for the same input, and whole or not there."""

import json
import os
import re
import unittest

import command

LOAD = [[900, 800, 30, 20], [1, 2, 300, 400]]
SHAPE = ("--gpus", 2, "--slots", 6)


class HtmlTest(command.CommandTest):
    def trace(self, windows=12, name="trace.jsonl"):
        return self.write(name, "".join(json.dumps({"first_step": t, "last_step": t, "load": LOAD}) + "\n" for t in range(windows)))

    def page(self, trace, *more):
        out = self.directory / "page.html"
        result = command.run("replay", "--trace", trace, *SHAPE, "--html", out, *more)
        self.assertEqual(result.returncode, 0, result.stderr)
        return out.read_text(encoding="utf-8"), result.stdout

    def documents(self, text):
        [content] = re.findall(r'<script type="application/json" id="eplb-documents">(.*?)</script>', text, re.S)
        return json.loads(content)

    def test_what_is_printed_stays_and_equal_input_gives_equal_bytes(self):
        trace = self.trace()
        text, printed = self.page(trace, "-o", "json")
        self.assertEqual(printed, command.run("replay", "--trace", trace, *SHAPE, "-o", "json").stdout)
        self.assertEqual(self.page(trace)[0], text)
        windows = self.documents(text)["paths"]["api/v1/jobs/trace.jsonl/windows"]["windows"]
        self.assertEqual([one["balancedness"] for one in windows], [one["balancedness"] for one in json.loads(printed)["windows"]])

    def test_one_window_and_a_name_of_markup(self):
        trace = self.trace(1, "<img src=x>&\u202e'.jsonl")
        text, _ = self.page(trace)
        self.assertNotIn("<img", text)
        jobs = self.documents(text)["paths"]["api/v1/jobs"]["jobs"]
        self.assertEqual([one["job"] for one in jobs], [trace.name.replace("\u202e", "?")])

    def test_a_page_that_cannot_be_written_is_an_error_without_output(self):
        missing = self.directory / "missing" / "page.html"
        result = command.run("replay", "--trace", self.trace(), *SHAPE, "--html", missing)
        self.assert_fails(result, 1, missing)
        self.assertEqual(os.listdir(self.directory), ["trace.jsonl"])

    def test_a_trace_that_cannot_be_read_leaves_the_page_alone(self):
        page = self.write("page.html", "of before")
        result = command.run("replay", "--trace", self.write("bad.jsonl", "[[1]"), *SHAPE, "--html", page)
        self.assert_fails(result, 2, "bad.jsonl")
        self.assertEqual(page.read_text(), "of before")


if __name__ == "__main__":
    unittest.main()
