"""Failed records tried again: the same bytes as if they had never failed, whatever they were read from and whoever dies."""

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
from headrace.storage.local import LocalStore
from headrace.storage.resolve import Stores
from headrace.transforms.report import TransformReport
from headrace.transforms.retry import Retry
from headrace.transforms.settings import TransformSettings
from transforms.support import (
    IN,
    OUT,
    Breaking,
    BrokenError,
    FailsOnce,
    WithStore,
    cut,
    engine,
    failed_lines,
    ledger_names,
    made,
    outputs,
    put,
    settings_of,
    tar,
    transform,
)

LEVELS = 4
"""A record's number modulo this is the mood from which on it is taken."""


class Moody(Model):
    """``y`` is twice the first number of two. Takes the rows that its mood allows: the same class, so the same identity."""

    inputs = (TensorSpec("x", "FP64", (-1, 2)),)
    outputs = (TensorSpec("y", "FP64", (-1,)),)
    max_batch_rows = 4

    def __init__(self) -> None:
        self.mood = 0
        self.asked = set[float]()
        """The first numbers of all rows that came."""

    def predict(self, x):
        self.asked |= set(x[:, 0].tolist())
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
def calm() -> None:
    MODEL.mood = 0


def retried(
    stores: Stores, predictor, *, destination: str = OUT, identity: str = "m", **more
) -> TransformReport:
    return Retry(destination, stores=stores, predictor=predictor, model_identity=identity, **more).execute()


def without_attempts(found: dict[str, bytes]) -> dict[str, bytes | list[dict[str, object]]]:
    """Outputs by name; of failed records all but how often they were tried."""
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
    "rows_withheld",
    "out_bytes",
    "failures",
)
MORE_COUNTS = ("objects", "objects_done", "objects_with_failures", "objects_broken", "objects_withheld")


def counts(report: TransformReport) -> dict[str, object]:
    found = report.to_json()
    return {name: found[name] for name in COUNTS + MORE_COUNTS}


def assert_is(
    stores: Stores,
    report: TransformReport,
    other: Stores,
    expected: TransformReport,
    *,
    read_on: bool = False,
) -> None:
    """What was retried is what another run wrote, by bytes and counts, and the ledger is at rest.

    `read_on`: more or less of what follows a failure may have been read, of an object whose output is withheld for it.
    """
    assert without_attempts(outputs(stores)) == without_attempts(outputs(other))
    by_timing = {"records_in", "rows_withheld"} if read_on else set()
    found, wanted = counts(report), counts(expected)
    assert {n: c for n, c in found.items() if n not in by_timing} == {
        n: c for n, c in wanted.items() if n not in by_timing
    }
    assert report.records_in == report.rows_out + report.rows_failed + report.rows_withheld
    assert json.loads(stores.for_uri(OUT).get(OUT + "_report.json")) == report.to_json()
    names = ledger_names(stores)
    assert [n for n in names if n.startswith("drafts/") or n == "again.json" or "checkpoint" in n] == []


def from_the_start(
    predictor, objects: dict[str, bytes], used: TransformSettings, *, mood: int
) -> tuple[Stores, TransformReport]:
    """What a run writes whose model is in that mood from the start."""
    stores = Stores()
    put(stores, objects)
    before, MODEL.mood = MODEL.mood, mood
    report = transform(stores, predictor=predictor, settings=used)
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
    lines = [one(number, kind) for number, (kind, _) in zip(numbers, records, strict=True)]
    head = [b"name,p,q"] if is_csv and header != "none" else []
    return b"".join(line + b"\n" for line in [*head, *lines])


