import asyncio
import threading

import pytest

from cases import for_each
from headrace.app.stream import Stream
from headrace.core.errors import NotFoundError, StoppedError
from headrace.runs.flow import Flow, open_flow
from headrace.runs.objects import select_infos
from headrace.runs.records import PlannedObject
from headrace.runs.settings import StreamSettings
from headrace.storage.resolve import Stores
from runs.stream_support import ScriptedPredictor


class RecordingPredictor(ScriptedPredictor):
    """A predictor that records whether it runs."""

    running = False

    def start(self) -> None:
        self.running = True

    def stop(self, *, drain: bool = True) -> None:
        self.running = False


def stream_over(
    data: bytes, predictor: RecordingPredictor | None = None, source="memory://b/a.csv"
) -> Stream:
    stores = Stores()
    stores.for_uri("memory://b/").put("memory://b/a.csv", data)
    used, settings = predictor or RecordingPredictor(), StreamSettings()

    def make_flow() -> Flow:
        objects = [PlannedObject(info) for info in select_infos(source, stores, settings)]
        return open_flow(objects, stores, used, settings)

    return Stream(make_flow, used)


def rows(count: int) -> bytes:
    return b"".join(b"%d,1\n" % i for i in range(count))


def flow_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name in ("headrace-reader", "headrace-feeder")]


def values_or_reasons(outcomes) -> list:
    return [float(o.outputs["y"]) if o.ok else o.why for o in outcomes]


def _raise_at_first(stream: Stream) -> None:
    with stream:
        for _ in stream:
            raise ZeroDivisionError


def test_outcomes_are_one_per_record_in_order():
    assert values_or_reasons(stream_over(b"0,1\nx,1\n2,1\n")) == [0.0, 'column 0: "x" is not a number', 4.0]


def test_asynchronous_outcomes_are_in_order():
    async def collect():
        return [outcome async for outcome in stream_over(rows(9))]

    assert values_or_reasons(asyncio.run(collect())) == [2.0 * i for i in range(9)]


def test_batches_have_arrays():
    batches = list(stream_over(rows(6)).batches())
    assert [b.outputs["y"].tolist() for b in batches] == [[0, 2, 4, 6], [8, 10]]


def test_stream_starts_at_the_first_and_ends_after_the_last_outcome():
    predictor = RecordingPredictor()
    stream = stream_over(rows(3), predictor)
    assert not predictor.running
    iterator = iter(stream)
    next(iterator)
    assert predictor.running
    assert len(list(iterator)) == 2
    assert not predictor.running
    assert flow_threads() == []


@for_each("leave", ["break", "error", "with"])
def test_early_exit_closes_everything(leave):
    predictor = RecordingPredictor()
    stream = stream_over(rows(5000), predictor)
    if leave == "with":
        with stream:
            next(iter(stream))
    elif leave == "break":
        iterator = iter(stream)
        next(iterator)
        iterator.close()
    else:
        with pytest.raises(ZeroDivisionError):
            _raise_at_first(stream)
    assert not predictor.running
    assert flow_threads() == []


def test_cancelled_task_closes_everything():
    predictor = RecordingPredictor(hold=True)
    stream = stream_over(rows(50), predictor)

    async def cancelled():
        async with stream:
            task = asyncio.ensure_future(anext(aiter(stream)))
            await asyncio.to_thread(predictor.wait_for_held, 1)
            task.cancel()
            # A real predictor does this when it is stopped.
            for _, future in predictor.held:
                future.set_exception(StoppedError("stopped"))
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancelled())
    assert not predictor.running
    assert flow_threads() == []


def test_missing_source_raises_and_stops_the_predictor():
    predictor = RecordingPredictor()
    with pytest.raises(NotFoundError):
        list(stream_over(b"", predictor, source="memory://b/gone.csv"))
    assert not predictor.running


def test_closed_stream_is_empty_and_closes_twice():
    stream = stream_over(rows(3))
    stream.close()
    stream.close()
    assert list(stream) == []


def test_close_during_predictor_start_leaves_nothing_running():
    class Slow(RecordingPredictor):
        def start(self) -> None:
            super().start()
            stream.close()
            super().start()  # the start completes only now

    predictor = Slow()
    stream = stream_over(rows(3), predictor)
    assert list(stream) == []
    assert not predictor.running
    assert flow_threads() == []


def test_exit_does_not_wait_for_a_blocked_predictor():
    """One request gets a response, and the next one would block for ever."""

    class Full(RecordingPredictor):
        def __init__(self) -> None:
            super().__init__(rows_max=2)
            self.stopped = threading.Event()

        def submit(self, request):
            if self.requests:
                assert self.stopped.wait(10), "nobody stopped the predictor"
                raise StoppedError("stopped")
            return super().submit(request)

        def stop(self, *, drain=True) -> None:
            self.stopped.set()
            super().stop(drain=drain)

    with stream_over(rows(100), Full()) as stream:
        next(iter(stream))
    assert flow_threads() == []
