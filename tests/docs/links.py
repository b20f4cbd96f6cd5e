"""Relative links of Markdown pages: whether what they name is there, with the heading after '#'."""

import pathlib
import re
import urllib.parse

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def text_without_code(text):
    text = re.sub(r"^[ \t]*(```+).*?^[ \t]*\1[ \t]*$", "", text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors_of(text):
    """The names that headings get on the usual forges."""
    found = []
    for heading in re.findall(r"^#{1,6}[ \t]+(.+?)[ \t]*$", re.sub(r"^(```+).*?^\1[ \t]*$", "", text, flags=re.M | re.S), re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        repeated = sum(1 for other in found if re.fullmatch(re.escape(name) + r"(-\d+)?", other))
        found.append(f"{name}-{repeated}" if repeated else name)
    return set(found)


def pages_below(root):
    return sorted(path for path in pathlib.Path(root).rglob("*.md") if not {"build", ".git"} & set(path.relative_to(root).parts))


def links_of(page):
    """Its links that are not addresses of the web."""
    return [urllib.parse.unquote(target) for target in LINK.findall(text_without_code(page.read_text(encoding="utf-8")))
            if not re.match(r"[a-z][a-z0-9+.-]*:", target)]


def dead_links(root):
    """["page: link: reason"] of all pages below `root`; a link out of `root` is dead."""
    root = pathlib.Path(root).resolve()
    dead = []
    for page in pages_below(root):
        for link in links_of(page):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            where = f"{page.relative_to(root)}: {link}"
            if root not in target.parents and target != root:
                dead.append(f"{where}: out of the tree")
            elif not target.exists():
                dead.append(f"{where}: not there")
            elif anchor and target.suffix == ".md" and anchor not in anchors_of(target.read_text(encoding="utf-8")):
                dead.append(f"{where}: no such heading")
    return dead
