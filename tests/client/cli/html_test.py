"""eplbctl replay --html: one file that needs no other, the same for the same input, and whole or not there."""

import base64
import hashlib
import html.parser
import json
import os
import re
import unittest

import command

LOAD = [[900, 800, 30, 20], [1, 2, 300, 400]]
SHAPE = ("--gpus", 2, "--slots", 6)


class Elements(html.parser.HTMLParser):
    """Scripts and styles with their contents as a browser takes them, and every attribute."""

    def __init__(self, text):
        super().__init__(convert_charrefs=False)
        self.contents, self.attributes, self.inside = [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.attributes += [(tag, name, value) for name, value in attributes]
        if tag in ("script", "style"):
            self.inside = (tag, dict(attributes))
            self.contents.append([tag, dict(attributes), ""])

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside:
            self.contents[-1][2] += data


class HtmlTest(command.CommandTest):
    def trace(self, windows=12, name="trace.jsonl"):
        return self.write(name, "".join(json.dumps({"first_step": t, "last_step": t, "load": LOAD}) + "\n" for t in range(windows)))

    def page(self, trace, *more):
        out = self.directory / "page.html"
        result = command.run("replay", "--trace", trace, *SHAPE, "--html", out, *more)
        self.assertEqual(result.returncode, 0, result.stderr)
        return out.read_text(encoding="utf-8"), result.stdout

    def documents(self, text):
        [content] = [content for tag, attributes, content in Elements(text).contents if attributes.get("id") == "eplb-documents"]
        return json.loads(content)

    def test_every_script_and_style_is_allowed_by_its_hash_and_nothing_is_elsewhere(self):
        text, _ = self.page(self.trace())
        elements = Elements(text)
        policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text).group(1)
        self.assertTrue(policy.startswith("default-src 'none'; script-src 'sha256-"))
        self.assertNotIn("unsafe", policy)
        allowed = dict(part.strip().split(" ", 1) for part in policy.split(";"))
        for tag, source in (("script", "script-src"), ("style", "style-src")):
            hashes = ["'sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() + "'"
                      for name, attributes, content in elements.contents if name == tag and not attributes]
            self.assertEqual(allowed[source].split(), hashes)
        for tag, name, value in elements.attributes:
            self.assertFalse(name.startswith("on") or name in ("src", "style", "srcset", "action"), (tag, name, value))
            if name == "href":
                self.assertTrue(value.startswith("#"), (tag, value))

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
