import asyncio
import threading

import pytest

from headrace.core.errors import NotFoundError, StoppedError
from headrace.pipeline.flow import open_flow
from headrace.pipeline.plan import select_objects
from headrace.pipeline.settings import StreamSettings
from headrace.pipeline.stream import Stream
from headrace.storage.resolve import Stores
from pipeline.support import ScriptedPredictor


class Watched(ScriptedPredictor):
    """Tells whether it runs."""

    running = False

    def start(self) -> None:
        self.running = True

    def stop(self, *, drain: bool = True) -> None:
        self.running = False


def stream_over(data: bytes, predictor: Watched | None = None, source="memory://b/a.csv") -> Stream:
    stores = Stores()
    stores.for_uri("memory://b/").put("memory://b/a.csv", data)
    used = predictor or Watched()
    return Stream(
        lambda: open_flow(select_objects(source, stores), stores, used, StreamSettings()),
        used,
    )


def rows(count: int) -> bytes:
    return b"".join(b"%d,1\n" % i for i in range(count))


def flow_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name in ("headrace-reader", "headrace-feeder")]


def said(outcomes) -> list:
    return [float(o.outputs["y"]) if o.ok else o.why for o in outcomes]


def _raise_at_first(stream: Stream) -> None:
    with stream:
        for _ in stream:
            raise ZeroDivisionError


def test_outcomes_come_one_a_record_in_order():
    assert said(stream_over(b"0,1\nx,1\n2,1\n")) == [0.0, 'column 0: "x" is not a number', 4.0]


def test_the_same_asynchronously():
    async def collect():
        return [outcome async for outcome in stream_over(rows(9))]

    assert said(asyncio.run(collect())) == [2.0 * i for i in range(9)]


def test_batches_give_arrays():
    batches = list(stream_over(rows(6)).batches())
    assert [b.outputs["y"].tolist() for b in batches] == [[0, 2, 4, 6], [8, 10]]


def test_nothing_starts_before_the_first_is_asked_for_and_all_ends_after_the_last():
    predictor = Watched()
    stream = stream_over(rows(3), predictor)
    assert not predictor.running
    iterator = iter(stream)
    next(iterator)
    assert predictor.running
    assert len(list(iterator)) == 2
    assert not predictor.running
    assert flow_threads() == []


@pytest.mark.parametrize("leave", ["break", "error", "with"])
def test_leaving_early_closes_everything(leave):
    predictor = Watched()
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


def test_cancelling_the_caller_closes_everything():
    predictor = Watched(hold=True)
    stream = stream_over(rows(50), predictor)

    async def cancelled():
        async with stream:
            task = asyncio.ensure_future(anext(aiter(stream)))
            await asyncio.to_thread(predictor.wait_for_held, 1)
            task.cancel()
            # What a real predictor does when it is stopped.
            for _, future in predictor.held:
                future.set_exception(StoppedError("stopped"))
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancelled())
    assert not predictor.running
    assert flow_threads() == []


def test_a_source_that_is_not_there_raises_and_stops_the_predictor():
    predictor = Watched()
    with pytest.raises(NotFoundError):
        list(stream_over(b"", predictor, source="memory://b/gone.csv"))
    assert not predictor.running


def test_a_closed_stream_gives_nothing_and_closes_twice():
    stream = stream_over(rows(3))
    stream.close()
    stream.close()
    assert list(stream) == []


def test_closing_while_the_predictor_starts_leaves_nothing_running():
    class Slow(Watched):
        def start(self) -> None:
            super().start()
            stream.close()
            super().start()  # what it had begun ends only now

    predictor = Slow()
    stream = stream_over(rows(3), predictor)
    assert list(stream) == []
    assert not predictor.running
    assert flow_threads() == []


def test_leaving_does_not_wait_for_room_in_the_predictor():
    """One request is answered, and the next would wait for ever."""

    class Full(Watched):
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
