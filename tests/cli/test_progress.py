import io
import json
import re
import threading

import pytest

from headrace.cli import progress as module
from headrace.cli.progress import Display, choose_style
from headrace.core.predictor import PredictorStatistics
from headrace.pipeline.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def counters() -> Progress:
    return Progress(
        bytes_total=2_000_000, objects_total=4, bytes_read=500_000, objects_read=1, records=1500, rows_failed=2,
        bytes_before=500_000, records_before=500, objects_before=1,
    )  # fmt: skip


def statistics() -> PredictorStatistics:
    return PredictorStatistics(busy_s=3.0, starved_s=1.0)


class Shown(Display):
    """Tells when it has shown something of its own accord."""

    def __init__(self, style, **more):
        super().__init__(style, counters(), statistics, **more)
        self.shown = threading.Event()

    def _show(self) -> None:
        super()._show()
        self.shown.set()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(
        module, "_INTERVAL_S", dict.fromkeys(("bar", "lines", "json"), 0.001) | {"none": 60.0}
    )


def test_a_look_includes_what_was_done_before_but_its_rate_does_not():
    look = Display("none", counters(), statistics).look()
    assert (look.bytes_read, look.objects_read, look.records) == (1_000_000, 2, 1500)
    assert look.instance_busy_share == 0.75
    assert look.rows_per_s > 0
    assert (look.rows_failed, look.bytes_total, look.objects_total) == (2, 2_000_000, 4)


def test_json_is_a_line_a_moment_on_standard_output(capsys):
    with Shown("json") as display:
        assert display.shown.wait(10)
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert err == ""
    assert lines
    assert {line["event"] for line in lines} == {"progress"}
    assert lines[0]["records"] == 1500
    assert lines[0]["instance_busy_share"] == 0.75


def test_lines_go_to_standard_error_in_plain_text(capsys):
    with Shown("lines") as display:
        assert display.shown.wait(10)
    out, err = capsys.readouterr()
    assert out == ""
    assert "1.0 MB of 2.0 MB, 1,500 records, " in err
    assert "2 failed, instances busy 75%" in err
    assert "\x1b" not in err


def test_a_line_stays_one_wherever_it_goes(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    Display("lines", counters(), statistics)._show()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("instances busy 75%")


def test_before_the_source_is_listed_nothing_is_said_of_its_size(capsys):
    Display("lines", Progress(), statistics)._show()
    assert capsys.readouterr().err.startswith("listing the source, 0 records, ")


@pytest.mark.parametrize(
    ("style", "read"), [("lines", "1.0 MB, 1,500 records"), ("bar", " 1.0 MB 1,500 records")]
)
def test_a_source_of_unknown_size_has_no_share(style, read, monkeypatch):
    """Not every web server tells how long what it serves is."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    progress = counters()
    progress.bytes_total = 0
    display = Display(style, progress, statistics)
    with display:
        display._show()
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    assert read in shown
    assert " of " not in shown
    assert "1.0 MB/" not in shown
    assert "ETA" not in shown


def test_a_bar_shows_its_last_state_at_the_end(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    with Shown("bar"):
        pass
    shown = terminal.getvalue()
    assert "50%" in shown
    assert "1,500" in shown
    assert "2 failed" in shown


def test_quiet_shows_nothing(capsys):
    with Display("none", counters(), statistics):
        pass
    assert capsys.readouterr() == ("", "")


def test_leaving_by_an_error_ends_the_thread():
    with pytest.raises(ZeroDivisionError), Display("json", counters(), statistics):
        raise ZeroDivisionError
    assert "headrace-display" not in {t.name for t in threading.enumerate()}


@pytest.mark.parametrize(
    ("json_lines", "quiet", "terminal", "style"),
    [
        (True, True, True, "json"),
        (False, True, True, "none"),
        (False, False, True, "bar"),
        (False, False, False, "lines"),
    ],
)
def test_a_bar_is_for_terminals(json_lines, quiet, terminal, style, monkeypatch):
    monkeypatch.setattr("sys.stderr", Terminal() if terminal else io.StringIO())
    assert choose_style(json_lines=json_lines, quiet=quiet) == style
