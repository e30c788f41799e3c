"""Messages between a run and its workers round trip."""

import json
from dataclasses import asdict
from multiprocessing import Pipe
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.batching.dynamic import CloseReason
from headrace.core import errors
from headrace.core.block import Failure, FailureKind, Position
from headrace.core.errors import (
    BrokenModelError,
    ConfigError,
    CountMismatchError,
    HeadraceError,
    MissingExtraError,
    NotFoundError,
    PredictError,
)
from headrace.core.model_traceback import TRACEBACKS_MAX, ModelTraceback
from headrace.core.predictor import PredictorStatistics
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.runners.messages import (
    Assignment,
    WorkerCounters,
    add_counters,
    error_from_json,
    error_to_json,
    receive,
    send,
    statistics_of,
)
from headrace.runs.records import Counts, ShardPosition
from headrace.runs.work import RunProgress

COUNT = st.integers(0, 1 << 50)
SECONDS = st.floats(0, 1e9)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
ANY_TEXT = st.text(max_size=9)
"""Texts that may come from names that are not UTF-8."""
POSITIONS = st.builds(ShardPosition, COUNT, COUNT, COUNT)
ASSIGNMENTS = st.builds(
    Assignment,
    st.lists(COUNT, max_size=5).map(tuple),
    st.dictionaries(st.tuples(COUNT, COUNT), POSITIONS, max_size=3),
    replaces=st.booleans(),
    observed_since_s=st.none() | SECONDS,
    checkpoint_all=st.booleans(),
)
FAILURES = st.builds(
    Failure,
    st.builds(Position, ANY_TEXT, st.none() | ANY_TEXT, COUNT, COUNT, COUNT, st.just(0)),
    st.sampled_from(FailureKind),
    ANY_TEXT,
    st.binary(max_size=9),
    st.integers(1, 9),
)
STATISTICS = st.builds(PredictorStatistics, *[COUNT] * 5, SECONDS, SECONDS)
TRACEBACKS = st.builds(ModelTraceback, TEXT, TEXT, TEXT, COUNT, TEXT, TEXT, TEXT)
COUNTERS = st.builds(
    WorkerCounters,
    *[COUNT] * 7,
    closed_by=st.dictionaries(st.sampled_from([r.value for r in CloseReason]), COUNT),
    statistics=STATISTICS,
    cpu_s=SECONDS,
    peak_memory_mb=SECONDS,
    reading=ANY_TEXT,
    first_failure=st.none() | FAILURES,
    first_broken=st.none() | FAILURES,
    failed_bytes=COUNT,
    tracebacks=st.lists(TRACEBACKS, max_size=3).map(tuple),
)


