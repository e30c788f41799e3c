"""Retried records give the output of a run without their failures, also after crashes."""

import contextlib
import gzip
import io
import json
import logging
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

import levels
from cases import for_each
from headrace.core.block import RAW_BYTES_KEPT_MAX
from headrace.core.errors import (
    ConfigError,
    HeadraceError,
    LedgerError,
    LimitError,
    ModelInputError,
    ResumeRefusedError,
    UnavailableError,
)
from headrace.core.model import Model, RowError
from headrace.core.tensor import TensorSpec
from headrace.engine.engine import Engine
from headrace.reports.observation import RunObservation
from headrace.reports.page import PAGE_NAME
from headrace.reports.report import Report
from headrace.runs.retry import FailedRecordsRetry
from headrace.runs.settings import TransformSettings
from headrace.storage.local import LocalStore
from headrace.storage.resolve import Stores
from reports.page_reader import Element, read_page
from runs.support import (
    IN,
    OUT,
    FailingPredictor,
    FailOnceStore,
    InjectedError,
    OverlaidStores,
    allow_small_tasks,
    engine,
    failed_lines,
    ledger_names,
    make_settings,
    make_transform,
    outputs,
    put,
    tar,
    transform,
)

LEVELS = 4
"""The number of moods; a record needs the mood of its number modulo LEVELS."""


class Moody(Model):
    """A model of two numbers: ``y`` is twice the first. `mood` decides which rows it accepts.

    The class, and so the model's identity, is always the same.
    """

    inputs = (TensorSpec("x", "FP64", (-1, 2)),)
    outputs = (TensorSpec("y", "FP64", (-1,)),)
    max_batch_rows = 4

    def __init__(self) -> None:
        self.mood = 0
        self.calls = set[float]()
        """The first numbers of all rows that the model received."""

    def predict(self, x):
        self.calls |= set(x[:, 0].tolist())
        bad = {int(row): "not today" for row in np.flatnonzero(x[:, 0] % LEVELS > self.mood)}
        if bad:
            raise RowError(bad)
        return {"y": x[:, 0] * 2}


MODEL = Moody()


@pytest.fixture(scope="module")
def predictor() -> Iterator[Engine]:
    with engine(MODEL) as started:
        yield started


@pytest.fixture(autouse=True)
def reset_mood() -> None:
    MODEL.mood = 0


def retry_failed(stores: Stores, predictor, *, destination: str = OUT, identity: str = "m", **more) -> Report:
    return FailedRecordsRetry(
        destination, stores=stores, predictor=predictor, model_identity=identity, **more
    ).execute()


def ignoring_attempts(found: dict[str, bytes]) -> dict[str, bytes | list[dict[str, object]]]:
    """Return outputs by name, without the number of attempts of failed records."""
    return {
        name: [{**line, "attempts": None} for line in failed_lines(data)]
        if name.endswith(".failed")
        else data
        for name, data in found.items()
    }


COUNTS = (
    "status",
    "exit_code",
    "records_in",
    "rows_out",
    "rows_failed",
    "rows_suppressed",
    "out_bytes",
    "failures",
)
MORE_COUNTS = ("objects", "objects_done", "objects_with_failures", "objects_broken", "objects_suppressed")


def counts(report: Report) -> dict[str, object]:
    found = report.to_json()
    return {name: found[name] for name in COUNTS + MORE_COUNTS}


def assert_matches(
    stores: Stores,
    report: Report,
    other: Stores,
    expected: Report,
    *,
    depends_on_timing: bool = False,
) -> None:
    """Assert that outputs and counts equal those of another run, and that the ledger has no
    leftovers.

    `depends_on_timing`: the number of records read after a failure may differ, for suppressed
    objects.
    """
    assert ignoring_attempts(outputs(stores)) == ignoring_attempts(outputs(other))
    by_timing = {"records_in", "rows_suppressed"} if depends_on_timing else set()
    found, wanted = counts(report), counts(expected)
    assert {n: c for n, c in found.items() if n not in by_timing} == {
        n: c for n, c in wanted.items() if n not in by_timing
    }
    assert report.records_in == report.rows_out + report.rows_failed + report.rows_suppressed
    assert json.loads(stores.for_uri(OUT).get(OUT + "_report.json")) == report.to_json()
    names = ledger_names(stores)
    assert [n for n in names if n.startswith("drafts/") or n == "again.json" or "checkpoint" in n] == []


