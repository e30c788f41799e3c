"""Build a self-contained HTML page: escaped text, readable numbers, tables and the page around them.

All functions take plain strings and escape them, except `Html`. Data goes through `text`.
"""

import html
import math
import re
from collections.abc import Iterable, Sequence
from typing import Final

_CONTROLS: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""Characters that are invisible or reorder their neighbours; they are shown as escapes."""

_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB", "PB")


class Html(str):
    """Finished markup that is not escaped again."""

    __slots__ = ()

    def __add__(self, other: str) -> "Html":
        """Return the concatenation; a plain string is escaped."""
        return Html(str.__add__(self, text(other)))


class Figure(str):
    """A number with its unit, right-aligned in a table."""

    __slots__ = ()


Cell = str | int | float


def text(value: str) -> Html:
    """Return any text escaped for the page."""
    return value if isinstance(value, Html) else Html(html.escape(_CONTROLS.sub(_escaped, value)))


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character)
    return named or (f"\\x{ord(character):02x}" if ord(character) < 0x100 else f"\\u{ord(character):04x}")


def element(name: str, *content: str, **attributes: str | None) -> Html:
    """Return ``<name attributes>content</name>``.

    A trailing underscore of an attribute name is dropped; other underscores become dashes.
    """
    rendered = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{rendered}>{''.join(map(text, content))}</{name}>")


def join(parts: Iterable[str]) -> Html:
    """Return the parts one after another."""
    return Html("".join(map(text, parts)))


def count(number: int) -> str:
    """Return ``1,234,567``."""
    return f"{number:,}"


def pluralize(number: int, one: str, many: str = "") -> str:
    """Return ``1 record`` or ``2 records``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def figure(number: float, figures: int = 4) -> str:
    """Return a number rounded to `figures` digits; a large number keeps its whole integer part."""
    size = abs(number)
    if not math.isfinite(number) or (size and not 1e-4 <= size < 1e9):
        return f"{number:.{figures}g}"
    digits = figures - 1 - math.floor(math.log10(size)) if size else 0
    shown = f"{number:,.{max(digits, 0)}f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def share(part: float, whole: float) -> Figure:
    """Return a part in percent: never 0 % of some, nor 100 % of less than all."""
    if not whole:
        return Figure("n/a")
    percent = 100 * part / whole
    if 0 < percent < 0.1:
        return Figure(f"{percent:.2g} %")
    if 99.9 < percent < 100:
        return Figure(f"{math.floor(percent * 1e4) / 1e4:.6g} %")
    return Figure(f"{percent:.1f} %")


def size(nbytes: int) -> str:
    """Return a number of bytes in a suitable unit."""
    value, unit = float(nbytes), 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{count(nbytes)} bytes" if not unit else f"{figure(value, 3)} {_UNITS[unit]}"


