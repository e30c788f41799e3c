import gzip
import io
import tarfile
import threading
import zipfile
from concurrent.futures import Future
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cases import for_each
from headrace.core.block import Position
from headrace.core.errors import (
    AccessDeniedError,
    ConfigError,
    EmptySourceError,
    ModelContractError,
    ModelInputError,
    PredictError,
    SequenceGoneError,
)
from headrace.runs.flow import Flow, open_flow
from headrace.runs.items import Channel, Cursor, ScoredBatch
from headrace.runs.objects import select_objects
from headrace.runs.records import PlannedObject
from headrace.runs.sequences import Sequencer
from headrace.runs.settings import FlowSettings, MappingOptions, StreamSettings
from headrace.runs.source import ShardSource
from headrace.storage.resolve import Stores
from runs.stream_support import ScriptedPredictor, SummingPredictor
from servers.polling import wait_until


def rows(count: int, start: int = 0) -> bytes:
    return b"".join(b"%d,1\n" % i for i in range(start, start + count))


def objects_of(stores: Stores) -> list[PlannedObject]:
    return [PlannedObject(info) for info in select_objects("memory://b/", stores)]


def flow_over(
    predictor, settings=None, start=None, *, resumable=False, stores=None, **objects: bytes
) -> Flow:
    stores = stores or Stores()
    for name, data in objects.items():
        uri = f"memory://b/{name}.csv"
        stores.for_uri(uri).put(uri, data)
    planned = objects_of(stores)
    return open_flow(
        planned, stores, predictor, settings or StreamSettings(), start=start, resumable=resumable
    )


class ClosedStores(Stores):
    """Stores that deny access to the object `denied`."""

    def __init__(self, denied: str) -> None:
        super().__init__()
        self.denied = denied

    def for_uri(self, uri):
        store = super().for_uri(uri)
        read = store.get_range

        def get_range(wanted, *args, **more):
            if wanted == self.denied:
                raise AccessDeniedError(wanted, "not yours")
            return read(wanted, *args, **more)

        return mock.Mock(wraps=store, get_range=get_range)


def values(flow: Flow) -> list[float]:
    return [float(v) for batch in flow for v in batch.outputs.get("y", np.empty(0))]


def test_predictions_are_in_source_order_across_objects():
    assert values(flow_over(ScriptedPredictor(), a=rows(10), b=rows(7, 10))) == [2.0 * i for i in range(17)]


def test_batches_span_objects():
    predictor = ScriptedPredictor(rows_max=4)
    list(flow_over(predictor, a=rows(3), b=rows(3), c=rows(3)))
    assert [r.rows for r in predictor.requests] == [4, 4, 1]


def test_out_of_order_responses_are_delivered_in_order():
    predictor = ScriptedPredictor(rows_max=4, hold=True)
    flow = flow_over(predictor, a=rows(12))
    got: list[float] = []
    reader = threading.Thread(target=lambda: got.extend(values(flow)))
    reader.start()
    predictor.wait_for_held(3)
    for index in (2, 0, 1):
        predictor.release(index)
    reader.join(10)
    assert got == [2.0 * i for i in range(12)]


def test_undecodable_row_fails_alone_in_its_position():
    flow = flow_over(ScriptedPredictor(), a=b"0,1\nx,1\n2,1\n")
    (batch,) = list(flow)
    outcomes = batch.outcomes()
    assert [o.ok for o in outcomes] == [True, False, True]
    assert [o.position.record for o in outcomes] == [0, 1, 2]
    assert outcomes[1].raw == b"x,1"


def test_refused_row_fails_alone_in_its_position():
    predictor = ScriptedPredictor(rows_max=8)
    predictor.refuse_values = {1.0, 5.0}
    flow = flow_over(predictor, a=rows(3), b=rows(4, 3))
    (batch,) = list(flow)
    assert [o.ok for o in batch.outcomes()] == [True, False, True, True, True, False, True]
    assert [f.raw for f in batch.failures] == [b"1,1", b"5,1"]
    assert batch.failures[1].position.object == "memory://b/b.csv"


def test_batch_of_failures_makes_no_request():
    predictor = ScriptedPredictor(rows_max=2)
    batches = list(flow_over(predictor, a=b"x,1\ny,1\n1,1\n2,1\n"))
    assert [len(b.failures) for b in batches] == [2, 0]
    assert len(predictor.requests) == 1


