"""Every relative link of the repository's pages leads somewhere; those of the installed pages are
tests/deploy/packages/installed_test.py's.
"""

import pathlib
import tempfile
import unittest

import links

ROOT = pathlib.Path(__file__).resolve().parents[2]


class LinksTest(unittest.TestCase):
    def test_no_link_of_the_repository_is_dead(self):
        self.assertEqual(links.dead_links(ROOT), [])
        self.assertGreater(sum(len(links.links_of(page)) for page in links.pages_below(ROOT)), 100)

    def test_a_dead_link_is_found_with_its_reason(self):
        with tempfile.TemporaryDirectory() as directory:
            tree = pathlib.Path(directory) / "tree"
            (tree / "docs").mkdir(parents=True)
            (tree / "docs/a.md").write_text("# One `two`, three\n[b](b.md) [up](../../x) [h](#one-two-three) [n](#none) [web](https://a.b/c)\n"
                                            "```text\n[not](a-link)\n```\n`[nor](this)`\n![picture](p.png)\n")
            (tree / "docs/p.png").write_bytes(b"")
            (pathlib.Path(directory) / "x").write_text("")
            self.assertEqual(links.dead_links(tree), ["docs/a.md: b.md: not there", "docs/a.md: ../../x: out of the tree",
                                                      "docs/a.md: #none: no such heading"])

    def test_equal_headings_are_numbered(self):
        self.assertEqual(links.anchors_of("# A b\n## A b\n```sh\n# no heading\n```\n"), {"a-b", "a-b-1"})


if __name__ == "__main__":
    unittest.main()
