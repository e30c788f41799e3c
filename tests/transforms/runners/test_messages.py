"""What a run and its worker processes tell each other comes back as it was sent."""

import json
from multiprocessing import Pipe
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching.dynamic import CloseReason
from headrace.core import errors
from headrace.core.block import Failure, FailureKind, Position
from headrace.core.errors import (
    ConfigError,
    CountMismatchError,
    HeadraceError,
    MissingExtraError,
    NotFoundError,
)
from headrace.core.predictor import PredictorStatistics
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.pipeline.ledger import Counts
from headrace.pipeline.progress import Progress
from headrace.transforms.records import Spot
from headrace.transforms.runners.messages import (
    Assignment,
    Tally,
    add_up,
    counts_of,
    error_json,
    error_of,
    metadata_json,
    metadata_of,
    receive,
    send,
    statistics_of,
)

COUNT = st.integers(0, 1 << 50)
SECONDS = st.floats(0, 1e9)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
ANY_TEXT = st.text(max_size=9)
"""Of names that are no UTF-8 too."""
SPOTS = st.builds(Spot, COUNT, COUNT, COUNT)
ASSIGNMENTS = st.builds(
    Assignment,
    st.lists(COUNT, max_size=5).map(tuple),
    st.dictionaries(st.tuples(COUNT, COUNT), SPOTS, max_size=3),
    replaces=st.booleans(),
    observed_since_s=st.none() | SECONDS,
    keep_all=st.booleans(),
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
TALLIES = st.builds(
    Tally,
    *[COUNT] * 7,
    closed_by=st.dictionaries(st.sampled_from([r.value for r in CloseReason]), COUNT),
    statistics=STATISTICS,
    cpu_s=SECONDS,
    peak_memory_mb=SECONDS,
    reading=ANY_TEXT,
    first_failure=st.none() | FAILURES,
    first_broken=st.none() | FAILURES,
)


def over(message: dict[str, Any]) -> dict[str, Any]:
    """A message that went through a connection."""
    ours, theirs = Pipe()
    with ours, theirs:
        send(ours, message)
        return receive(theirs)


@given(ASSIGNMENTS)
def test_assignments(assignment):
    assert Assignment.from_json(over(assignment.to_json())) == assignment


def test_an_assignment_of_an_older_run_is_read():
    assert Assignment.from_json(
        {"tasks": [1], "begins": [], "replaces": False, "keep_all": False}
    ) == Assignment((1,))


@given(TALLIES)
def test_tallies(tally):
    assert Tally.from_json(over(tally.to_json())) == tally


@given(st.lists(TALLIES, max_size=4), st.builds(Counts, COUNT, COUNT, COUNT, COUNT))
def test_tallies_add_up(tallies, before):
    progress = Progress(records=99, rows_out=98)
    progress.closed_by[CloseReason.BYTES] = 7
    add_up(progress, tallies, before)
    for name in ("bytes_read", "objects_read", "batches"):
        assert getattr(progress, name) == sum(getattr(t, name) for t in tallies)
    counts = counts_of(progress)
    assert counts.records_in == before.records_in + sum(t.records for t in tallies)
    assert counts.rows_out == before.rows_out + sum(t.rows_out for t in tallies)
    assert counts.rows_failed == before.rows_failed + sum(t.rows_failed for t in tallies)
    assert counts.objects_broken == before.objects_broken + sum(t.objects_broken for t in tallies)
    for reason in CloseReason:
        assert progress.closed_by[reason] == sum(t.closed_by.get(reason.value, 0) for t in tallies)
    found = [t.first_failure for t in tallies if t.first_failure]
    assert progress.first_failure == (found[0] if found else None)
    statistics = statistics_of(tallies)
    assert statistics.calls == sum(t.statistics.calls for t in tallies)
    assert statistics.starved_s == sum(t.statistics.starved_s for t in tallies)


def test_a_tally_is_of_all_of_a_workers_runs():
    failure = Failure(Position("o"), FailureKind.MODEL, "no")
    one, two = (
        Progress(records=3, rows_out=2, rows_failed=1),
        Progress(records=4, rows_out=4, first_failure=failure),
    )
    one.closed_by[CloseReason.BYTES] = two.closed_by[CloseReason.BYTES] = 2
    tally = Tally.of([one, two], reading="o", cpu_s=1.5)
    assert (tally.records, tally.rows_out, tally.rows_failed) == (7, 6, 1)
    assert (tally.closed_by, tally.first_failure, tally.reading, tally.cpu_s) == (
        {CloseReason.BYTES.value: 4}, failure, "o", 1.5,
    )  # fmt: skip
    assert Tally.of([]) == Tally()


SPECS = st.builds(
    TensorSpec,
    TEXT,
    st.sampled_from(["FP32", "INT64", "BYTES"]),
    st.none() | st.lists(st.integers(-1, 9), max_size=3).map(tuple),
)


@given(st.lists(SPECS, max_size=2), st.lists(SPECS, max_size=2), st.none() | st.integers(1, 99))
def test_metadata(inputs, outputs, rows_max):
    more = {} if rows_max is None else {"max_batch_rows": rows_max}
    metadata = ModelMetadata("m", inputs=tuple(inputs), outputs=tuple(outputs), **more)
    assert metadata_of(over(metadata_json(metadata))) == metadata


KINDS = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, HeadraceError)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("words", ["no such thing", "", "name \udcff"])
def test_an_error_keeps_its_type_and_its_words(kind, words):
    error = kind.__new__(kind)
    Exception.__init__(error, words)
    back = error_of(over(error_json(error)))
    assert type(back) is kind
    assert str(back) == (words or kind.__name__)


@pytest.mark.parametrize(
    "error",
    [
        NotFoundError("s3://b/x", "is gone"),
        CountMismatchError("o", records_in=3, out=1, failed=1),
        MissingExtraError("onnx", "models"),
        ConfigError("wrong"),
    ],
)
def test_errors_that_are_made_of_more_than_words(error):
    back = error_of(json.loads(orjson.dumps(error_json(error))))
    assert (type(back), str(back)) == (type(error), str(error))


def test_an_error_of_somebody_elses_names_its_type():
    back = error_of(over(error_json(ZeroDivisionError("by zero"))))
    assert (type(back), str(back)) == (HeadraceError, "ZeroDivisionError: by zero")


def test_a_side_that_has_gone_is_told():
    ours, theirs = Pipe()
    theirs.close()
    with ours:
        with pytest.raises(OSError):
            send(ours, {"a": 1})
        with pytest.raises((EOFError, OSError)):
            receive(ours)