def run_fresh(
    predictor, objects: dict[str, bytes], run_settings: TransformSettings, *, mood: int
) -> tuple[Stores, Report]:
    """Run a new transform with the model in that mood."""
    stores = Stores()
    put(stores, objects)
    before, MODEL.mood = MODEL.mood, mood
    report = transform(stores, predictor=predictor, settings=run_settings)
    MODEL.mood = before
    return stores, report


# Random objects

RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["mood"] * 6 + ["bad cell", "bad width", "too long", "no field"]), st.integers(0, 3)
    ),
    max_size=9,
)
LONG = 300
NAMES = [b"a", b'"b\nc"', b'"d""e"', b"", b'"f,\r\ng"']


def csv_record(number: int, kind: str) -> bytes:
    name = NAMES[number % len(NAMES)]
    match kind:
        case "bad cell":
            return name + b",no%d,1" % number
        case "bad width":
            return name + b",%d,1,9" % number
        case "too long":
            return b"x" * LONG + b",%d,1" % number
        case _:
            return name + b",%d,1" % number


def json_record(number: int, kind: str) -> bytes:
    match kind:
        case "bad cell":
            return b'{"x": "no%d", "id": 1}' % number
        case "bad width":
            return b'{"x": [%d, 1' % number
        case "too long":
            return b'{"x": [%d, 1], "id": "%b"}' % (number, b"x" * LONG)
        case "no field":
            return b'{"x": [%d, 1]}' % number
        case _:
            return b'{"x": [%d, 1], "id": "%d"}' % (number, number)


def text_of(index: int, records: list[tuple[str, int]], *, is_csv: bool, header: str) -> bytes:
    one = csv_record if is_csv else json_record
    numbers = (LEVELS * (20 * index + place) + mood for place, (_, mood) in enumerate(records))
    numbered_lines = [one(number, kind) for number, (kind, _) in zip(numbers, records, strict=True)]
    head = [b"name,p,q"] if is_csv and header != "none" else []
    return b"".join(line + b"\n" for line in [*head, *numbered_lines])


CSV_OUTPUTS = [
    {},
    {"join": "input"},
    {"join": "input", "output_filter": "$[0,-1]"},
    {"format": "jsonl"},
    {"format": "jsonl", "join": "input"},
]
JSON_OUTPUTS = [
    {},
    {"join": "input"},
    {"join": "input", "output_filter": "$['id','SageMakerOutput']"},
    {"format": "json", "assemble": "none"},
    {"format": "csv"},
    {"format": "csv", "header": True, "join": "input"},
]


@settings(max_examples=levels.examples(0.4))
@given(
    st.lists(st.tuples(RECORDS, st.sampled_from(["", ".gz"])), min_size=1, max_size=4),
    st.sampled_from(["none", "drop", "names", "jsonl"]),
    st.integers(0, 5),
    st.sampled_from([None, 1, 30, 100]),
)
def test_repeated_retries_equal_a_run_without_failures(predictor, objects, form, output, task_bytes):
    is_csv, header = form != "jsonl", form if form != "jsonl" else "none"

    run_settings = make_settings(
        read={"header": header, "record_bytes_max": 200},
        mapping={"input_filter": "$[1:3]" if is_csv and header != "names" else "$"}
        | ({"columns": ("p", "q")} if is_csv and header == "names" else {}),
        output=(CSV_OUTPUTS * 2)[output] if is_csv else JSON_OUTPUTS[output],
        tasks={"task_bytes": task_bytes} if task_bytes else {},
    )
    found: dict[str, bytes] = {}
    for index, (records, packing) in enumerate(objects):
        text = text_of(index, records, is_csv=is_csv, header=header)
        name = f"{index}.{'csv' if is_csv else 'jsonl'}{packing}"
        found[name] = gzip.compress(text, mtime=0) if packing else text
    with pytest.MonkeyPatch.context() as patch:
        if task_bytes:
            allow_small_tasks(patch)
        try:
            stores, first = run_fresh(predictor, found, run_settings, mood=0)
        except (ModelInputError, ConfigError):  # no record fits the model
            assume(False)
        event(f"failed: {min(first.rows_failed, 3)}")
        for mood in (1, 2, 2, 3):
            MODEL.mood = mood
            report = retry_failed(stores, predictor)
            assert_matches(stores, report, *run_fresh(predictor, found, run_settings, mood=mood))
            assert report.exit_code == (3 if report.rows_failed else 0)
    for name, data in outputs(stores).items():
        if name.endswith(".failed"):
            assert {(f["kind"], f["attempts"]) for f in failed_lines(data) if f["kind"] == "decode"} <= {
                ("decode", 5)
            }