def duration(seconds: float) -> str:
    """Return ``350 ms``, ``12.3 s``, ``4 min 5 s`` or ``2 h 3 min``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min"


def cell(value: Cell) -> tuple[str, str | None]:
    """Return the text of a table cell and its class; numbers are right-aligned."""
    if isinstance(value, str):
        return value, "n" if isinstance(value, Figure) else None
    return (count(value) if isinstance(value, int) else figure(value)), "n"


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Html:
    """Return a table. The first cell of a row is its header."""
    cells = list(rows)
    kinds = [cell(value)[1] for value in cells[0]] if cells else [None] * len(heads)
    top = join(element("th", head, scope="col", class_=kind) for head, kind in zip(heads, kinds, strict=True))
    body = join(element("tr", _row(row)) for row in cells)
    inner = join((element("caption", caption), element("thead", element("tr", top)), element("tbody", body)))
    return element(
        "div", element("table", inner), class_="scroll", tabindex="0", role="region", aria_label=caption
    )


def _row(row: Sequence[Cell]) -> Html:
    shown, kind = cell(row[0])
    rest = (cell(value) for value in row[1:])
    return join(
        (
            element("th", shown, scope="row", class_=kind),
            *(element("td", value, class_=kind) for value, kind in rest),
        )
    )


def facts(rows: Iterable[tuple[str, str]], *, wide: bool = False) -> Html:
    """Return names with values, in columns, or one below the other if `wide`."""
    cells = join(element("div", element("dt", name) + element("dd", value)) for name, value in rows)
    return element("dl", cells, class_="wide" if wide else None)


def summary(caption: str, rows: Iterable[tuple[str, str]]) -> Html:
    """Return a small table of names and values that needs no style sheet, for notebooks.

    A value may have several lines.
    """
    left = "text-align:left;vertical-align:top"
    shown = join(
        element("tr", element("th", name, scope="row", style=left), element("td", _lines(value), style=left))
        for name, value in rows
    )
    head = element("caption", element("strong", caption), style="text-align:left")
    return element("table", head, element("tbody", shown))


def _lines(value: str) -> Html:
    return Html("<br>".join(map(text, value.splitlines())))


def section(title: str, *content: str) -> Html:
    """Return a section of the page with a heading."""
    anchor = re.sub(r"[^a-z]+", "-", title.lower())
    return element("section", element("h2", title, id=anchor), *content, aria_labelledby=anchor)


def document(title: str, *content: str) -> bytes:
    """Return the whole page as UTF-8.

    The page loads nothing and runs no script, and its content security policy forbids both.
    """
    head = (
        '<meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        '<meta name="referrer" content="no-referrer">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{text(title)}</title><style>{_STYLE}</style>"
    )
    body = f"<body><main>{join(content)}</main></body>"
    page = f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>{body}</html>\n'
    return page.encode()


_STYLE: Final = """
:root{--ink:#1b1f24;--soft:#57606a;--line:#d0d7de;--paper:#fff;--panel:#f6f8fa;--data:#2f6fd0;--fill:#a9c7f2;
--good:#1a7f37;--warn:#8a5a00;--bad:#b4232c}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9aa5b1;--line:#3a424c;--paper:#0f1318;
--panel:#181e25;
--data:#79aef5;--fill:#2c4f80;--good:#56d364;--warn:#e3b341;--bad:#ff8f89}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:60rem;margin:0 auto;padding:1.5rem 1rem 3rem;overflow-wrap:anywhere}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 .4rem}h2{font-size:1.25rem;margin:2.4rem 0 .6rem}
h3{font-size:1rem;margin:0 0 .4rem}p{margin:.4rem 0}
.good{color:var(--good)}.warn{color:var(--warn)}.bad{color:var(--bad)}.soft{color:var(--soft);
font-size:.875rem}
.counts{display:flex;flex-wrap:wrap;gap:.4rem .9rem;align-items:center;margin:1.2rem 0 .6rem;
padding:.9rem 1rem;
background:var(--panel);border:1px solid var(--line);border-radius:.5rem}
.counts b{display:block;font-size:1.5rem;line-height:1.2;font-variant-numeric:tabular-nums}
.counts span{font-size:.875rem;color:var(--soft)}.counts i{font-style:normal;font-size:1.4rem;
color:var(--soft)}
.scroll{overflow-x:auto;margin:.6rem 0 1.2rem}
table{border-collapse:collapse;width:100%;font-size:.925rem}
caption{text-align:left;font-weight:600;padding:.2rem 0 .4rem}
th,td{text-align:left;vertical-align:top;padding:.35rem 1.2rem .35rem 0;border-bottom:1px solid var(--line)}
tbody th{font-weight:400;min-width:9rem}td:not(.n){min-width:5.5rem}thead th{white-space:nowrap;
font-size:.825rem;color:var(--soft);font-weight:600}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
dl{margin:.4rem 0 1rem;display:grid;grid-template-columns:repeat(auto-fit,minmax(min(18rem,100%),1fr));
gap:0 2rem}
dl div{display:flex;justify-content:space-between;gap:1rem;padding:.3rem 0;
border-bottom:1px solid var(--line)}
dt{color:var(--soft);flex:none;max-width:50%}dd{margin:0;text-align:right;font-variant-numeric:tabular-nums}
.wide{display:block;margin:0}.wide div{justify-content:start}.wide dt{width:9rem}.wide dd{text-align:left}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(24rem,100%),1fr));gap:1rem}
.panel{border:1px solid var(--line);border-radius:.5rem;padding:.8rem .9rem;min-width:0}
.panel dl{grid-template-columns:repeat(auto-fit,minmax(8.5rem,1fr));gap:0 1.2rem;font-size:.825rem;
margin:.6rem 0 0}
.panel dl div{border:0;padding:.1rem 0}.panel dd,.values span+span{white-space:nowrap;flex:none}
.plot{display:grid;grid-template-columns:auto minmax(0,1fr);margin:1rem 0 .4rem}
.plot svg{display:block;width:100%;height:11rem;overflow:visible}.plot .strip{height:2.2rem}
.panel .plot svg{height:8rem}
.y{display:flex;flex-direction:column;justify-content:space-between;text-align:right;padding-right:.5rem}
.y span{line-height:0}.y,.x{font-size:.75rem;color:var(--soft);font-variant-numeric:tabular-nums}
.x{grid-column:2;display:flex;justify-content:space-between;padding-top:.3rem}.gap{grid-column:1/-1;
height:.9rem}
.area{fill:var(--fill);stroke:var(--data);stroke-width:1.5;vector-effect:non-scaling-stroke}
.bar{fill:var(--data)}.fault{fill:var(--bad);shape-rendering:crispEdges}
.grid{stroke:var(--line);stroke-width:1;vector-effect:non-scaling-stroke}
.mark{stroke:var(--ink);stroke-width:1.5;stroke-dasharray:4 3;vector-effect:non-scaling-stroke}
.values{list-style:none;margin:.4rem 0;padding:0;font-size:.875rem}.values li{margin:.35rem 0}
.values p{display:flex;justify-content:space-between;gap:1rem;margin:0}
.values svg{display:block;width:100%;height:.4rem;background:var(--panel)}
.failures{padding:0;margin:.6rem 0;list-style:none}
.failures li{border-left:3px solid var(--bad);padding:.1rem 0 .1rem .8rem;margin:.9rem 0}
.failures p{margin:.1rem 0}
pre{margin:.3rem 0;padding:.4rem .6rem;background:var(--panel);border-radius:.3rem;font-size:.825rem;
white-space:pre-wrap;unicode-bidi:isolate}
summary{cursor:pointer;color:var(--data)}
@media (max-width:30rem){main{padding:1rem .75rem 2rem}h1{font-size:1.4rem}.wide dt{width:6rem}
table{font-size:.825rem}th,td{padding-right:.7rem}.counts b{font-size:1.2rem}}
@media print{:root{--ink:#000;--soft:#444;--line:#bbb;--paper:#fff;--panel:#f4f4f4;--data:#2f6fd0;
--fill:#a9c7f2;
--good:#1a7f37;--warn:#8a5a00;--bad:#b4232c;color-scheme:light}body{font-size:11pt}main{max-width:none;
padding:0}
.panel,.failures li,tr,.counts{break-inside:avoid}h2,h3,caption{break-after:avoid}
svg *{print-color-adjust:exact}
.scroll{overflow:visible}}
""".strip()
