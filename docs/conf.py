"""Settings of the documentation site, which `make docs` builds with Sphinx, MyST and furo.

The pages are written for GitHub. Two things are changed while they are read: links to files outside
docs/ lead to GitHub, and the lists of index.md become the site's navigation.
"""

import posixpath
import re
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent
REPOSITORY = "https://github.com/headrace/headrace"

project = "headrace"
html_title = "headrace"
extensions = ["myst_parser"]
myst_heading_anchors = 6
html_theme = "furo"
html_theme_options = {
    "source_repository": REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
}
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False

_OUTSIDE_LINK = re.compile(r"(?<=\]\()(?:\.\./)+[^)#\s]*")
_INDEX_SECTION = re.compile(r"^##+ (?P<title>.+)$|^- \[.+?\]\((?P<page>[\w/-]+)\.md\)", re.MULTILINE)


def _link_to_github(docname: str, link: str) -> str:
    """Return the address of a file outside docs/; return other links unchanged."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(docname), link))
    if path.startswith("docs/"):
        return link
    kind = "tree" if (ROOT / path).is_dir() else "blob"
    return f"{REPOSITORY}/{kind}/main/{path}"


def _navigation(index: str) -> str:
    """Return a hidden table of contents for each section of index.md."""
    sections: dict[str, list[str]] = {}
    title = ""
    for found in _INDEX_SECTION.finditer(index):
        title = found["title"] or title
        if found["page"]:
            sections.setdefault(title, []).append(found["page"])
    return "".join(
        "\n".join(("", "```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```", ""))
        for title, pages in sections.items()
    )


def _change_page(_app: Sphinx, docname: str, source: list[str]) -> None:
    source[0] = _OUTSIDE_LINK.sub(lambda link: _link_to_github(docname, link[0]), source[0])
    if docname == "index":
        source[0] += _navigation(source[0])


def setup(app: Sphinx) -> None:
    """Register the changes of pages; GitHub draws Mermaid diagrams, and the site shows their text."""
    app.connect("source-read", _change_page)
    app.add_lexer("mermaid", TextLexer)
