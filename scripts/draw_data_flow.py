"""Draw docs/images/data-flow.svg: the four ways from data through a model to results.

Run it after changing this file::

    make pictures

A test compares the committed picture with the output. The colours follow the reader's light or dark
theme. The picture has a background of its own, so that it is readable on any page.
"""

import sys
from pathlib import Path
from xml.sax.saxutils import escape

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "data-flow.svg"

# One row for each command: the command and its data, the work before the model, and the results.
ROWS = (
    (
        ("headrace stream", "objects: S3, GCS, Azure"),
        ("read ahead, decompress,", "cut records, decode, batch"),
        ("parts in source order,", "failures beside them"),
    ),
    (
        ("headrace serve", "requests: REST, SSE, gRPC"),
        ("batch over all clients,", "deadlines, priorities, limits"),
        ("responses and streams,", "errors at once"),
    ),
    (
        ("headrace up", "jobs: HTTP, object events"),
        ("queue in a SQL ledger,", "leases, workers, retries"),
        ("results that wait,", "webhooks, SNS, mail"),
    ),
    (
        ("headrace transform", "files below a prefix"),
        ("tasks in processes,", "on Ray or on Beam"),
        ("one output for each file,", "complete or absent"),
    ),
)
MODEL = ("Python class", "ONNX", "PyTorch", "scikit-learn", "Hugging Face", "MLflow")
LEDGER = "in = out + failed, for every run; after kill -9, --resume writes the same bytes"

WIDTH, MARGIN, HEAD, GAP = 860, 20, 46, 30
ROW_HEIGHT, ROW_GAP = 60, 14
DATA_WIDTH, WORK_WIDTH, MODEL_WIDTH, RESULT_WIDTH = 196, 208, 134, 192
LEDGER_HEIGHT = 38

STYLE = """\
svg{--page:#f6f8fa;--line:#d0d7de;--box:#fff;--text:#1f2328;
--soft:#59636e;--accent:#0969da;--tint:#ddf4ff}
@media(prefers-color-scheme:dark){
svg{--page:#151b23;--line:#3d444d;--box:#0d1117;--text:#f0f6fc;
--soft:#9198a1;--accent:#4493f8;--tint:#121d2f}}
text{font:13px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:var(--soft)}
.name{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-weight:600;fill:var(--text)}
.head{font-size:12px;letter-spacing:.04em}
.strong{font-weight:600;fill:var(--text)}
.middle{text-anchor:middle}
.box{fill:var(--box);stroke:var(--line)}
.page{fill:var(--page);stroke:var(--line)}
.model{fill:var(--tint);stroke:var(--accent)}
.arrow{stroke:var(--soft);stroke-width:1.5;fill:none;marker-end:url(#tip)}
#tip path{fill:var(--soft)}"""


ARROW_TIP = """\
<marker id="tip" viewBox="0 0 8 8" refX="2" refY="4" markerWidth="6" markerHeight="6">
<path d="M0 0L8 4L0 8z"/></marker>"""


def _text(x: float, y: float, text: str, classes: str = "") -> str:
    chosen = f' class="{classes}"' if classes else ""
    return f'<text x="{x:g}" y="{y:g}"{chosen}>{escape(text)}</text>'


def _box(x: float, y: float, width: float, height: float, classes: str = "box") -> str:
    size = f'width="{width:g}" height="{height:g}"'
    return f'<rect class="{classes}" x="{x:g}" y="{y:g}" {size} rx="6"/>'


def _arrow(x: float, to: float, y: float) -> str:
    return f'<path class="arrow" d="M{x + 3:g} {y:g}H{to - 9:g}"/>'


def draw() -> str:
    """Return the SVG."""
    data = MARGIN
    work = data + DATA_WIDTH + GAP
    model = work + WORK_WIDTH + GAP
    results = model + MODEL_WIDTH + GAP
    assert results + RESULT_WIDTH + MARGIN == WIDTH
    rows_height = len(ROWS) * (ROW_HEIGHT + ROW_GAP) - ROW_GAP
    parts = [
        _text(data, HEAD - 14, "data", "head"),
        _text(work, HEAD - 14, "before the model", "head"),
        _text(model, HEAD - 14, "your model", "head"),
        _text(results, HEAD - 14, "results", "head"),
        _box(model, HEAD, MODEL_WIDTH, rows_height, "model"),
    ]
    for number, (source, before, after) in enumerate(ROWS):
        y = HEAD + number * (ROW_HEIGHT + ROW_GAP)
        middle = y + ROW_HEIGHT / 2
        for x, width, lines, first in (
            (data, DATA_WIDTH, source, "name"),
            (work, WORK_WIDTH, before, ""),
            (results, RESULT_WIDTH, after, ""),
        ):
            parts += [
                _box(x, y, width, ROW_HEIGHT),
                _text(x + 12, middle - 5, lines[0], first),
                _text(x + 12, middle + 15, lines[1]),
            ]
        parts += [
            _arrow(data + DATA_WIDTH, work, middle),
            _arrow(work + WORK_WIDTH, model, middle),
            _arrow(model + MODEL_WIDTH, results, middle),
        ]
    center = model + MODEL_WIDTH / 2
    parts.append(_text(center, HEAD + 32, "one engine", "strong middle"))
    parts += [_text(center, HEAD + 62 + 22 * i, name, "middle") for i, name in enumerate(MODEL)]
    parts += [
        _text(center, HEAD + rows_height - 62, "inline, in threads,", "middle"),
        _text(center, HEAD + rows_height - 43, "in processes,", "middle"),
        _text(center, HEAD + rows_height - 24, "or at an endpoint", "middle"),
    ]
    ledger = HEAD + rows_height + ROW_GAP + 4
    parts += [
        _box(data, ledger, WIDTH - 2 * MARGIN, LEDGER_HEIGHT),
        _text(data + 12, ledger + 24, "ledger", "strong"),
        _text(work + 12, ledger + 24, LEDGER),
    ]
    height = ledger + LEDGER_HEIGHT + MARGIN
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            "<title>From data through a model to results</title>",
            "<!-- Written by scripts/draw_data_flow.py, not by hand. -->",
            f"<style>\n{STYLE}\n</style>",
            ARROW_TIP,
            _box(0.5, 0.5, WIDTH - 1, height - 1, "page"),
            *parts,
            "</svg>\n",
        )
    )


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(), encoding="utf-8")
    sys.stdout.write(f"{PICTURE.name}: {PICTURE.stat().st_size:,} bytes\n")