CSV_OUTPUTS = [
    {},
    {"join": "input"},
    {"join": "input", "output_filter": "$[0,-1]"},
    {"accept": "jsonl"},
    {"accept": "jsonl", "join": "input"},
]
JSON_OUTPUTS = [
    {},
    {"join": "input"},
    {"join": "input", "output_filter": "$['id','SageMakerOutput']"},
    {"accept": "json", "assemble": "none"},
    {"accept": "csv"},
    {"accept": "csv", "header": True, "join": "input"},
]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(RECORDS, st.sampled_from(["", ".gz"])), min_size=1, max_size=4),
    st.sampled_from(["none", "drop", "names", "jsonl"]),
    st.integers(0, 5),
    st.sampled_from([None, 1, 30, 100]),
)
def test_retrying_again_and_again_gives_the_bytes_of_a_run_that_never_failed(
    predictor, objects, form, output, task_bytes
):
    is_csv, header = form != "jsonl", form if form != "jsonl" else "none"

    used = settings_of(
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
            cut(patch)
        try:
            stores, first = from_the_start(predictor, found, used, mood=0)
        except (ModelInputError, ConfigError):  # no record fits the model
            assume(False)
        event(f"failed: {min(first.rows_failed, 3)}")
        for mood in (1, 2, 2, 3):
            MODEL.mood = mood
            report = retried(stores, predictor)
            assert_is(stores, report, *from_the_start(predictor, found, used, mood=mood))
            assert report.exit_code == (3 if report.rows_failed else 0)
    for name, data in outputs(stores).items():
        if name.endswith(".failed"):
            assert {(f["kind"], f["attempts"]) for f in failed_lines(data) if f["kind"] == "decode"} <= {
                ("decode", 5)
            }


def test_attempts_add_up_and_only_failed_records_are_asked_about(stores, predictor):
    put(stores, {"a.csv": b"".join(b"%d,1\n" % number for number in range(40)), "b.csv": b"0,1\nno,1\n"})
    transform(stores, predictor=predictor)
    MODEL.mood, MODEL.asked = 2, set()
    assert retried(stores, predictor).rows_failed == 11
    assert MODEL.asked == {number for number in range(40) if number % LEVELS}
    lines = failed_lines(outputs(stores)["a.csv.out.failed"])
    assert [(f["record"], f["output_row"], f["attempts"]) for f in lines] == [
        (number, number - number // 4, 2) for number in range(3, 40, 4)
    ]
    retried(stores, predictor)
    assert {f["attempts"] for f in failed_lines(outputs(stores)["a.csv.out.failed"])} == {3}
    MODEL.mood = 3
    report = retried(stores, predictor)
    assert (report.rows_failed, report.exit_code, report.failures) == (
        1,
        3,
        {"decode: " + report_reason(report): 1},
    )
    assert outputs(stores)["a.csv.out"] == b"".join(b"%.1f\n" % (2.0 * number) for number in range(40))


def report_reason(report: TransformReport) -> str:
    (reason,) = report.failures
    return reason.removeprefix("decode: ")


# What is read again from its object


def parquet(count: int, row_group_size: int = 3) -> bytes:
    out = io.BytesIO()
    rows = [[float(number), 1.0] for number in range(count)]
    table = pa.table({"x": pa.array(rows, pa.list_(pa.float64(), 2)), "id": [str(n) for n in range(count)]})
    pq.write_table(table, out, row_group_size=row_group_size)
    return out.getvalue()


def lines(*numbers: int) -> bytes:
    return b"".join(b"%d,1\n" % number for number in numbers)


LONG_NAME = b"n" * RAW_BYTES_KEPT_MAX
FROM_OBJECTS = {
    "long": ({"a.csv": b"1,1,%b\n2,1,x\n4,1,y\n" % LONG_NAME}, {"mapping": {"input_filter": "$[:2]"}, "output": {"join": "input"}}),
    "tar": ({"a.tar": tar({"x.csv": lines(1, 0, 2), "y.csv": lines(0), "x2/x.csv": lines(3, 5, 4)})}, {}),
    "tar, headers": (
        {"a.tar": tar({"x.csv": b"p,q\n1,1\n", "y.csv": b"long,names\n0,1\n2,1\n", "z.csv": b"r,s\n3,1\n1,1\n"})},
        {"read": {"header": "names"}, "output": {"join": "input"}},
    ),
    "parquet": ({"a.parquet": parquet(11)}, {"output": {"join": "input"}}),
    "mixed": ({"a.csv": lines(1, 2, 3), "b.tar": tar({"x.csv": lines(1)}), "c.csv": lines(3, 0)}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", FROM_OBJECTS)
def test_records_that_were_not_kept_are_read_from_their_objects(stores, predictor, name):
    objects, words = FROM_OBJECTS[name]
    used = settings_of(**words)
    put(stores, objects)
    assert transform(stores, predictor=predictor, settings=used).rows_failed
    for mood in (1, 2, 3):
        MODEL.mood = mood
        assert_is(stores, retried(stores, predictor), *from_the_start(predictor, objects, used, mood=mood))
    assert retried(stores, predictor).exit_code == 0


@pytest.mark.parametrize("name", ["tar", "parquet"])
@pytest.mark.parametrize("gone", [True, False])
def test_an_object_that_is_not_what_it_was_costs_itself(stores, predictor, caplog, name, gone):
    objects, words = FROM_OBJECTS[name]
    put(stores, {**objects, "z.csv": lines(1)} | ({"z.parquet": parquet(2)} if name == "parquet" else {}))
    del words
    (changed,) = objects
    transform(stores, predictor=predictor)
    before = outputs(stores)
    store = stores.for_uri(IN)
    store.delete(IN + changed) if gone else store.put(IN + changed, b"something else")
    MODEL.mood = 3
    with caplog.at_level(logging.WARNING):
        report = retried(stores, predictor)
    assert changed in caplog.text
    after = outputs(stores)
    assert {n: after[n] for n in after if n.startswith("a.")} == {
        n: before[n] for n in before if n.startswith("a.")
    }
    assert "z.csv.out.failed" not in after
    assert after["z.csv.out"] in {b"2.0\n", b'{"y":2.0}\n'}
    assert (report.exit_code, report.objects_with_failures) == (3, 1)


def test_text_that_was_kept_needs_no_object(stores, predictor):
    put(stores, {"a.csv": lines(0, 1, 4)})
    transform(stores, predictor=predictor)
    stores.for_uri(IN).delete(IN + "a.csv")
    MODEL.mood = 3
    assert retried(stores, predictor).exit_code == 0
    assert outputs(stores) == {"a.csv.out": b"0.0\n2.0\n8.0\n"}


# What is done again whole

TEXT = lines(*range(12))
PACKED = gzip.compress(TEXT, mtime=0)


@pytest.mark.parametrize("size", [len(PACKED) - 3, 20, 0])
def test_a_truncated_object_that_is_whole_now_is_done_again_and_its_neighbours_are_not(
    stores, predictor, size
):
    objects = {"a.csv": lines(0, 4), "b.csv.gz": PACKED, "c.csv": lines(3, 0), "d.csv": lines(8)}
    put(stores, {**objects, "b.csv.gz": PACKED[:size]})
    assert transform(stores, predictor=predictor).exit_code in {1, 3}
    for name in ("a.csv", "d.csv"):
        stores.for_uri(IN).delete(IN + name)  # nobody needs them any more
    put(stores, {"b.csv.gz": PACKED})
    MODEL.mood = 2
    report = retried(stores, predictor)
    if size:
        assert_is(stores, report, *from_the_start(predictor, objects, settings_of(), mood=2))
        MODEL.mood = 3
        assert_is(
            stores, retried(stores, predictor), *from_the_start(predictor, objects, settings_of(), mood=3)
        )


def test_what_is_left_of_a_repaired_object_is_read_from_it_as_it_is_now(stores, predictor):
    packed = gzip.compress(tar({"x.csv": lines(1, 0, 3, 2)}), mtime=0)
    put(stores, {"a.tar.gz": packed[:-9]})
    assert transform(stores, predictor=predictor).objects_broken == 1
    put(stores, {"a.tar.gz": packed})
    for mood in (1, 2, 3):
        MODEL.mood = mood
        expected = from_the_start(predictor, {"a.tar.gz": packed}, settings_of(), mood=mood)
        assert_is(stores, retried(stores, predictor), *expected)


def test_a_record_that_the_output_filter_does_not_fit_fails_by_itself(stores, predictor):
    used = settings_of(output={"join": "input", "output_filter": "$.id"})
    objects = {"a.jsonl": b'{"x":[1,1],"id":7}\n{"x":[0,1],"id":8}\n{"x":[1,1]}\n{"x":[5,1],"id":9}\n'}
    put(stores, objects)
    assert transform(stores, predictor=predictor, settings=used).rows_failed == 3
    MODEL.mood = 1
    for _ in range(2):
        report = retried(stores, predictor)
        assert_is(stores, report, *from_the_start(predictor, objects, used, mood=1))
        assert (report.rows_out, report.rows_failed) == (3, 1)


def test_an_object_that_is_still_broken_stays_so(stores, predictor):
    put(stores, {"a.csv.gz": PACKED[:-3]})
    before = transform(stores, predictor=predictor)
    assert (before.exit_code, before.objects_broken) == (1, 1)
    MODEL.mood = 3
    report = retried(stores, predictor)
    assert (report.exit_code, report.objects_broken, report.rows_failed) == (1, 1, 0)
    (line,) = failed_lines(outputs(stores)["a.csv.gz.out.failed"])
    assert (line["kind"], line["output_row"]) == ("object", report.rows_out)


def test_a_broken_object_that_is_gone_keeps_what_it_had(stores, predictor):
    put(stores, {"a.csv.gz": PACKED[:-3]})
    transform(stores, predictor=predictor)
    before = outputs(stores)
    stores.for_uri(IN).delete(IN + "a.csv.gz")
    assert retried(stores, predictor).exit_code == 1
    assert outputs(stores) == before


WHOLE = {
    "withheld": {"failures": {"on_error": "object"}},
    "withheld, cut": {"failures": {"on_error": "object"}, "tasks": {"task_bytes": 20}},
    "parquet": {"output": {"accept": "parquet"}},
    "arrow": {"output": {"accept": "arrow", "join": "input"}},
}


@pytest.mark.parametrize("name", WHOLE)
def test_tables_and_withheld_outputs_are_done_again_whole(stores, predictor, monkeypatch, name):
    used = settings_of(**WHOLE[name])
    objects = {"a.csv": TEXT, "b.csv": lines(100, 0), "c.csv": lines(3, 1), "d.csv": lines(2)}
    if "tasks" in WHOLE[name]:
        cut(monkeypatch)
    put(stores, objects)
    transform(stores, predictor=predictor, settings=used)
    for mood in (2, 3):
        MODEL.mood, MODEL.asked = mood, set()
        report = retried(stores, predictor)
        asked = set(MODEL.asked)
        if name != "withheld, cut" or mood == 3:  # what fails in a range behind a failure may be read, or not
            assert_is(stores, report, *from_the_start(predictor, objects, used, mood=mood))
        assert 100 not in asked  # it never failed
    assert report.exit_code == 0


# Kills

PACKED_2 = gzip.compress(lines(0, 1, 2), mtime=0)
KILLED = {
    "text": ({"a.csv": b"p,q\n1,1\n0,1\n2,1\n", "b.csv": b"p,q\n1,1\n", "c.csv": b"p,q\n0,1\n"}, {"read": {"header": "names"}}),
    "cut": ({"a.csv": lines(*range(9))}, {"tasks": {"task_bytes": 12}}),
    "repaired": ({"a.csv": lines(0, 1), "b.csv.gz": gzip.compress(lines(0, 1, 2, 4, 3), mtime=0), "d.csv.gz": PACKED_2, "c.csv": lines(3)}, {}),
    "parquet": ({"a.csv": lines(0, 1), "b.csv": lines(0), "c.csv": lines(2, 0)}, {"output": {"accept": "parquet"}}),
    "withheld": ({"a.csv": lines(*range(5)), "b.csv": lines(4)}, {"failures": {"on_error": "object"}, "tasks": {"task_bytes": 8}}),
}  # fmt: skip


def copied(stores):
    """Stores that have the same objects."""
    made = Stores()
    for info in [*stores.for_uri(IN).list(IN), *stores.for_uri(OUT).list(OUT)]:
        made.for_uri(info.uri).put(info.uri, stores.for_uri(info.uri).get(info.uri))
    return made


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("name", KILLED)
def test_a_kill_between_any_two_calls_of_the_store_costs_nothing(predictor, monkeypatch, name, done):
    objects, words = KILLED[name]
    used = settings_of(**words)
    if "tasks" in words:
        cut(monkeypatch)
    middle, last = (from_the_start(predictor, objects, used, mood=mood) for mood in (2, 3))
    before = Stores()
    put(before, {n: data[:-3] if n.endswith(".gz") else data for n, data in objects.items()})
    MODEL.mood = 0
    transform(before, predictor=predictor, settings=used)
    put(before, {n: data for n, data in objects.items() if n.endswith(".gz")})
    if name != "repaired":
        # Killed in the second of three, so that there is something of an earlier one to lose.
        MODEL.mood = 1
        retried(before, predictor)
    at, failed = 0, True
    while failed:
        at += 1
        stores = copied(before)
        MODEL.mood = 2
        failing = FailsOnce(stores.for_uri(OUT), at=at, done=done)
        with contextlib.suppress(UnavailableError):
            retried(WithStore(stores, OUT, failing), predictor)
        failed = failing.failed
        report = retried(stores, predictor)
        assert_is(stores, report, *middle, read_on=name == "withheld")
        MODEL.mood = 3
        assert_is(stores, retried(stores, predictor), *last)
    assert at > 10


def test_on_a_disk(tmp_path, predictor):
    objects = {"a.csv": TEXT, "sub/b c#1.csv": lines(0, 1, 2), "d.csv.gz": PACKED}
    stores, destination = Stores(), f"{tmp_path}/out/"
    for name, data in {**objects, "d.csv.gz": PACKED[:-3]}.items():
        stores.for_uri(str(tmp_path)).put(f"{tmp_path}/in/{name}", data)
    place = {"source": f"{tmp_path}/in/", "destination": destination}
    transform(stores, predictor=predictor, **place)
    stores.for_uri(str(tmp_path)).put(f"{tmp_path}/in/d.csv.gz", PACKED)
    assert isinstance(stores.for_uri(destination), LocalStore)
    for mood, spelled in ((1, destination), (2, f"file://{tmp_path}/out"), (3, destination)):
        MODEL.mood = mood
        report = retried(stores, predictor, destination=spelled)
        other, expected = from_the_start(predictor, objects, settings_of(), mood=mood)
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


# What is refused


def test_another_model_is_refused_unless_it_is_meant(stores, predictor):
    put(stores, {"a.csv": lines(0, 1)})
    transform(stores, predictor=predictor)
    MODEL.mood = 3
    with pytest.raises(ResumeRefusedError, match=r"model m, and this is n.*--other-model"):
        retried(stores, predictor, identity="n")
    assert "a.csv.out.failed" in outputs(stores)
    assert retried(stores, predictor, identity="n", other_model=True).exit_code == 0
    assert retried(stores, predictor).exit_code == 0  # and the first one is still its model


def test_where_no_finished_transform_is_nothing_is_touched(stores, predictor):
    with pytest.raises(ConfigError, match="no transform was written here"):
        retried(stores, predictor)
    put(stores, {"a.csv": lines(*range(40))})
    with pytest.raises(BrokenError):
        made(stores, predictor=Breaking(predictor, at=3)).execute()
    with pytest.raises(LedgerError, match=r"not finished.*--resume"):
        retried(stores, predictor)


def test_more_failed_records_than_can_be_held_are_refused(stores, predictor, monkeypatch):
    monkeypatch.setattr("headrace.transforms.retry.FAILED_BYTES_MAX", 500)
    put(stores, {"a.csv": lines(*[1] * 9)})
    transform(stores, predictor=predictor)
    with pytest.raises(LimitError, match=r"a\.csv\.out\.failed holds more than"):
        retried(stores, predictor)


def test_objects_are_tried_in_rounds_of_bounded_bytes(stores, predictor, monkeypatch):
    monkeypatch.setattr("headrace.transforms.retry._ROUND_BYTES", 10)
    monkeypatch.setattr("headrace.transforms.retry_source._RECORDS_MAX", 2)
    objects = {f"{n}.csv": lines(*range(n, n + 7)) for n in range(6)}
    put(stores, objects)
    transform(stores, predictor=predictor)
    MODEL.mood = 3
    assert_is(stores, retried(stores, predictor), *from_the_start(predictor, objects, settings_of(), mood=3))


def test_a_model_that_breaks_leaves_what_was_there(stores, predictor):
    put(stores, {"a.csv": lines(0, 1)})
    transform(stores, predictor=predictor)
    before = outputs(stores)
    with pytest.raises((HeadraceError, BrokenError)):
        retried(stores, Breaking(predictor, at=0))
    assert outputs(stores) == before
