import io
import json
import re
import threading

import pytest

from cases import for_each
from headrace.cli import run_display as module
from headrace.cli.run_display import ProgressDisplay, choose_style
from headrace.core.predictor import PredictorStatistics
from headrace.runs.work import RunProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def counters() -> RunProgress:
    return RunProgress(
        bytes_total=2_000_000,
        objects_total=4,
        bytes_read=500_000,
        objects_read=1,
        records=1500,
        rows_failed=2,
        bytes_before=500_000,
        records_before=500,
        objects_before=1,
    )


def statistics() -> PredictorStatistics:
    return PredictorStatistics(busy_s=3.0, starved_s=1.0)


class ObservedDisplay(ProgressDisplay):
    """A display that sets `shown` after each update of its thread."""

    def __init__(self, style, **more):
        super().__init__(style, counters(), statistics, **more)
        self.shown = threading.Event()

    def _show(self) -> None:
        super()._show()
        self.shown.set()


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch):
    monkeypatch.setattr(
        module, "_INTERVAL_S", dict.fromkeys(("bar", "lines", "json"), 0.001) | {"none": 60.0}
    )


def test_snapshot_counts_resumed_work_but_its_rate_does_not():
    snapshot = ProgressDisplay("none", counters(), statistics).snapshot()
    assert (snapshot.bytes_read, snapshot.objects_read, snapshot.records) == (1_000_000, 2, 1500)
    assert snapshot.instance_busy_share == 0.75
    assert snapshot.rows_per_s > 0
    assert (snapshot.rows_failed, snapshot.bytes_total, snapshot.objects_total) == (2, 2_000_000, 4)


def test_json_style_prints_lines_on_standard_output(capsys):
    with ObservedDisplay("json") as display:
        assert display.shown.wait(10)
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert err == ""
    assert lines
    assert {line["event"] for line in lines} == {"progress"}
    assert lines[0]["records"] == 1500
    assert lines[0]["instance_busy_share"] == 0.75


def test_line_style_prints_plain_text_on_standard_error(capsys):
    with ObservedDisplay("lines") as display:
        assert display.shown.wait(10)
    out, err = capsys.readouterr()
    assert out == ""
    assert "1.0 MB of 2.0 MB, 1,500 records, " in err
    assert "2 failed, instances busy 75%" in err
    assert "\x1b" not in err


def test_line_is_not_wrapped_at_any_width(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    ProgressDisplay("lines", counters(), statistics)._show()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("instances busy 75%")


def test_unlisted_source_has_no_size(capsys):
    ProgressDisplay("lines", RunProgress(), statistics)._show()
    assert capsys.readouterr().err.startswith("listing the source, 0 records, ")


@pytest.mark.parametrize(
    ("style", "read"), [("lines", "1.0 MB, 1,500 records"), ("bar", " 1.0 MB 1,500 records")]
)
def test_source_of_unknown_size_has_no_share(style, read, monkeypatch):
    """Some web servers do not report the size of an object."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    progress = counters()
    progress.bytes_total = 0
    display = ProgressDisplay(style, progress, statistics)
    with display:
        display._show()
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    assert read in shown
    assert " of " not in shown
    assert "1.0 MB/" not in shown
    assert "ETA" not in shown


def test_growing_totals_have_no_share(capsys):
    progress = counters()
    progress.is_listing = True
    ProgressDisplay("lines", progress, statistics)._show()
    assert capsys.readouterr().err.startswith("1.0 MB (4 objects listed so far), 1,500 records, ")


def test_bar_shows_its_final_state(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    with ObservedDisplay("bar"):
        pass
    shown = terminal.getvalue()
    assert "50%" in shown
    assert "1,500" in shown
    assert "2 failed" in shown


def test_quiet_style_prints_nothing(capsys):
    with ProgressDisplay("none", counters(), statistics):
        pass
    assert capsys.readouterr() == ("", "")


def test_error_ends_the_display_thread():
    with pytest.raises(ZeroDivisionError), ProgressDisplay("json", counters(), statistics):
        raise ZeroDivisionError
    assert "headrace-display" not in {t.name for t in threading.enumerate()}


@for_each(
    ("json_lines", "quiet", "terminal", "style"),
    [
        (True, True, True, "json"),
        (False, True, True, "none"),
        (False, False, True, "bar"),
        (False, False, False, "lines"),
    ],
)
def test_style_follows_options_and_terminal(json_lines, quiet, terminal, style, monkeypatch):
    monkeypatch.setattr("sys.stderr", Terminal() if terminal else io.StringIO())
    assert choose_style(json_lines=json_lines, quiet=quiet) == style