def send_and_receive(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message after its way through a connection."""
    one_end, other_end = Pipe()
    with one_end, other_end:
        send(one_end, message)
        return receive(other_end)


@given(ASSIGNMENTS)
def test_assignments_round_trip(assignment):
    assert Assignment.from_json(send_and_receive(assignment.to_json())) == assignment


def test_assignment_of_an_older_version_is_read():
    assert Assignment.from_json(
        {"tasks": [1], "begins": [], "replaces": False, "keep_all": False}
    ) == Assignment((1,))


@given(COUNTERS)
def test_counters_round_trip(counters):
    assert WorkerCounters.from_json(send_and_receive(counters.to_json())) == counters


@given(st.lists(COUNTERS, max_size=4), st.builds(Counts, COUNT, COUNT, COUNT, COUNT))
def test_counters_add_up(all_counters, before):
    progress = RunProgress(records=99, rows_out=98)
    progress.closed_by[CloseReason.BYTES] = 7
    add_counters(progress, all_counters, before)
    for name in ("bytes_read", "objects_read", "batches", "failed_bytes"):
        assert getattr(progress, name) == sum(getattr(t, name) for t in all_counters)
    counts = progress.counts
    assert counts.records_in == before.records_in + sum(t.records for t in all_counters)
    assert counts.rows_out == before.rows_out + sum(t.rows_out for t in all_counters)
    assert counts.rows_failed == before.rows_failed + sum(t.rows_failed for t in all_counters)
    assert counts.objects_broken == before.objects_broken + sum(t.objects_broken for t in all_counters)
    for reason in CloseReason:
        assert progress.closed_by[reason] == sum(t.closed_by.get(reason.value, 0) for t in all_counters)
    tracebacks = [each for t in all_counters for each in t.tracebacks][::-1]
    expected = {each.key: each for each in tracebacks}
    kept = progress.tracebacks
    assert len(kept) == min(len(expected), TRACEBACKS_MAX)
    assert kept == {key: expected[key] for key in kept}
    found = [t.first_failure for t in all_counters if t.first_failure]
    assert progress.first_failure == (found[0] if found else None)
    statistics = statistics_of(all_counters)
    assert statistics.calls == sum(t.statistics.calls for t in all_counters)
    assert statistics.starved_s == sum(t.statistics.starved_s for t in all_counters)


def test_counters_sum_all_runs_of_a_worker():
    failure = Failure(Position("o"), FailureKind.MODEL, "no")
    one, two = (
        RunProgress(records=3, rows_out=2, rows_failed=1),
        RunProgress(records=4, rows_out=4, first_failure=failure),
    )
    one.closed_by[CloseReason.BYTES] = two.closed_by[CloseReason.BYTES] = 2
    counters = WorkerCounters.from_progress([one, two], reading="o", cpu_s=1.5)
    assert (counters.records, counters.rows_out, counters.rows_failed) == (7, 6, 1)
    assert (counters.closed_by, counters.first_failure, counters.reading, counters.cpu_s) == (
        {CloseReason.BYTES.value: 4},
        failure,
        "o",
        1.5,
    )
    assert WorkerCounters.from_progress([]) == WorkerCounters()


def test_error_keeps_the_models_traceback():
    traceback = ModelTraceback("ValueError", "no", "m.py", 3, "predict", "x", "Traceback")
    for kind in (PredictError, BrokenModelError):
        back = error_from_json(send_and_receive(error_to_json(kind("m", "no", traceback=traceback))))
        assert (type(back), back.traceback) == (kind, traceback)


SPECS = st.builds(
    TensorSpec,
    TEXT,
    st.sampled_from(["FP32", "INT64", "BYTES"]),
    st.none() | st.lists(st.integers(-1, 9), max_size=3).map(tuple),
)


@given(st.lists(SPECS, max_size=2), st.lists(SPECS, max_size=2), st.none() | st.integers(1, 99))
def test_metadata_round_trips(inputs, outputs, rows_max):
    more = {} if rows_max is None else {"max_batch_rows": rows_max}
    metadata = ModelMetadata("m", inputs=tuple(inputs), outputs=tuple(outputs), **more)
    assert msgspec.convert(send_and_receive(asdict(metadata)), ModelMetadata) == metadata


KINDS = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, HeadraceError)]


@for_each("kind", KINDS)
@for_each("message", ["no such thing", "", "name \udcff"])
def test_error_keeps_type_and_message(kind, message):
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    back = error_from_json(send_and_receive(error_to_json(error)))
    assert type(back) is kind
    assert str(back) == (message or kind.__name__)


@for_each(
    "error",
    [
        NotFoundError("s3://b/x", "is gone"),
        CountMismatchError("o", records_in=3, out=1, failed=1),
        MissingExtraError("onnx", "models"),
        ConfigError("wrong"),
    ],
)
def test_error_with_other_arguments_keeps_type_and_message(error):
    back = error_from_json(json.loads(orjson.dumps(error_to_json(error))))
    assert (type(back), str(back)) == (type(error), str(error))


def test_foreign_error_names_its_type():
    back = error_from_json(send_and_receive(error_to_json(ZeroDivisionError("by zero"))))
    assert (type(back), str(back)) == (HeadraceError, "ZeroDivisionError: by zero")


def test_closed_connection_is_an_error():
    one_end, other_end = Pipe()
    other_end.close()
    with one_end:
        with pytest.raises(OSError):
            send(one_end, {"a": 1})
        with pytest.raises((EOFError, OSError)):
            receive(one_end)
