"""Links of the Markdown files: relative files and anchors exist, and every page is in docs/index.md.

Links to this repository on GitHub count as links to the file of the checkout.
"""

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
INDEX = DOCS / "index.md"
_GITHUB = re.compile(
    r"https://(?:github\.com/headrace/headrace/(?:blob|tree)|raw\.githubusercontent\.com/headrace/headrace)"
    r"/main/(?P<path>[^#]*)"
)
_OTHER_ADDRESS = re.compile(r"[a-z+]+:")
_HTML_ATTRIBUTE = re.compile(r'\b(?:href|src|srcset)="([^"]+)"')


def _tokens(text: str) -> Iterator[Token]:
    """Yield the block tokens of a page and the inline tokens in them."""
    for token in MarkdownIt("gfm-like", {"linkify": False}).parse(text):
        yield token
        yield from token.children or ()


def _links(text: str) -> list[str]:
    found: list[str] = []
    for token in _tokens(text):
        if token.type in {"html_block", "html_inline"}:
            found += _HTML_ATTRIBUTE.findall(token.content)
        found += [str(value) for name in ("href", "src") if (value := token.attrGet(name))]
    return found


def _anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives the headings: lower case, hyphens, and numbers for twins."""
    taken: Counter[str] = Counter()
    anchors: set[str] = set()
    tokens = list(_tokens(text))
    for before, token in pairwise(tokens):
        if before.type == "heading_open":
            words = "".join(
                part.content for part in token.children or () if part.type in {"text", "code_inline"}
            )
            slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
            anchors.add(f"{slug}-{taken[slug]}" if taken[slug] else slug)
            taken[slug] += 1
    return anchors


@cache
def _file_anchors(path: Path) -> set[str]:
    return _anchors(path.read_text())


def _problem(page: Path, link: str) -> str:
    """Return the reason why a link of a page leads nowhere, or "" if it does not, or leads elsewhere."""
    name, _, anchor = link.partition("#")
    if on_github := _GITHUB.match(name):
        path = ROOT / on_github["path"]
    elif _OTHER_ADDRESS.match(link):
        return ""
    else:
        path = page.parent / name if name else page
    path = path.resolve()
    if not path.exists() or not path.is_relative_to(ROOT):
        return f"{page.relative_to(ROOT)}: {link}: no such file"
    if anchor and path.suffix == ".md" and anchor not in _file_anchors(path):
        return f"{page.relative_to(ROOT)}: {link}: no such heading"
    return ""


def _pages() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_links_lead_to_files_and_headings():
    found = [_problem(page, link) for page in _pages() for link in _links(page.read_text())]
    assert [problem for problem in found if problem] == []
    assert len(found) > 100  # the files and their links were found


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("index.md", ""),
        ("index.md#how-to-guides", ""),
        ("index.md#tutorial", "no such heading"),
        ("nowhere.md", "no such file"),
        ("../../outside.md", "no such file"),
        ("../src/headrace", ""),
        ("https://github.com/headrace/headrace/blob/main/docs/index.md#reference", ""),
        ("https://github.com/headrace/headrace/blob/main/docs/index.md#nowhere", "no such heading"),
        ("https://github.com/headrace/headrace/tree/main/nowhere", "no such file"),
        ("https://raw.githubusercontent.com/headrace/headrace/main/nowhere.svg", "no such file"),
        ("https://example.com/nowhere", ""),
        ("mailto:someone@example.com", ""),
    ],
)
def test_rule_tells_broken_links_from_others(link, problem):
    reported = _problem(DOCS / "page.md", link)
    assert problem in reported
    assert bool(reported) is bool(problem)


def test_links_and_anchors_are_read_from_markdown():
    text = '# `a` b, c!\n\n## a b c\n\n[x](y.md#z) ![p](p.svg) `[no](no.md)`\n\n<img src="q.svg">\n'
    assert _links(text) == ["y.md#z", "p.svg", "q.svg"]
    assert _anchors(text) == {"a-b-c", "a-b-c-1"}


def test_index_links_every_page_once():
    linked = Counter(link for link in _links(INDEX.read_text()) if re.fullmatch(r"[\w/-]+\.md", link))
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md") if page != INDEX}
    assert set(linked) == pages
    assert set(linked.values()) == {1}