def test_only_failed_records_are_retried_and_attempts_add_up(stores, predictor):
    put(stores, {"a.csv": b"".join(b"%d,1\n" % number for number in range(40)), "b.csv": b"0,1\nno,1\n"})
    transform(stores, predictor=predictor)
    MODEL.mood, MODEL.calls = 2, set()
    assert retry_failed(stores, predictor).rows_failed == 11
    assert MODEL.calls == {number for number in range(40) if number % LEVELS}
    numbered_lines = failed_lines(outputs(stores)["a.csv.out.failed"])
    assert [(f["record"], f["output_row"], f["attempts"]) for f in numbered_lines] == [
        (number, number - number // 4, 2) for number in range(3, 40, 4)
    ]
    retry_failed(stores, predictor)
    assert {f["attempts"] for f in failed_lines(outputs(stores)["a.csv.out.failed"])} == {3}
    MODEL.mood = 3
    report = retry_failed(stores, predictor)
    assert (report.rows_failed, report.exit_code, report.failures) == (
        1,
        3,
        {"decode: " + report_reason(report): 1},
    )
    assert outputs(stores)["a.csv.out"] == b"".join(b"%.1f\n" % (2.0 * number) for number in range(40))


def report_reason(report: Report) -> str:
    (reason,) = report.failures
    return reason.removeprefix("decode: ")


# Records read from their objects


def parquet(count: int, row_group_size: int = 3) -> bytes:
    out = io.BytesIO()
    rows = [[float(number), 1.0] for number in range(count)]
    table = pa.table({"x": pa.array(rows, pa.list_(pa.float64(), 2)), "id": [str(n) for n in range(count)]})
    pq.write_table(table, out, row_group_size=row_group_size)
    return out.getvalue()


def numbered_lines(*numbers: int) -> bytes:
    return b"".join(b"%d,1\n" % number for number in numbers)


LONG_NAME = b"n" * RAW_BYTES_KEPT_MAX
FROM_OBJECTS = {
    "long": (
        {"a.csv": b"1,1,%b\n2,1,x\n4,1,y\n" % LONG_NAME},
        {"mapping": {"input_filter": "$[:2]"}, "output": {"join": "input"}},
    ),
    "tar": (
        {
            "a.tar": tar(
                {
                    "x.csv": numbered_lines(1, 0, 2),
                    "y.csv": numbered_lines(0),
                    "x2/x.csv": numbered_lines(3, 5, 4),
                }
            )
        },
        {},
    ),
    "tar, headers": (
        {
            "a.tar": tar(
                {"x.csv": b"p,q\n1,1\n", "y.csv": b"long,names\n0,1\n2,1\n", "z.csv": b"r,s\n3,1\n1,1\n"}
            )
        },
        {"read": {"header": "names"}, "output": {"join": "input"}},
    ),
    "parquet": ({"a.parquet": parquet(11)}, {"output": {"join": "input"}}),
    "mixed": (
        {
            "a.csv": numbered_lines(1, 2, 3),
            "b.tar": tar({"x.csv": numbered_lines(1)}),
            "c.csv": numbered_lines(3, 0),
        },
        {},
    ),
}


@for_each("name", FROM_OBJECTS)
def test_records_without_stored_bytes_are_read_from_objects(predictor, name):
    stores = Stores()
    MODEL.mood = 0
    objects, words = FROM_OBJECTS[name]
    run_settings = make_settings(**words)
    put(stores, objects)
    assert transform(stores, predictor=predictor, settings=run_settings).rows_failed
    for mood in (1, 2, 3):
        MODEL.mood = mood
        assert_matches(
            stores, retry_failed(stores, predictor), *run_fresh(predictor, objects, run_settings, mood=mood)
        )
    assert retry_failed(stores, predictor).exit_code == 0


@for_each("name", ["tar", "parquet"])
@for_each("is_deleted", [True, False])
def test_changed_object_is_skipped(predictor, caplog, name, is_deleted):
    stores = Stores()
    caplog.clear()
    MODEL.mood = 0
    objects, words = FROM_OBJECTS[name]
    put(
        stores,
        {**objects, "z.csv": numbered_lines(1)} | ({"z.parquet": parquet(2)} if name == "parquet" else {}),
    )
    del words
    (changed,) = objects
    transform(stores, predictor=predictor)
    before = outputs(stores)
    store = stores.for_uri(IN)
    store.delete(IN + changed) if is_deleted else store.put(IN + changed, b"something else")
    MODEL.mood = 3
    with caplog.at_level(logging.WARNING):
        report = retry_failed(stores, predictor)
    assert changed in caplog.text
    after = outputs(stores)
    assert {n: after[n] for n in after if n.startswith("a.")} == {
        n: before[n] for n in before if n.startswith("a.")
    }
    assert "z.csv.out.failed" not in after
    assert after["z.csv.out"] in {b"2.0\n", b'{"y":2.0}\n'}
    assert (report.exit_code, report.objects_with_failures) == (3, 1)


def test_stored_text_needs_no_object(stores, predictor):
    put(stores, {"a.csv": numbered_lines(0, 1, 4)})
    transform(stores, predictor=predictor)
    stores.for_uri(IN).delete(IN + "a.csv")
    MODEL.mood = 3
    assert retry_failed(stores, predictor).exit_code == 0
    assert outputs(stores) == {"a.csv.out": b"0.0\n2.0\n8.0\n"}


# Objects scored again as a whole

TEXT = numbered_lines(*range(12))
PACKED = gzip.compress(TEXT, mtime=0)


@for_each("size", [len(PACKED) - 3, 20, 0])
def test_repaired_object_is_scored_again_alone(predictor, size):
    stores = Stores()
    MODEL.mood = 0
    objects = {
        "a.csv": numbered_lines(0, 4),
        "b.csv.gz": PACKED,
        "c.csv": numbered_lines(3, 0),
        "d.csv": numbered_lines(8),
    }
    put(stores, {**objects, "b.csv.gz": PACKED[:size]})
    assert transform(stores, predictor=predictor).exit_code in {1, 3}
    for name in ("a.csv", "d.csv"):
        stores.for_uri(IN).delete(IN + name)  # the retry does not need them
    put(stores, {"b.csv.gz": PACKED})
    MODEL.mood = 2
    report = retry_failed(stores, predictor)
    if size:
        assert_matches(stores, report, *run_fresh(predictor, objects, make_settings(), mood=2))
        MODEL.mood = 3
        assert_matches(
            stores, retry_failed(stores, predictor), *run_fresh(predictor, objects, make_settings(), mood=3)
        )


def test_later_retries_read_the_repaired_object(stores, predictor):
    packed = gzip.compress(tar({"x.csv": numbered_lines(1, 0, 3, 2)}), mtime=0)
    put(stores, {"a.tar.gz": packed[:-9]})
    assert transform(stores, predictor=predictor).objects_broken == 1
    put(stores, {"a.tar.gz": packed})
    for mood in (1, 2, 3):
        MODEL.mood = mood
        expected = run_fresh(predictor, {"a.tar.gz": packed}, make_settings(), mood=mood)
        assert_matches(stores, retry_failed(stores, predictor), *expected)


def test_record_without_filtered_value_fails_alone(stores, predictor):
    run_settings = make_settings(output={"join": "input", "output_filter": "$.id"})
    objects = {"a.jsonl": b'{"x":[1,1],"id":7}\n{"x":[0,1],"id":8}\n{"x":[1,1]}\n{"x":[5,1],"id":9}\n'}
    put(stores, objects)
    assert transform(stores, predictor=predictor, settings=run_settings).rows_failed == 3
    MODEL.mood = 1
    for _ in range(2):
        report = retry_failed(stores, predictor)
        assert_matches(stores, report, *run_fresh(predictor, objects, run_settings, mood=1))
        assert (report.rows_out, report.rows_failed) == (3, 1)


def test_object_that_is_still_broken_stays_broken(stores, predictor):
    put(stores, {"a.csv.gz": PACKED[:-3]})
    before = transform(stores, predictor=predictor)
    assert (before.exit_code, before.objects_broken) == (1, 1)
    MODEL.mood = 3
    report = retry_failed(stores, predictor)
    assert (report.exit_code, report.objects_broken, report.rows_failed) == (1, 1, 0)
    (line,) = failed_lines(outputs(stores)["a.csv.gz.out.failed"])
    assert (line["kind"], line["output_row"]) == ("object", report.rows_out)


def test_missing_broken_object_keeps_its_output(stores, predictor):
    put(stores, {"a.csv.gz": PACKED[:-3]})
    transform(stores, predictor=predictor)
    before = outputs(stores)
    stores.for_uri(IN).delete(IN + "a.csv.gz")
    assert retry_failed(stores, predictor).exit_code == 1
    assert outputs(stores) == before


WHOLE = {
    "suppressed": {"failures": {"on_error": "object"}},
    "suppressed, in ranges": {"failures": {"on_error": "object"}, "tasks": {"task_bytes": 20}},
    "parquet": {"output": {"format": "parquet"}},
    "arrow": {"output": {"format": "arrow", "join": "input"}},
}


@for_each("name", WHOLE)
def test_tables_and_suppressed_outputs_are_scored_again(predictor, monkeypatch, name):
    stores = Stores()
    MODEL.mood = 0
    run_settings = make_settings(**WHOLE[name])
    objects = {
        "a.csv": TEXT,
        "b.csv": numbered_lines(100, 0),
        "c.csv": numbered_lines(3, 1),
        "d.csv": numbered_lines(2),
    }
    if "tasks" in WHOLE[name]:
        allow_small_tasks(monkeypatch)
    put(stores, objects)
    transform(stores, predictor=predictor, settings=run_settings)
    for mood in (2, 3):
        MODEL.mood, MODEL.calls = mood, set()
        report = retry_failed(stores, predictor)
        seen = set(MODEL.calls)
        if name != "suppressed, in ranges" or mood == 3:  # a range after a failure may be read or not
            assert_matches(stores, report, *run_fresh(predictor, objects, run_settings, mood=mood))
        assert 100 not in seen  # record 100 never failed
    assert report.exit_code == 0


# Kills

PACKED_2 = gzip.compress(numbered_lines(0, 1, 2), mtime=0)
KILLED = {
    "text": (
        {"a.csv": b"p,q\n1,1\n0,1\n2,1\n", "b.csv": b"p,q\n1,1\n", "c.csv": b"p,q\n0,1\n"},
        {"read": {"header": "names"}},
    ),
    "cut": ({"a.csv": numbered_lines(*range(9))}, {"tasks": {"task_bytes": 12}}),
    "repaired": (
        {
            "a.csv": numbered_lines(0, 1),
            "b.csv.gz": gzip.compress(numbered_lines(0, 1, 2, 4, 3), mtime=0),
            "d.csv.gz": PACKED_2,
            "c.csv": numbered_lines(3),
        },
        {},
    ),
    "parquet": (
        {"a.csv": numbered_lines(0, 1), "b.csv": numbered_lines(0), "c.csv": numbered_lines(2, 0)},
        {"output": {"format": "parquet"}},
    ),
    "suppressed": (
        {"a.csv": numbered_lines(*range(5)), "b.csv": numbered_lines(4)},
        {"failures": {"on_error": "object"}, "tasks": {"task_bytes": 8}},
    ),
}


def copy_stores(stores):
    """Return stores with copies of the objects."""
    make_transform = Stores()
    for info in [*stores.for_uri(IN).list(IN), *stores.for_uri(OUT).list(OUT)]:
        make_transform.for_uri(info.uri).put(info.uri, stores.for_uri(info.uri).get(info.uri))
    return make_transform


@pytest.mark.parametrize("name", KILLED)
def test_kill_between_any_store_calls_is_recovered(predictor, monkeypatch, name):
    objects, words = KILLED[name]
    run_settings = make_settings(**words)
    if "tasks" in words:
        allow_small_tasks(monkeypatch)
    middle, last = (run_fresh(predictor, objects, run_settings, mood=mood) for mood in (2, 3))
    before = Stores()
    put(before, {n: data[:-3] if n.endswith(".gz") else data for n, data in objects.items()})
    MODEL.mood = 0
    transform(before, predictor=predictor, settings=run_settings)
    put(before, {n: data for n, data in objects.items() if n.endswith(".gz")})
    if name != "repaired":
        # The second of three retries is killed, so that an earlier one can be lost.
        MODEL.mood = 1
        retry_failed(before, predictor)
    for write_first in (False, True):
        at, failed = 0, True
        while failed:
            at += levels.by_level(3, 1, 1)
            stores = copy_stores(before)
            MODEL.mood = 2
            failing = FailOnceStore(stores.for_uri(OUT), at=at, write_first=write_first)
            with contextlib.suppress(UnavailableError):
                retry_failed(OverlaidStores(stores, OUT, failing), predictor)
            failed = failing.failed
            report = retry_failed(stores, predictor)
            assert_matches(stores, report, *middle, depends_on_timing=name == "suppressed")
            MODEL.mood = 3
            assert_matches(stores, retry_failed(stores, predictor), *last)
        assert at > 10


def test_retry_on_a_local_disk(tmp_path, predictor):
    objects = {"a.csv": TEXT, "sub/b c#1.csv": numbered_lines(0, 1, 2), "d.csv.gz": PACKED}
    stores, destination = Stores(), f"{tmp_path}/out/"
    for name, data in {**objects, "d.csv.gz": PACKED[:-3]}.items():
        stores.for_uri(str(tmp_path)).put(f"{tmp_path}/in/{name}", data)
    place = {"source": f"{tmp_path}/in/", "destination": destination}
    transform(stores, predictor=predictor, **place)
    stores.for_uri(str(tmp_path)).put(f"{tmp_path}/in/d.csv.gz", PACKED)
    assert isinstance(stores.for_uri(destination), LocalStore)
    for mood, spelled in ((1, destination), (2, f"file://{tmp_path}/out"), (3, destination)):
        MODEL.mood = mood
        report = retry_failed(stores, predictor, destination=spelled)
        other, expected = run_fresh(predictor, objects, make_settings(), mood=mood)
        files = {
            str(p.relative_to(destination)): p.read_bytes()
            for p in (tmp_path / "out").rglob("*")
            if p.is_file()
        }
        found = {n: d for n, d in files.items() if not n.startswith(("_headrace/", "_report"))}
        for data in (found, outputs(other)):
            for name in [n for n in data if n.endswith(".failed")]:
                data[name] = [f["record"] for f in failed_lines(data[name])]
        assert [n for n in files if n.startswith("_headrace/drafts/")] == []
        assert {n: d for n, d in found.items() if not n.endswith(".failed")} == {
            n: d for n, d in outputs(other).items() if not n.endswith(".failed")
        }
        assert counts(replace(report, failures={})) == counts(replace(expected, failures={}))


# Refusals


def test_other_model_is_refused_unless_allowed(stores, predictor):
    put(stores, {"a.csv": numbered_lines(0, 1)})
    transform(stores, predictor=predictor)
    MODEL.mood = 3
    with pytest.raises(ResumeRefusedError, match=r"model m, but this is n.*--other-model"):
        retry_failed(stores, predictor, identity="n")
    assert "a.csv.out.failed" in outputs(stores)
    assert retry_failed(stores, predictor, identity="n", other_model=True).exit_code == 0
    assert retry_failed(stores, predictor).exit_code == 0  # the first model is still the run's


def test_missing_or_unfinished_transform_is_refused(stores, predictor):
    with pytest.raises(ConfigError, match="there is no run"):
        retry_failed(stores, predictor)
    put(stores, {"a.csv": numbered_lines(*range(40))})
    with pytest.raises(InjectedError):
        make_transform(stores, predictor=FailingPredictor(predictor, at=3)).execute()
    with pytest.raises(LedgerError, match=r"not finished.*--resume"):
        retry_failed(stores, predictor)


def test_too_many_failed_records_are_refused(stores, predictor, monkeypatch):
    monkeypatch.setattr("headrace.runs.retry.FAILED_BYTES_MAX", 500)
    put(stores, {"a.csv": numbered_lines(*[1] * 9)})
    transform(stores, predictor=predictor)
    with pytest.raises(LimitError, match=r"a\.csv\.out\.failed holds more than"):
        retry_failed(stores, predictor)


def test_objects_are_retried_in_bounded_rounds(stores, predictor, monkeypatch):
    monkeypatch.setattr("headrace.runs.retry._ROUND_BYTES", 10)
    monkeypatch.setattr("headrace.runs.retry_records._RECORDS_MAX", 2)
    objects = {f"{n}.csv": numbered_lines(*range(n, n + 7)) for n in range(6)}
    put(stores, objects)
    transform(stores, predictor=predictor)
    MODEL.mood = 3
    assert_matches(
        stores, retry_failed(stores, predictor), *run_fresh(predictor, objects, make_settings(), mood=3)
    )


def test_model_error_leaves_the_outputs_unchanged(stores, predictor):
    put(stores, {"a.csv": numbered_lines(0, 1)})
    transform(stores, predictor=predictor)
    before = outputs(stores)
    with pytest.raises((HeadraceError, InjectedError)):
        retry_failed(stores, FailingPredictor(predictor, at=0))
    assert outputs(stores) == before


# The page


def page(stores: Stores) -> Element:
    return read_page(stores.for_uri(OUT).get(OUT + PAGE_NAME))


def page_counts(stores: Stores) -> list[str]:
    """Return records in, predicted, failed and suppressed, as the page shows them."""
    return [e.text for e in page(stores).section("Records").all("b")]


def test_retry_writes_an_existing_page_again(stores, predictor):
    put(stores, {"a.csv": numbered_lines(0, 1, 2, 3, 4)})
    transform(stores, predictor=predictor, observation=RunObservation())
    assert page_counts(stores) == ["5", "2", "3", "0"]
    MODEL.mood = 1
    retry_failed(stores, predictor)
    assert page_counts(stores) == ["5", "3", "2", "0"]
    failures = page(stores).section("Failures").text
    assert "a.csv, record 2, line 3, byte 8" in failures, "the position in the object, not in the retry"
    assert "a.csv, record 3, line 4, byte 12" in failures
    MODEL.mood = 3
    retry_failed(stores, predictor)
    assert page(stores).all("h1")[0].text == "Batch transform: complete"


def test_retry_that_changes_no_count_keeps_the_page(stores, predictor):
    put(stores, {"a.csv": numbered_lines(0, 1, 2)})
    transform(stores, predictor=predictor, observation=RunObservation())
    before = stores.for_uri(OUT).get(OUT + PAGE_NAME)
    retry_failed(stores, predictor)
    assert stores.for_uri(OUT).get(OUT + PAGE_NAME) == before
    retry_failed(stores, predictor, write_page=True)
    assert "Resumed" in page(stores).all("header")[0].text


def test_retry_writes_no_page_unless_asked(stores, predictor):
    put(stores, {"a.csv": numbered_lines(0, 1, 2)})
    transform(stores, predictor=predictor)
    MODEL.mood = 1
    retry_failed(stores, predictor)
    assert not any(PAGE_NAME in info.uri for info in stores.for_uri(OUT).list(OUT))
    retry_failed(stores, predictor, write_page=True)
    assert page_counts(stores) == ["3", "2", "1", "0"]


def test_page_of_objects_scored_again_as_a_whole(stores, predictor):
    put(stores, {"a.csv": numbered_lines(0, 1)})
    run_settings = make_settings(output={"format": "parquet"})
    transform(stores, predictor=predictor, settings=run_settings, observation=RunObservation())
    MODEL.mood = 1
    retry_failed(stores, predictor)
    assert page_counts(stores) == ["2", "2", "0", "0"]
    assert "y" in page(stores).section("Predictions").text


def test_report_names_several_sources_as_the_run_did(stores, predictor):
    put(stores, {"a.csv": b"0,0\n1,0\n", "b.csv": b"4,0\n"})
    first = transform(stores, predictor=predictor, source=[IN + "a.csv", IN + "b.csv"])
    MODEL.mood = LEVELS
    retried = retry_failed(stores, predictor)
    assert (first.rows_failed, retried.rows_failed) == (1, 0)
    assert retried.source == first.source == f"{IN}a.csv, {IN}b.csv"
