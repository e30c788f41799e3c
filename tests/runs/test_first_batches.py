"""The first batches of a run: a model that fails every row of them alike stops the run."""

from concurrent.futures import Future

import numpy as np
import pytest

from cases import for_each
from headrace.batching.dynamic import CloseReason
from headrace.core.block import Position
from headrace.core.errors import AccessDeniedError, BrokenModelError, StoppedError
from headrace.core.model import Model, RowError
from headrace.core.model_traceback import ModelTraceback
from headrace.core.tensor import InferRequest, InferResponse, RowFailure, Tensor, TensorSpec
from headrace.engine.broken_model import SAMPLED_ROWS
from headrace.formats.csv import CsvFormat
from headrace.formats.read_options import ReadOptions
from headrace.runs.failure_policy import FailurePolicy
from headrace.runs.feed import Batch
from headrace.runs.first_batches import BATCHES_MIN, HELD_BATCHES_MAX, ROWS_MIN, FirstBatches
from headrace.runs.flow import Flow
from headrace.runs.items import Cursor, ReadBlock
from headrace.runs.mapping import Mapper
from headrace.runs.run import Run
from headrace.runs.settings import FlowSettings, MappingOptions, StreamSettings
from headrace.storage.resolve import Stores
from runs.stream_support import ScriptedPredictor
from runs.support import OUT, engine, make_settings, make_transform, put

BUG = ModelTraceback("AttributeError", "no nope", "/m/churn.py", 12, "predict", "self.nope()", "Traceback …")
OTHER = ModelTraceback("AttributeError", "no nope", "/m/churn.py", 13, "predict")


class Coded(Model):
    """Raises by the first number of any row: -1 and -2 at different lines, -3 refuses the row."""

    inputs = (TensorSpec("x", "FP64", (-1, 2)),)
    outputs = (TensorSpec("y", "FP64", (-1,)),)
    max_batch_rows = 20

    def __init__(self) -> None:
        self.batch_rows: list[int] = []

    def predict(self, x):
        first = x[:, 0]
        self.batch_rows.append(len(x))
        if (first == -3).any():
            raise RowError(dict.fromkeys(np.flatnonzero(first == -3).tolist(), "refused"))
        if (first == -1).any():
            raise ValueError("minus one")
        if (first == -2).any():
            raise ValueError("minus two")
        return {"y": first}


def lines(**counts: int) -> bytes:
    """Return lines by the name of their number, such as ``good=5, bug=60``."""
    numbers = {"good": "7", "bug": "-1", "other": "-2", "refused": "-3", "text": "x"}
    return "".join(f"{numbers[name.rstrip('_')]},1\n" * count for name, count in counts.items()).encode()


def stream_of(stores: Stores, predictor, policy: FailurePolicy | None = None, **more) -> Run:
    """Return a stream over all objects, without workers."""
    settings = StreamSettings(failures=policy or FailurePolicy())
    return Run(
        "memory://in/",
        OUT,
        stores=stores,
        predictor=predictor,
        settings=settings,
        model_identity="m",
        **more,
    )


def files(stores: Stores) -> list[str]:
    return [info.uri for info in stores.for_uri(OUT).list(OUT)]


# Whole runs


@pytest.mark.parametrize("kind", ["stream", "transform"])
def test_model_with_a_bug_stops_the_run_after_few_calls(stores, kind):
    """Before, 60,000 rows took 119,998 calls, and the run was complete."""
    put(stores, {"a.csv": lines(bug=60_000)})
    model = Coded()
    with engine(model, finds_broken_model=True) as predictor:
        make = stream_of if kind == "stream" else make_transform
        run = make(stores, predictor=predictor)
        with pytest.raises(BrokenModelError, match="first 3 batches") as caught:
            run.execute()
    # Before, each of the batches that the run had submitted until its stop took 39 calls.
    batches = model.batch_rows.count(20)
    assert len(model.batch_rows) <= batches * (1 + SAMPLED_ROWS)
    place = f"test_first_batches.py:{caught.value.traceback.line} in predict"
    assert str(caught.value) == (
        "model double: it raised the same exception for every tried row of its first 3 batches (60 rows): "
        f"ValueError: minus one ({place}). Correct the model, then run again with --overwrite; or record "
        "these rows as failed with --on-error record"
    )
    assert caught.value.traceback.source == 'raise ValueError("minus one")'
    assert isinstance(caught.value.__cause__, ValueError)
    assert list(run.progress.tracebacks.values()) == [caught.value.traceback]
    assert not [uri for uri in files(stores) if "part-" in uri or uri.endswith((".out", ".failed"))]


def test_stopped_stream_leaves_nothing(stores):
    put(stores, {"a.csv": lines(bug=100)})
    with engine(Coded(), finds_broken_model=True) as predictor, pytest.raises(BrokenModelError):
        stream_of(stores, predictor).execute()
    assert files(stores) == []
    with engine() as corrected:
        assert stream_of(stores, corrected).execute().records_in == 100