def test_missing_output_row_raises_with_the_models_name():
    predictor = ScriptedPredictor()
    predictor.drop_a_row_of_batch = 1
    with pytest.raises(ModelContractError, match="'y' of batch 1 has 3 rows for 4 records"):
        list(flow_over(predictor, a=rows(10)))


@for_each("cut", range(11))
def test_resume_from_any_batch_yields_exactly_the_rest(cut):
    objects = {"a": rows(7), "b": b"", "c": rows(9, 7) + b"bad,1\n", "d": rows(5, 16)}
    whole = list(flow_over(ScriptedPredictor(rows_max=2), **objects))
    if cut >= len(whole):
        pytest.skip("fewer batches")
    rest = list(flow_over(ScriptedPredictor(rows_max=2), start=whole[cut].end, **objects))
    assert [[str(o) for o in b.outcomes()] for b in rest] == [
        [str(o) for o in b.outcomes()] for b in whole[cut + 1 :]
    ]


def tar_of(**members: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(f"{name}.csv")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def zip_of(**members: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.csv", data)
    return packed.getvalue()


BROKEN = {
    "gzip": ("a.csv.gz", gzip.compress(rows(3000))[:-900]),
    "tar in a member": ("a.tar", tar_of(x=rows(6), y=rows(3000))[:9000]),
    "tar between members": ("a.tar", tar_of(x=rows(6), y=rows(8))[:2048] + b"no header" * 100),
    "binary member of a zip": ("a.zip", zip_of(x=rows(6), y=b"\0" * 100, z=rows(8))),
    "damaged member of a zip": ("a.zip", zip_of(x=rows(6), y=rows(8), z=rows(8)).replace(b"7,1", b"8,1", 1)),
    "binary member": ("a.tar", tar_of(x=rows(6), y=b"\0" * 100, z=rows(8))),
}


@for_each("broken", BROKEN)
def test_resume_before_a_broken_object_reports_the_same_position(broken):
    """With line and byte: otherwise the failures of a resumed run would differ."""
    name, data = BROKEN[broken]
    stores = Stores()
    for uri, content in ((f"memory://b/{name}", data), ("memory://b/b.csv", rows(3))):
        stores.for_uri(uri).put(uri, content)
    planned = objects_of(stores)

    def outcomes(start: Cursor | None = None):
        flow = open_flow(planned, stores, ScriptedPredictor(rows_max=1), StreamSettings(), start=start)
        return [(b.end, [repr(o) for o in b.outcomes()]) for b in flow]

    whole = outcomes()
    assert any("FailureKind.OBJECT" in texts for _, (texts,) in whole)
    for cut in range(len(whole) - 6, len(whole)):
        end = Cursor.from_json(whole[cut][0].to_json())
        assert [texts for _, texts in outcomes(end)] == [texts for _, texts in whole[cut + 1 :]]


def test_batches_span_parquet_objects():
    stores, predictor = Stores(), ScriptedPredictor(rows_max=4)
    for name, numbers in (("a", range(7)), ("b", range(7, 10))):
        file = io.BytesIO()
        pq.write_table(pa.table({"p": numbers, "q": numbers}), file, row_group_size=2)
        stores.for_uri("memory://b/").put(f"memory://b/{name}.parquet", file.getvalue())
    flow = open_flow(objects_of(stores), stores, predictor, StreamSettings())
    assert values(flow) == [2.0 * n for n in range(10)]
    assert [r.rows for r in predictor.requests] == [4, 4, 2]


def test_empty_archive_raises_only_as_the_whole_source():
    stores = Stores()
    stores.for_uri("memory://b/").put("memory://b/a.tar", bytes(1024))

    def scored(**more) -> list[ScoredBatch]:
        return list(open_flow(objects_of(stores), stores, ScriptedPredictor(), StreamSettings(), **more))

    with pytest.raises(EmptySourceError):
        scored()
    (batch,) = scored(appended=True)
    assert "the archive holds no files" in batch.failures[0].why
    stores.for_uri("memory://b/").put("memory://b/b.csv", rows(1))
    assert [(b.rows, b.broken) for b in scored()] == [(1, 1)]


def test_cursor_survives_the_ledger():
    batches = list(flow_over(ScriptedPredictor(), a=rows(6)))
    for cursor in [Cursor(), *(b.end for b in batches)]:
        assert Cursor.from_json(cursor.to_json()).to_json() == cursor.to_json()


def test_source_of_another_width_is_refused_before_any_call():
    predictor = ScriptedPredictor(columns=3)
    with pytest.raises(ModelInputError, match=r"takes 3 numbers per record.*have 2 columns.*--columns"):
        list(flow_over(predictor, a=rows(10)))
    assert predictor.requests == []


def test_early_close_leaves_no_thread():
    flow = flow_over(ScriptedPredictor(), a=rows(5000))
    assert flow.next_batch() is not None
    flow.close()
    flow.close()
    assert not [t for t in threading.enumerate() if t.name in ("headrace-reader", "headrace-feeder")]


@pytest.mark.parametrize("delay_ms", [None, 1e6])
def test_drain_delivers_submitted_batches_only(delay_ms):
    """It also stops within a block, because a block can be minutes of work for a slow model."""

    class DrainsAtThird(ScriptedPredictor):
        def submit(self, request):
            if len(self.requests) == 2:
                flow.drain()
            return super().submit(request)

    predictor = DrainsAtThird(rows_max=4)
    settings = StreamSettings(flow=FlowSettings(batch_delay_ms=delay_ms))
    flow = flow_over(predictor, settings, a=rows(30), b=rows(10))
    batches = list(flow)
    assert [b.entries for b in batches] == [4, 4, 4]
    assert batches[-1].end.position.record == 12
    assert flow.drained


@for_each("delay_ms", [None, 1e6])
@for_each(("resumable", "entries"), [(True, [4, 4]), (False, [4, 4, 2])])
def test_batches_before_a_broken_source_are_delivered(resumable, entries, delay_ms):
    settings = StreamSettings(flow=FlowSettings(batch_delay_ms=delay_ms))
    stores = ClosedStores("memory://b/b.csv")
    flow = flow_over(
        ScriptedPredictor(rows_max=4), settings, resumable=resumable, stores=stores, a=rows(10), b=rows(10)
    )
    delivered: list[int] = []
    with pytest.raises(AccessDeniedError, match=r"b\.csv"):
        delivered.extend(b.entries for b in iter(flow.next_batch, None))
    flow.close()
    assert delivered == entries


def test_delayed_batch_is_submitted_while_the_source_is_silent(monkeypatch):
    speaks = threading.Event()
    reading = ShardSource.blocks

    def blocks(self):
        for read in reading(self):
            yield read
            assert speaks.wait(10)

    monkeypatch.setattr(ShardSource, "blocks", blocks)
    settings = StreamSettings(flow=FlowSettings(batch_delay_ms=5))
    flow = flow_over(ScriptedPredictor(rows_max=100), settings, a=rows(3), b=rows(3))
    assert flow.next_batch().entries == 3
    speaks.set()
    assert [b.entries for b in iter(flow.next_batch, None)] == [3]
    flow.close()


def test_pending_batches_are_limited():
    predictor = ScriptedPredictor(rows_max=1, hold=True)
    settings = StreamSettings(flow=FlowSettings(window_bytes_max=256))
    flow = flow_over(predictor, settings, a=rows(1500))
    reader = threading.Thread(target=lambda: list(flow))
    reader.start()
    predictor.wait_for_held(50)
    assert len(predictor.held) <= 300
    predictor.hold = False
    released = 0

    def is_finished():
        nonlocal released
        while released < len(predictor.held):
            predictor.release(released)
            released += 1
        return not reader.is_alive()

    wait_until(is_finished, "the end of the flow")
    assert len(predictor.requests) == 1500


def test_failed_records_count_for_the_window(monkeypatch):
    """A million of them, with few bytes each, would fill the memory."""
    weights, send = [], Channel.send

    def weighed(self, batch, weight, future):
        weights.append(weight)
        send(self, batch, weight, future)

    monkeypatch.setattr(Channel, "send", weighed)
    settings = StreamSettings(flow=FlowSettings(window_bytes_max=256))
    list(flow_over(ScriptedPredictor(rows_max=4), settings, a=b"x,1\n" * 8))
    assert len(weights) == 2
    assert min(weights) > 4 * 500


# Sequences

USERS = b"a,1\nb,2\na,3\nb,4\nc,5\na,6\nc,7\nb,8\na,9\n"
BY_USER = StreamSettings(mapping=MappingOptions(sequence=0))


def test_stateful_model_gets_one_batch_at_a_time():
    predictor = SummingPredictor(rows_max=2, hold=True)
    flow = flow_over(predictor, BY_USER, a=USERS)
    got: list[float] = []
    reader = threading.Thread(target=lambda: got.extend(values(flow)))
    reader.start()
    for index in range(5):
        predictor.wait_for_held(index + 1)
        assert len(predictor.held) == index + 1
        predictor.release(index)
    reader.join(10)
    assert got == [1, 2, 4, 6, 5, 10, 12, 14, 19]


def test_stateful_model_without_sequences_gets_one_batch_at_a_time():
    predictor = SummingPredictor(rows_max=2, columns=2, hold=True)
    flow = flow_over(predictor, a=rows(6))
    reader = threading.Thread(target=lambda: list(flow))
    reader.start()
    for index in range(3):
        predictor.wait_for_held(index + 1)
        assert len(predictor.held) == index + 1
        assert predictor.held[index][0]["sequence_id"].tolist() == ["", ""]
        predictor.release(index)
    reader.join(10)
    assert not reader.is_alive()


def test_failed_request_stops_further_requests():
    class FailsAt(SummingPredictor):
        def answer(self, request):
            if len(self.requests) == 3:
                raise PredictError("sum", "it failed")
            return super().answer(request)

        def submit(self, request):
            self.requests.append(request)
            future = Future()
            try:
                future.set_result(self.answer(request))
            except PredictError as error:
                future.set_exception(error)
            return future

    predictor = FailsAt(rows_max=2)
    flow = flow_over(predictor, BY_USER, a=USERS)
    got: list[ScoredBatch] = []
    with pytest.raises(PredictError):
        got.extend(flow)
    assert (len(got), len(predictor.requests)) == (2, 3)


def test_object_sequences_end_with_the_next_object_or_the_source():
    predictor = SummingPredictor(rows_max=4)
    settings = StreamSettings(mapping=MappingOptions(sequence="@object"))
    got = values(flow_over(predictor, settings, a=b"1\n2\n3\n", b=b"4\n", c=b"5\n6\n"))
    assert got == [1, 3, 6, 4, 5, 11]
    a, b, c = (f"memory://b/{name}.csv" for name in "abc")
    assert predictor.ended == [(a, "with its row"), (b, "told"), (c, "told")]
    assert predictor.sums == {}


def test_replay_ends_no_continuing_sequence():
    predictor = SummingPredictor(rows_max=2)
    settings = StreamSettings(mapping=MappingOptions(sequence="@object"))
    stores = Stores()
    stores.for_uri("memory://b/").put("memory://b/a.csv", b"1\n2\n3\n4\n")
    planned = objects_of(stores)
    cursor = Cursor(0, Position("memory://b/a.csv", record=2))
    sequencer = Sequencer(predictor.metadata, settings.mapping, settings.flow)
    list(open_flow(planned, stores, predictor, settings, stop=cursor, sequencer=sequencer))
    assert predictor.ended == []
    rest = open_flow(planned, stores, predictor, settings, start=cursor, sequencer=sequencer)
    assert values(rest) == [6, 10]
    assert predictor.ended == [("memory://b/a.csv", "told")]


def test_sequence_ended_by_the_model_needs_no_end():
    class Ended(SummingPredictor):
        def submit(self, request):
            if request.inputs:
                return super().submit(request)
            future = Future()
            future.set_exception(SequenceGoneError(request.parameters["sequence_id"], "it has ended"))
            return future

    settings = StreamSettings(mapping=MappingOptions(sequence="@object"))
    assert values(flow_over(Ended(), settings, a=b"1\n2\n", b=b"3\n")) == [1, 3, 3]


def test_stateless_model_with_sequences_is_refused():
    with pytest.raises(ConfigError, match="declares no step"):
        flow_over(ScriptedPredictor(), BY_USER, a=USERS)


def test_close_ends_with_the_awaited_response():
    predictor = SummingPredictor(rows_max=2, hold=True)
    flow = flow_over(predictor, BY_USER, a=USERS)
    reader = threading.Thread(target=lambda: list(flow))
    reader.start()
    predictor.wait_for_held(1)
    flow.cancel()
    predictor.release(0)
    flow.close()
    reader.join(10)
    assert not reader.is_alive()
