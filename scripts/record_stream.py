"""Draw docs/images/stream.svg: a real `headrace stream` that is killed and resumed, as it looked.

Run it after changing the display or the report of `headrace stream`::

    make pictures

It makes four million records, runs the commands on a terminal of its own, kills the first one, and
draws each state of each line. CSS shows the states at the times of the recording; typing is faster
and pauses are shorter. Readers without animation see the last state. The SVG loads nothing.
"""

import fcntl
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "stream.svg"
COMMAND = "headrace stream day.tar.gz --model churn.py --header names --output scored/"
FILE_RECORDS = 1_000_000
KILL_AT_PERCENT = 62
MODEL = """\
import numpy as np

from headrace import Model


class Churn(Model):
    def predict(self, x):
        return 1 / (1 + np.exp(1.5 - x @ np.array([0.01, 0.02, 0.004], np.float32)))
"""

COLUMNS = 96
CELL, LINE, MARGIN, TITLE = 8, 19, 16, 32
TYPED_AT_ONCE, TYPING_S, PAUSE_S, HOLD_S = 4, 0.06, 0.7, 7.0
GREEN, TEXT, DIM, BUTTON = "#7ee787", "#e6edf3", "#8b949e", "#484f58"
FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,monospace"
BACKGROUND, BORDER = "#0d1117", "#30363d"


def write_data(folder: Path) -> None:
    """Write the model, and an archive of four CSV files with one bad cell in the second."""
    random = np.random.default_rng(1)
    (folder / "churn.py").write_text(MODEL)
    with tarfile.open(folder / "day.tar.gz", "w:gz", compresslevel=1) as tar:
        for name in ("a.csv", "b.csv", "c.csv", "d.csv"):
            columns = (random.integers(18, 90, FILE_RECORDS), random.integers(0, 60, FILE_RECORDS))
            spent = random.integers(0, 40_000, FILE_RECORDS) / 100
            rows = zip(*(column.tolist() for column in (*columns, spent)), strict=True)
            lines = ["age,calls,spent", *(f"{age},{calls},{cost:.2f}" for age, calls, cost in rows), ""]
            if name == "b.csv":
                lines[18] = "42,7,n/a"
            data = "\n".join(lines).encode()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


@dataclass
class Recording:
    """The states of the lines of a screen: for each line, its texts and the times from which they show."""

    now_s: float = 0.5
    states: list[list[tuple[float, str]]] = field(default_factory=lambda: [[]])

    def show(self, text: str) -> None:
        """Replace the last line."""
        states = self.states[-1]
        if not states or states[-1][1] != text:
            states.append((self.now_s, text))

    def end_line(self) -> None:
        """Begin the next line."""
        self.states.append([])

    def type(self, command: str) -> None:
        """Type a command after the prompt, a few characters at a time."""
        self.show("$ ")
        self.now_s += PAUSE_S
        for end in range(TYPED_AT_ONCE, len(command) + TYPED_AT_ONCE, TYPED_AT_ONCE):
            self.show(f"$ {command[:end]}")
            self.now_s += TYPING_S
        self.end_line()

    def run(self, command: str, folder: Path, *, kill_at_percent: int = 101) -> None:
        """Run a command on a terminal and record its output, as long as it takes."""
        began_s, at_s, line = time.monotonic(), self.now_s, ""
        for output in _terminal_output(command, folder):
            self.now_s = at_s + time.monotonic() - began_s
            *ended, rest = (line + output).split("\n")
            for text in ended:
                self.show(_visible(text))
                self.end_line()
            line = rest
            if _visible(line):
                self.show(_visible(line))
            percent = re.search(r"(\d+)%", _visible(line))
            if percent and int(percent[1]) >= kill_at_percent:
                self.now_s += PAUSE_S / 2
                self.end_line()
                self.show("Killed")  # as an interactive shell reports `kill -9`
                self.end_line()
                return