def test_corrected_model_overwrites_a_stopped_transform(stores):
    put(stores, {"a.csv": lines(good=0, bug=100)})
    with engine(Coded(), finds_broken_model=True) as predictor, pytest.raises(BrokenModelError):
        make_transform(stores, predictor=predictor).execute()
    with engine() as corrected:
        report = make_transform(stores, predictor=corrected, if_exists="overwrite").execute()
    assert report.records_in == 100


def test_explicit_record_records_every_row(stores):
    put(stores, {"a.csv": lines(bug=100)})
    with engine(Coded()) as predictor:
        report = stream_of(stores, predictor, FailurePolicy("record")).execute()
    assert (report.status, report.exit_code, report.rows_failed) == ("complete", 3, 100)
    (reason,) = report.failures
    assert reason.startswith("model: ValueError: minus one (test_first_batches.py:")
    assert not reason.endswith(":N in predict)")
    (traceback,) = report.tracebacks
    assert traceback["source"] == 'raise ValueError("minus one")'


@for_each(
    "source",
    [
        {"bug": 40, "good": 20},
        {"bug": 59, "good": 1},
        {"bug": 20, "other": 40},
        {"bug": 40, "refused": 20},
        {"refused": 60},
        {"good": 20, "bug": 60},
        {"text": 60, "bug": 3, "good": 1},
    ],
)
def test_other_sources_are_complete_with_the_same_failures(source):
    """One row that the model predicts, refuses or fails elsewhere shows that the model works."""
    stores = Stores()
    put(stores, {"a.csv": lines(**source)})
    with engine(Coded(), finds_broken_model=True) as predictor:
        report = stream_of(stores, predictor).execute()
    assert report.status == "complete"
    assert report.rows_out == source.get("good", 0)
    assert sum(report.failures.values()) == report.rows_failed == sum(source.values()) - report.rows_out


@for_each("count", [1, 7, 25])
def test_short_source_with_a_bug_stops_at_its_end(count):
    stores = Stores()
    put(stores, {"a.csv": lines(bug=count)})
    with (
        engine(Coded(), finds_broken_model=True) as predictor,
        pytest.raises(BrokenModelError, match=rf"first (batch|2 batches) \({count} rows\)"),
    ):
        stream_of(stores, predictor).execute()


def test_source_without_a_row_for_the_model_is_complete(stores):
    put(stores, {"a.csv": lines(text=50)})
    with engine(Coded(), finds_broken_model=True) as predictor:
        assert stream_of(stores, predictor).execute().rows_failed == 50


def test_resumed_run_that_predicted_rows_is_not_stopped(stores):
    """All records that are left fail, but the model worked before."""
    put(stores, {"a.csv": lines(good=20, bug=60, good_=20)})
    settings = make_settings(checkpoint_s=0.0, preset=StreamSettings, failures={"failed_rows_max": 5})
    with engine(Coded(), finds_broken_model=True) as predictor:
        run = Run(
            "memory://in/", OUT, stores=stores, predictor=predictor, settings=settings, model_identity="m"
        )
        with pytest.raises(Exception, match="failed_rows_max is 5"):
            run.execute()
    with engine(Coded(), finds_broken_model=True) as predictor:
        report = stream_of(stores, predictor, if_exists="resume").execute()
    assert (report.rows_out, report.rows_failed) == (40, 60)


def test_appended_objects_follow_rows_that_were_predicted(stores):
    put(stores, {"a.csv": lines(good=20)})
    with engine(Coded(), finds_broken_model=True) as predictor:
        run = stream_of(stores, predictor)
        run.append(run.select())
        put(stores, {"b.csv": lines(bug=60)})
        report = run.append(run.select())
    assert (report.rows_out, report.rows_failed) == (20, 60)


def test_worker_that_predicted_rows_checks_no_later_tasks():
    with engine(Coded()) as predictor:
        predictor.submit(InferRequest((Tensor("x", np.ones((1, 2))),))).result(30)
        assert FirstBatches(predictor).is_decided


class BrokenSource:
    """A source that breaks after a block of 20 rows."""

    bytes_read = objects_read = 0
    reading = ""

    def blocks(self):
        for block in CsvFormat().blocks([lines(bug=20)], Position("a.csv")):
            yield ReadBlock(block, 0)
        raise AccessDeniedError("s3://b/x", "not yours")

    def close(self): ...


def test_error_of_the_source_follows_the_held_batches():
    """A run that is resumed reads the rest."""
    with engine(Coded(), finds_broken_model=True) as predictor:
        mapper = Mapper(predictor.metadata, MappingOptions(), ReadOptions(), {})
        flow = Flow(BrokenSource(), mapper, predictor, FlowSettings(), stops_broken_model=True)
        batches = iter(flow)
        assert len(next(batches).failures) == 20
        with pytest.raises(AccessDeniedError):
            next(batches)


