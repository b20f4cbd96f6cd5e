"""Every page: it is reached from the first, files that are named exist, commands are ones that eplbctl and eplbd take, the
configuration's keys are described as the daemon knows them, and figures of the tables of sizes follow from their factors."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import tempfile
import unittest

import configuration_page
import links

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ["EPLB_BUILD"]) / "bin"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md"), *(ROOT / "client").rglob("*.md"),
                *(ROOT / "tests").rglob("*.md")])
PAGES = [page for page in PAGES if "build" not in page.parts]
# A path of the repository that a page names; blanks, patterns and placeholders make it another thing.
NAMED = re.compile(r"(?:base|client|cuda|deploy|docs|placement|proto|server|tests)/[\w./-]+\.(?:h|cc|cu|py|sh|md|jsonl|json|yml|yaml|toml|proto|c)\b")
DEADLINE = 60


def text_of(page):
    return page.read_text(encoding="utf-8")


def without_code(text):
    return re.sub(r"```.*?```", "", text, flags=re.S)


class NamesTest(unittest.TestCase):
    def test_files_that_are_named_exist(self):
        missing = {f"{page.relative_to(ROOT)}: {name}" for page in PAGES for name in NAMED.findall(text_of(page))
                   if page.name != "CHANGELOG.md"  # which names removed files
                   and "NAME" not in name and not (ROOT / name).exists() and not (page.parent / name).exists()}
        self.assertEqual(missing, set())

    def test_every_page_is_linked_from_the_first(self):
        reached, ahead = set(), [ROOT / "README.md"]
        while ahead:
            page = ahead.pop()
            if page in reached or page.suffix != ".md" or not page.exists():
                continue
            reached.add(page)
            ahead += [(page.parent / target.partition("#")[0]).resolve() for target in links.links_of(page) if target.partition("#")[0]]
        self.assertEqual({page.name for page in (ROOT / "docs").glob("*.md")} - {page.name for page in reached}, set())


class WordsTest(unittest.TestCase):
    def test_the_pages_together_stay_short(self):
        self.assertLessEqual(sum(len(text_of(page).split()) for page in (ROOT / "docs").glob("*.md")), 30_000)


def commands_of(page):
    """Commands of eplbctl and eplbd that a page shows, in fences of sh and in the text, as lists of words."""
    found = []
    text = text_of(page)
    for code in re.findall(r"^```sh\n(.*?)^```$", text, flags=re.M | re.S):
        for line in code.replace("\\\n", " ").splitlines():
            found += re.findall(r"(?:^|[;&|(] *)((?:[\w./$-]*/)?(?:eplbctl|eplbd) [^;|&#>]*)", line.strip())
    found += re.findall(r"`((?:eplbctl|eplbd) [^`]*)`", without_code(text))
    commands = []
    for command in found:
        # "..", "A|B" and words in capitals stand for something.
        if re.search(r"\.\.|[|\[\]]|COMMAND|KEY=VALUE", command):
            continue
        try:
            words = shlex.split(re.sub(r"\$\w+", "1", re.sub(r"\$(address|EPLB_ENDPOINT)", "127.0.0.1:1", command)))
        except ValueError:
            continue  # a quotation that goes on behind a sign that ends commands
        commands.append([pathlib.Path(words[0]).name, *["1" if re.fullmatch(r"[NVL]|PLAN", word) else word for word in words[1:]]])
    return commands


class CommandsTest(unittest.TestCase):
    maxDiff = None
    """Against no daemon and without files: what matters is that flags and words are known."""

    def setUp(self):
        self.directory = self.enterContext(tempfile.TemporaryDirectory(prefix="eplb-pages-"))

    def problem(self, command):
        """Returns the fault in the words of a command, or ""."""
        more = ["--check-config"] if command[0] == "eplbd" else []
        done = subprocess.run([BIN / command[0], *command[1:], *more], capture_output=True, text=True, timeout=DEADLINE, cwd=self.directory,
                              stdin=subprocess.DEVNULL, env={"HOME": self.directory, "PATH": os.environ["PATH"], "LANG": "C.UTF-8",
                                                             "EPLB_ENDPOINT": "unix:/nonexistent/eplbd.sock"})
        # A text names a command without all that it needs.
        if re.search(r"is required|is missing|has no value|no job is named", done.stderr):
            return ""
        wrong = "(see eplbctl" in done.stderr or "not expected" in done.stderr or "unknown" in done.stderr or "xpected " in done.stderr
        return done.stderr if done.returncode == 2 and wrong else ""

    def test_every_command_is_one(self):
        commands = {(str(page.relative_to(ROOT)), tuple(command)) for page in PAGES for command in commands_of(page)}
        self.assertGreater(len(commands), 80)
        problems = {f"{page}: {' '.join(command)}": problem for page, command in sorted(commands) if (problem := self.problem(command))}
        self.assertEqual(problems, {})

    def test_a_wrong_command_would_be_noticed(self):
        for command in (["eplbctl", "statsu"], ["eplbctl", "status", "--jbo", "x"], ["eplbctl", "wait", "--for", "done"],
                        ["eplbd", "--lisen", "1"], ["eplbd", "--set", "policy.nme=auto"]):
            self.assertNotEqual(self.problem(command), "", command)
        self.assertEqual(self.problem(["eplbctl", "status"]), "")


class PoliciesTest(unittest.TestCase):
    """docs/choosing-a-policy.md compares the policies on the shipped trace."""

    def replay(self, *flags):
        done = subprocess.run([BIN / "eplbctl", "replay", ROOT / "tests/data/moe64_aux.jsonl", "--gpus", "8", "--slots", "72", "--every", "10",
                               "--history", "10", "--min-gain", "0.05", *flags, "-o", "json"], capture_output=True, text=True, timeout=DEADLINE)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["summary"]

    def test_the_table_is_what_replay_computes(self):
        rows = re.findall(r"^\| `(\w+)` \|(( [\d.,]*( GB| s)? ?\|){6})$", text_of(ROOT / "docs/choosing-a-policy.md"), flags=re.M)
        self.assertEqual([policy for policy, *_ in rows], ["auto", "incremental", "balanced", "deepseek", "flow"])
        prices = ("--expert-bytes", "44000000")
        for policy, cells, *_ in rows:
            plain, priced = self.replay("--policy", policy), self.replay("--policy", policy, *prices)
            split = self.replay("--policy", policy, "--split", "batch", *(prices if policy == "auto" else ()))
            computed = (f"{plain['balancedness_mean']:.4f}", f"{plain['transfers']:,}", f"{priced['balancedness_mean']:.4f}",
                        f"{priced['bytes'] / 1e9:.1f} GB", f"{priced['seconds_saved'] - priced['seconds_spent']:.3f} s",
                        f"{split['balancedness_mean']:.4f}")
            left_out = {"auto": (0, 1), "flow": range(5)}.get(policy, ())
            expected = ["" if column in left_out else cell for column, cell in enumerate(computed)]
            self.assertEqual([shown.strip() for shown in cells.split("|")[:-1]], expected, policy)


class ConfigurationTest(unittest.TestCase):
    def test_its_tables_are_what_the_daemon_knows(self):
        page = text_of(configuration_page.PAGE)
        self.assertEqual(configuration_page.page_with(page, BIN / "eplbd"), page,
                         f"run tests/docs/configuration_page.py {BIN}/eplbd --write")

    def test_every_key_has_a_sentence_and_values(self):
        keys = configuration_page.keys_of(subprocess.run([BIN / "eplbd", "--help-config"], capture_output=True, text=True, timeout=DEADLINE).stdout)
        self.assertGreater(len(keys), 50)
        for name, help_text, values, default in keys:
            self.assertRegex(help_text, r"^\S.{20,}\.$", name)
            self.assertTrue(values and default, name)


def rows_of(page, first_heading):
    """Cells of the table whose first heading this is."""
    lines = text_of(page).splitlines()
    begin, = [i for i, line in enumerate(lines) if line.startswith(f"| {first_heading} |")]
    rows = []
    for line in lines[begin + 2:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def number(text):
    return float(re.match(r"[\d,.]+", text)[0].replace(",", ""))


class FiguresTest(unittest.TestCase):
    # hidden and intermediate size of the models' published configurations
    SHAPES = {"DeepSeek-V3": (7168, 2048), "Kimi-K2": (7168, 2048), "Qwen3-235B": (4096, 1536), "Mixtral 8x7B": (4096, 14336)}

    def test_what_a_moved_expert_costs(self):
        rows = rows_of(ROOT / "docs/costs.md", "model")
        self.assertEqual({row[0] for row in rows}, set(self.SHAPES))
        for name, _, parameters, weights, training, network, nvlink in rows:
            hidden, intermediate = self.SHAPES[name]
            count = 3 * hidden * intermediate
            for shown, exact in ((parameters, count / 1e6), (weights, 2 * count / 1e6), (training, 14 * count / 1e6),
                                 (network, 14 * count / 50e9 * 1e3), (nvlink, 14 * count / 450e9 * 1e3)):
                digits = len(shown.split()[0].partition(".")[2])
                self.assertAlmostEqual(number(shown), exact, delta=0.51 * 10 ** -digits, msg=f"{name}: {shown}")

    def test_ranks_that_a_start_through_the_daemon_carries(self):
        link, start, deadline = 25e9 / 8, 6e3, 60  # bytes a second, bytes that each rank gives, seconds
        self.assertIn(f"{(deadline * link / start) ** 0.5:,.0f} ranks", text_of(ROOT / "docs/sizing.md"))


if __name__ == "__main__":
    unittest.main()