def _terminal_output(command: str, folder: Path) -> Iterator[str]:
    """Yield the output of a command as it arrives. Kill the command if the caller stops before its end."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    environ.pop("NO_COLOR", None)
    process = subprocess.Popen(  # noqa: S603 - the commands of this file
        command.split(), cwd=folder, env=environ, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    try:
        while output := _read(ours):
            yield output.decode()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        os.close(ours)


def _read(terminal: int) -> bytes:
    """Return the next output, or nothing at its end, which Linux reports as an error."""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        return b""


def _visible(line: str) -> str:
    """Return what is left of a line that its writer erased and wrote again, without cursor commands."""
    return re.sub(r"\x1b\[\?25[hl]", "", line).strip("\r").rpartition("\r\x1b[2K")[2]


def _runs(line: str, y: int) -> str:
    """Return the texts of one line, each at its column and as wide as its cells, in any font."""
    text = Text.from_ansi(line)
    if line.startswith("$"):
        text.stylize(Style(color=GREEN, bold=True), 0, 1)
    parts: list[str] = []
    column = 0
    for segment in text.render(Console()):
        shown, style = segment.text.strip(), segment.style or Style()
        if shown:
            x = MARGIN + CELL * (column + len(segment.text) - len(segment.text.lstrip()))
            color = (
                DIM if style.dim else style.color.get_truecolor(SVG_EXPORT_THEME).hex if style.color else TEXT
            )
            weight = ' font-weight="bold"' if style.bold else ""
            parts.append(
                f'<text x="{x}" y="{y}" textLength="{CELL * len(shown)}" fill="{color}"{weight}>'
                f"{escape(shown)}</text>"
            )
        column += len(segment.text)
    assert column <= COLUMNS, f"wider than the terminal: {text.plain}"
    return "".join(parts)


def _keyframes(name: str, start_s: float, end_s: float | None, whole_s: float) -> str:
    """Return the rule that shows a state from its start until its end, or until the picture's."""
    hide = f"{100 * end_s / whole_s:.2f}%{{visibility:hidden}}" if end_s is not None else ""
    start = 100 * start_s / whole_s
    return f"@keyframes {name}{{0%{{visibility:hidden}}{start:.2f}%{{visibility:visible}}{hide}}}"


def draw(recording: Recording) -> str:
    """Return the SVG. Without animation it shows the last state of each line."""
    lines = [states for states in recording.states if states]
    whole_s = recording.now_s + HOLD_S
    width, height = COLUMNS * CELL + 2 * MARGIN, TITLE + len(lines) * LINE + MARGIN
    rules, groups = [], []
    for number, states in enumerate(lines):
        ends: list[float | None] = [start for start, _ in states[1:]]
        for (start_s, text), end_s in zip(states, [*ends, None], strict=True):
            name = f"k{len(groups)}"
            rules.append(_keyframes(name, start_s, end_s, whole_s))
            passing = ' class="p"' if end_s is not None else ""
            runs = _runs(text, TITLE + (number + 1) * LINE - 5)
            groups.append(f'<g{passing} style="animation-name:{name}">{runs}</g>')
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    frame = f'width="{width - 1}" height="{height - 1}" rx="8" fill="{BACKGROUND}" stroke="{BORDER}"'
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" xml:space="preserve">',
            "<title>headrace stream, killed and resumed</title>",
            "<!-- Written by scripts/record_stream.py from a real run, not by hand. -->",
            f"<style>text{{font-family:{FONT};font-size:{CELL / 0.6:.2f}px}}",
            f"g{{animation:{whole_s:.2f}s step-end infinite}}.p{{visibility:hidden}}",
            "@media(prefers-reduced-motion:reduce){g{animation:none}}",
            *rules,
            "</style>",
            f'<rect x=".5" y=".5" {frame}/>',
            *(f'<circle cx="{MARGIN + 6 + 18 * i}" cy="17" r="5.5" fill="{BUTTON}"/>' for i in range(3)),
            *groups,
            "</svg>\n",
        )
    )


def main() -> int:
    """Record and draw. Return the exit status."""
    recording = Recording()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder)
        recording.type(COMMAND)
        recording.run(COMMAND, folder, kill_at_percent=KILL_AT_PERCENT)
        recording.type(f"{COMMAND} --resume")
        recording.run(f"{COMMAND} --resume", folder)
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(recording), encoding="utf-8")
    print(f"{PICTURE.name}: {PICTURE.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