def test_drained_flow_delivers_the_held_batches():
    """A run that is stopped on request is no shorter source."""
    with engine(Coded(), finds_broken_model=True) as predictor:
        mapper = Mapper(predictor.metadata, MappingOptions(), ReadOptions(), {})
        source = BrokenSource()
        flow = Flow(source, mapper, predictor, FlowSettings(), stops_broken_model=True)
        read = source.blocks

        def blocks():
            yield next(read())
            flow.drain()

        source.blocks = blocks
        delivered = [batch.entries for batch in flow]
    assert delivered == [20]


# The verdict


def batch_of(rows: int, number: int = 0) -> Batch:
    request = InferRequest((Tensor("x", np.ones((rows, 1))),)) if rows else None
    return Batch(number, (), rows, 0, CloseReason.ROWS, Cursor(), request)


def response_of(rows: int, *, failed: int | None = None, traceback: ModelTraceback | None = BUG):
    """Return a future of a response in which the first rows failed."""
    failed = rows if failed is None else failed
    future: Future[InferResponse] = Future()
    failures = tuple(RowFailure(row, "why", traceback=traceback) for row in range(failed))
    future.set_result(InferResponse((), failures=failures))
    return future


def early_failure(traceback: ModelTraceback = BUG) -> Future[InferResponse]:
    """Return a future that the engine failed with few calls."""
    future: Future[InferResponse] = Future()
    future.set_exception(BrokenModelError("m", "why", traceback=traceback))
    return future


def test_small_batches_stop_a_run_after_enough_rows():
    """Three single rows are no evidence."""
    first = FirstBatches(ScriptedPredictor())
    for _ in range(ROWS_MIN - 1):
        assert list(first.add(batch_of(1), response_of(1))) == []
    with pytest.raises(BrokenModelError, match=f"first {ROWS_MIN} batches"):
        first.add(batch_of(1), response_of(1))


@for_each(
    "future",
    [
        lambda: response_of(9, failed=8),
        lambda: response_of(9, traceback=OTHER),
        lambda: response_of(9, traceback=None),
    ],
)
def test_batch_that_differs_releases_the_held_ones_in_order(future):
    first = FirstBatches(ScriptedPredictor())
    held = [batch_of(9, 0), batch_of(0, 1), batch_of(9, 2)]
    for batch in held[:2]:
        assert list(first.add(batch, response_of(9) if batch.request else None)) == []
    assert [batch for batch, _ in first.add(held[2], future())] == held
    assert first.is_decided
    late = batch_of(9, 3)
    assert [batch for batch, _ in first.add(late, response_of(9))] == [late]
    first.finish()


def test_request_that_was_failed_early_is_submitted_again():
    """Each of its rows gets an outcome, once another batch shows that the model works."""
    predictor = ScriptedPredictor(columns=1)
    first = FirstBatches(predictor)
    assert list(first.add(batch_of(9, 0), early_failure())) == []
    answered = list(first.add(batch_of(9, 1), response_of(9, failed=1)))
    assert [len(response.failures) for _, response in answered] == [0, 1]
    assert [request.rows for request in predictor.requests] == [9]


def test_request_that_is_failed_early_later_is_submitted_again():
    predictor = ScriptedPredictor(columns=1)
    first = FirstBatches(predictor)
    first.add(batch_of(2), response_of(2, failed=0))
    ((_, response),) = first.add(batch_of(9), early_failure())
    assert response.failures == ()


def test_batches_without_rows_pass_at_once():
    first = FirstBatches(ScriptedPredictor())
    assert list(first.add(batch_of(0), None)) == [(first.add(batch_of(0), None)[0][0], None)]
    assert not first.is_decided
    first.finish()


def test_held_batches_are_bounded():
    first = FirstBatches(ScriptedPredictor())
    passed = list(first.add(batch_of(1), response_of(1)))
    for _ in range(HELD_BATCHES_MAX - 1):
        assert passed == []
        passed = list(first.add(batch_of(0), None))
    assert len(passed) == HELD_BATCHES_MAX


def test_held_batches_with_enough_rows_stop_at_the_bound():
    first = FirstBatches(ScriptedPredictor())
    first.add(batch_of(100), response_of(100))
    for _ in range(HELD_BATCHES_MAX - 2):
        assert list(first.add(batch_of(0), None)) == []
    with pytest.raises(BrokenModelError, match="first batch"):
        first.add(batch_of(0), None)


def test_error_of_a_request_is_raised():
    first = FirstBatches(ScriptedPredictor())
    future: Future[InferResponse] = Future()
    future.set_exception(StoppedError("over"))
    first.add(batch_of(9), response_of(9))
    with pytest.raises(StoppedError):
        first.add(batch_of(9), future)


def test_three_batches_are_enough():
    first = FirstBatches(ScriptedPredictor())
    for _ in range(BATCHES_MIN - 1):
        assert list(first.add(batch_of(9), early_failure())) == []
    with pytest.raises(BrokenModelError):
        first.add(batch_of(9), early_failure())
