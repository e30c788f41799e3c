"""A strict HTML parser for tests of pages: elements with attributes and texts, all closed."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = {"meta", "br", "hr", "img", "link", "input"}


@dataclass
class Element:
    name: str
    attributes: dict[str, str | None]
    children: "list[Element]" = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text in the element, in order of the child elements."""
        return " ".join(" ".join([*self.texts, *(c.text for c in self.children)]).split())

    def all(self, name: str) -> "list[Element]":
        found = [self] if self.name == name else []
        return found + [e for child in self.children for e in child.all(name)]

    def everything(self) -> "list[Element]":
        return [self, *(e for child in self.children for e in child.everything())]

    def section(self, title: str) -> "Element":
        (found,) = [s for s in self.all("section") if any(h.text == title for h in s.all("h2"))]
        return found


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("root", {})
        self._open = [self.root]

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice"
        made = Element(tag, dict(attrs))
        self._open[-1].children.append(made)
        if tag not in _VOID:
            self._open.append(made)

    def handle_endtag(self, tag):
        assert self._open[-1].name == tag, f"</{tag}> closes <{self._open[-1].name}>"
        self._open.pop()

    def handle_data(self, data):
        self._open[-1].texts.append(data)

    def finish(self) -> Element:
        self.close()
        assert [e.name for e in self._open] == ["root"], "elements are left open"
        return self.root


def read_page(page: str | bytes) -> Element:
    reader = _Reader()
    reader.feed(page.decode() if isinstance(page, bytes) else page)
    return reader.finish()
