import re
from pathlib import Path

import numpy as np
import pytest

from cases import for_each
from headrace.core.errors import TooManyFailuresError
from headrace.core.model_traceback import ModelTraceback
from headrace.reports.observation import FAILURES_MAX, RunObservation
from headrace.reports.page import PAGE_NAME, report_page
from headrace.reports.report import Report
from headrace.runs.failure_policy import FailurePolicy
from headrace.runs.output_settings import OutputSettings
from headrace.runs.run import Run
from headrace.runs.settings import StreamSettings, TransformSettings
from headrace.runs.tasks import InProcessRunner
from headrace.storage.resolve import Stores
from headrace.testing import ManualClock
from reports.observation_support import failure, report, scored
from reports.page_reader import Element, read_page
from runs.stream_support import ScriptedPredictor

_BAD = "<script>alert(1)</script>"


def _seen(*, failures=(), batches: int = 50) -> RunObservation:
    seen = RunObservation(0.0)
    rng = np.random.default_rng(2)
    for turn in range(batches):
        values = {"score": rng.random(100).astype(np.float32), "label": rng.integers(0, 2, 100)}
        seen.add_batch(scored(values, failures if turn == batches // 2 else ()), 0.1 * (turn + 1))
    return seen


def _page(changes: Report | None = None, seen: RunObservation | None = None, **more) -> Element:
    return read_page(report_page(changes or report(), seen or _seen(), **more))


def _headings(page: Element) -> list[tuple[str, str]]:
    return [(e.name, e.text) for e in page.everything() if re.fullmatch(r"h[1-6]", e.name)]


def _facts(section: Element) -> dict[str, str]:
    return {e.all("dt")[0].text: e.all("dd")[0].text for e in section.all("div") if e.all("dt")}


def test_page_has_its_sections_in_order():
    headings = _headings(_page(settings=TransformSettings()))
    assert [text for name, text in headings if name == "h1"] == ["Batch transform: complete"]
    assert [text for name, text in headings if name == "h2"] == [
        "Records",
        "Throughput",
        "Failures",
        "Predictions",
        "Run",
        "Settings",
    ]


def test_title_has_status_and_counts():
    page = _page(report(rows_out=1_234_555, rows_failed=12))
    assert (
        page.all("title")[0].text
        == "complete, with failed records: 1,234,567 records, 12 failed | s3://b/out/"
    )


def test_records_section_shows_the_counts():
    section = _page(report(rows_out=1_000_000, rows_failed=34_567, rows_suppressed=200_000)).section(
        "Records"
    )
    numbers = [
        (e.all("b")[0].text, e.all("span")[0].text) for e in section.all("div") if e.children[0].name == "b"
    ]
    assert numbers == [
        ("1,234,567", "records in"),
        ("1,000,000", "predicted"),
        ("34,567", "failed"),
        ("200,000", "suppressed"),
    ]
    assert [e.text for e in section.all("i")] == ["=", "+", "+"]
    assert "not written, because another record of their object failed" in section.text


def test_inconsistent_counts_are_reported():
    assert "do not add up" in _page(report(rows_out=1)).section("Records").text
    assert "do not add up" not in _page().section("Records").text


def test_unfinished_run_says_that_counts_are_partial():
    words = "Counts cover finished tasks"
    assert words in _page(report(status="drained")).section("Records").text
    assert words in _page(report(status="failed"), error="disk full").section("Records").text
    assert words not in _page(report(status="failed")).section("Records").text


@for_each(
    ("changes", "error", "word", "how"),
    [
        ({}, "", "complete", "good"),
        ({"rows_out": 1_234_566, "rows_failed": 1}, "", "complete, with failed records", "warn"),
        ({"objects_broken": 1}, "", "complete, with broken objects", "bad"),
        ({"status": "drained"}, "", "stopped before its end", "warn"),
        ({"status": "failed", "objects_suppressed": 2}, "", "failed", "bad"),
        ({"status": "failed"}, "disk full <b>", "stopped by an error", "bad"),
    ],
)
def test_heading_shows_the_status(changes, error, word, how):
    page = _page(report(**changes), error=error)
    (heading,) = page.all("h1")
    assert heading.text == f"Batch transform: {word}"
    assert heading.attributes["class"] == how
    assert [e.text for e in page.all("header")[0].all("pre")] == ([error] if error else [])


def test_resumed_run_explains_its_times():
    assert "Resumed" in _page(report(resumed=True)).all("header")[0].text
    assert "Resumed" not in _page().all("header")[0].text


def test_failures_are_listed_by_reason_and_object():
    objects = [
        {
            "object": "s3://b/in/x.csv",
            "records_in": 5000,
            "rows_failed": 1200,
            "broken": False,
            "suppressed": False,
        },
        {
            "object": "s3://b/in/y.csv",
            "records_in": 10,
            "rows_failed": 0,
            "broken": True,
            "suppressed": False,
        },
        {"object": "s3://b/in/z.csv", "records_in": 10, "rows_failed": 3, "broken": True, "suppressed": True},
    ]
    changes = report(
        rows_failed=1203,
        rows_out=1_233_364,
        failures={"decode: a": 1000, "model: b": 203},
        failed_objects=objects,
        objects_with_failures=1003,
    )
    section = _page(changes).section("Failures")
    reasons, worst = section.all("table")
    assert [[c.text for c in row.children] for row in reasons.all("tbody")[0].all("tr")] == [
        ["decode: a", "1,000", "83.1 %"],
        ["model: b", "203", "16.9 %"],
    ]
    assert [[c.text for c in row.children] for row in worst.all("tbody")[0].all("tr")] == [
        ["s3://b/in/x.csv", "5,000", "1,200", "written without them"],
        ["s3://b/in/y.csv", "10", "0", "not read to the end"],
        ["s3://b/in/z.csv", "10", "3", "suppressed"],
    ]
    assert "1,000 more objects with failures." in section.text


def test_first_failures_have_position_reason_and_excerpt():
    failures = [
        failure(6999, "not a number", b"1,x," + b"y" * 300, object="s3://b/in.tar", member="a.csv"),
        *(failure(i) for i in range(300)),
    ]
    section = _page(seen=_seen(failures=failures)).section("Failures")
    listed = section.all("li")
    assert len(listed) == FAILURES_MAX
    assert [e.text for e in listed[0].all("p")] == [
        "not a number decode:",  # the reader puts the text of children last
        "s3://b/in.tar!a.csv, record 6,999, line 7,000, byte 69,990",
    ]
    assert listed[0].all("pre")[0].text == "1,x," + "y" * 196 + " …"
    assert listed[1].all("pre")[0].text == "a,b"
    assert len(section.all("details")[0].all("li")) == FAILURES_MAX - 5
    assert section.all("summary")[0].text == f"{FAILURES_MAX - 5} more"
    assert f"The first {FAILURES_MAX} are listed." in section.text


def test_absence_of_failures_is_stated():
    section = _page().section("Failures")
    assert section.all("table") == []
    assert "No record failed." in section.text


def test_failures_of_an_earlier_run_are_mentioned():
    text = (
        _page(report(rows_failed=3, rows_out=1_234_564, failures={"decode: a": 3})).section("Failures").text
    )
    assert "None of the failures occurred in this run" in text


def test_throughput_plot_marks_failures():
    section = _page(seen=_seen(failures=[failure(1)])).section("Throughput")
    assert "5,001 records, 100,047 per second over the whole run." in section.text
    assert [e.all("title")[0].text for e in section.all("svg")] == [
        "Records per second over time",
        "Failed records over time",
    ]


@for_each("batches", [0, 1, 3])
def test_short_run_has_no_plot(batches):
    assert _page(seen=_seen(batches=batches)).section("Throughput").all("svg") == []


def test_each_output_has_a_panel():
    section = _page().section("Predictions")
    assert [e.text for e in section.all("h3")] == ["score", "label"]


def test_page_of_a_stream_shows_its_parts():
    page = _page(report(kind="stream", parts=1_234), settings=StreamSettings())
    assert page.all("h1")[0].text == "Stream: complete"
    facts = _facts(page.section("Run"))
    assert facts["Parts"] == "1,234"
    assert "Tasks done" not in facts


def test_tracebacks_of_the_model_keep_their_lines():
    traceback = ModelTraceback("ValueError", text="Traceback:\n  File <m.py>\nValueError: <b>")
    page = _page(report(rows_failed=1, rows_out=1_234_566, tracebacks=[traceback.to_json()]))
    (shown,) = page.section("Failures").all("pre")
    assert "".join(shown.texts) == traceback.text


def test_run_section_shows_the_figures():
    assert _facts(_page(report(objects_done=2, failure_limit="above 100 failed records")).section("Run")) == {
        "Model": "fraud",
        "Source": "s3://b/in/",
        "Output": "s3://b/out/",
        "Objects": "2 of 3",
        "Tasks done": "7",
        "Read": "412 MB",
        "Written": "23.5 MB",
        "Elapsed": "12.3 s",
        "Processor time": "16.4 s",
        "Records per second": "100,047",
        "Peak memory": "328 MB",
        "Model busy": "87.3 %",
        "Model idle": "1.6 s",
        "Model calls": "1,206",
        "Retries": "2",
        "Batches closed by": "1,200 rows, 6 end",
        "Resumed": "no",
        "Failure limit": "above 100 failed records",
    }


def test_changed_settings_are_listed():
    settings = TransformSettings(
        output=OutputSettings(join="input", output_filter="$['<b>']"),
        failures=FailurePolicy(failed_rows_max=10_000),
    )
    facts = _facts(_page(settings=settings).section("Settings"))
    assert facts["output.join"] == "input"
    assert facts["output.output_filter"] == "$['<b>']"
    assert facts["failures.failed_rows_max"] == "10,000"
    assert facts["failures.on_error"] == "record"
    assert "read.delimiter" not in facts


def test_data_is_never_markup():
    objects = [{"object": _BAD, "records_in": 1, "rows_failed": 1, "broken": False, "suppressed": False}]
    changes = report(
        source=_BAD,
        output=_BAD,
        model=_BAD,
        rows_failed=1,
        rows_out=1_234_566,
        failures={_BAD: 1},
        failed_objects=objects,
        batches_closed_by={_BAD: 1},
    )
    seen = _seen(failures=[failure(1, _BAD, _BAD.encode(), object=_BAD, member=_BAD)])
    seen.add_batch(
        scored({_BAD: np.array([_BAD] * 9, object), f"{_BAD}2": np.random.default_rng(0).random(9)}), 6.0
    )
    page = report_page(changes, seen, error=_BAD)
    found = read_page(page)
    assert b"<script" not in page.lower()
    assert found.all("script") == []
    assert found.all("main")[0].text.count(_BAD) >= 14
    names = {name for e in found.everything() for name in e.attributes}
    assert not [name for name in names if name.startswith("on")]


def test_non_utf8_names_are_shown():
    page = report_page(report(source="s3://b/\udcff/", failures={"a\udcff": 1}, rows_failed=1), _seen())
    assert "\\udcff" in page.decode()


def test_page_loads_nothing():
    for e in _page(settings=TransformSettings()).everything():
        assert not {"src", "href", "srcset", "data", "action", "style"} & set(e.attributes), e.name
    assert not re.search(rb"https?:", report_page(report(), _seen()))


def test_plots_have_descriptions_and_unique_ids():
    page = _page(seen=_seen(failures=[failure()]))
    ids = [e.attributes["id"] for e in page.everything() if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    for svg in page.all("svg"):
        if svg.attributes.get("aria-hidden") == "true":
            continue
        assert [e.name for e in svg.children[:2]] == ["title", "desc"]
        assert set(svg.attributes["aria-labelledby"].split()) <= set(ids)
    assert all("scope" in e.attributes for e in page.all("th"))


def test_same_run_gives_the_same_page():
    assert report_page(report(), _seen()) == report_page(report(), _seen())


# Real runs


def _run(folder: Path, predictor: ScriptedPredictor, *, observation: RunObservation | None, **more) -> Run:
    source = folder / "in"
    source.mkdir(exist_ok=True)
    for name in "ab":
        (source / f"{name}.csv").write_text("".join(f"{i},1\n" for i in range(20)) + f"{_BAD},1\n7,1\n")
    return Run(
        f"{source}/",
        f"{folder}/out/",
        stores=Stores(),
        runner=InProcessRunner(predictor),
        settings=TransformSettings(**more),
        model_identity="m",
        clock=ManualClock(),
        observation=observation,
    )


def test_observed_run_writes_a_page(tmp_path):
    seen = RunObservation()
    done = _run(tmp_path, ScriptedPredictor(), observation=seen).execute()
    page = read_page((tmp_path / "out" / PAGE_NAME).read_bytes())
    assert page.all("h1")[0].text == "Batch transform: complete, with failed records"
    assert seen.records == done.records_in == 44
    assert [series.rows for series in seen.series] == [42]
    assert page.section("Records").all("b")[0].text == "44"
    assert _BAD in page.section("Failures").all("li")[0].all("pre")[0].text
    assert "a.csv, record 20, line 21, byte" in page.section("Failures").text


def test_unobserved_run_writes_no_page(tmp_path):
    _run(tmp_path, ScriptedPredictor(), observation=None).execute()
    assert not (tmp_path / "out" / PAGE_NAME).exists()


def test_drained_run_writes_a_page(tmp_path):
    run = _run(tmp_path, ScriptedPredictor(), observation=RunObservation())
    run.drain()
    assert run.execute().status == "drained"
    page = read_page((tmp_path / "out" / PAGE_NAME).read_bytes())
    assert page.all("h1")[0].text == "Batch transform: stopped before its end"


def test_run_with_suppressed_outputs_writes_a_page(tmp_path):
    policy = FailurePolicy(on_error="object")
    assert (
        _run(tmp_path, ScriptedPredictor(), observation=RunObservation(), failures=policy).execute().status
        == "failed"
    )
    page = read_page((tmp_path / "out" / PAGE_NAME).read_bytes())
    assert "2 objects have no output" in page.all("header")[0].text


@pytest.mark.parametrize("policy", [FailurePolicy(on_error="job"), FailurePolicy(failed_rows_max=0)])
def test_failed_run_writes_a_page_with_the_error(tmp_path, policy):
    with pytest.raises(TooManyFailuresError) as caught:
        _run(tmp_path, ScriptedPredictor(), observation=RunObservation(), failures=policy).execute()
    page = read_page((tmp_path / "out" / PAGE_NAME).read_bytes())
    assert page.all("h1")[0].text == "Batch transform: stopped by an error"
    assert page.all("header")[0].all("pre")[0].text == str(caught.value)
    assert _BAD in page.section("Failures").all("li")[0].text


def test_overwrite_removes_the_page(tmp_path):
    _run(tmp_path, ScriptedPredictor(), observation=RunObservation()).execute()
    again = _run(tmp_path, ScriptedPredictor(), observation=None)
    again._if_exists = "overwrite"
    again.execute()
    assert not (tmp_path / "out" / PAGE_NAME).exists()
