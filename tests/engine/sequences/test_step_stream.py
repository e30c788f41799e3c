"""Streams whose messages are requests for steps."""

import asyncio
import threading

import pytest

import headrace.engine.streams
from engine.sequences.models import Adding, end, more, run, start, step_request
from engine.support import WAIT_S, in_thread, pending_request, request, rows, serving, wait_until
from headrace.core.errors import PredictError, SequenceGoneError
from headrace.engine.sequences.row_request import RowRequest
from headrace.engine.sequences.step_stream import _MessageCollector


@pytest.fixture
def model():
    return Adding()


async def _messages(*requests):
    for message in requests:
        yield message


async def _collected(stream):
    try:
        return [item.outputs[0].data.item() async for item in stream]
    finally:
        await stream.aclose()


def streamed(engine, first, *others):
    async def main():
        return await _collected(engine.stream(first, _messages(*others)))

    return run(main())


def test_unnamed_messages_use_own_sequence(model):
    with serving(model) as engine:
        assert streamed(engine, step_request(1), step_request(2, 3), step_request(4)) == [1.0, 3.0, 6.0, 10.0]
        assert engine.sequences() == ()
    assert [(why, total) for _, why, total in model.ended] == [("ended", 10.0)]


def test_own_sequence_is_in_the_namespace_of_its_messages(model):
    messages = [step_request(n).within("shop") for n in (1, 2)]
    with serving(model) as engine:
        assert streamed(engine, *messages) == [1.0, 3.0]
        assert engine.sequences() == ()
    ((id, why, total),) = model.ended
    assert (id.startswith("shop/"), why, total) == (True, "ended", 3.0)


def test_single_request_is_its_own_sequence(model):
    async def main(engine):
        return await _collected(engine.stream(step_request(900)))

    with serving(model) as engine:
        assert run(main(engine)) == [900.0, 1800.0, 2700.0]
    assert model.ended == [("", "ended", 2700.0)]


def test_message_may_restart_own_sequence(model):
    """The previous one ends once its requests are done."""
    anew = step_request(5, sequence_start=True)
    with serving(model) as engine:
        # Steps of two sequences arrive as they are done.
        assert sorted(streamed(engine, step_request(1), step_request(2), anew, step_request(1))) == [
            1.0,
            3.0,
            5.0,
            6.0,
        ]
        assert engine.sequences() == ()
    assert sorted(total for _, _, total in model.ended) == [3.0, 6.0]


def test_named_sequence_outlives_stream(model):
    with serving(model) as engine:
        assert streamed(engine, start("a", 1), more("a", 2)) == [1.0, 3.0]
        assert streamed(engine, more("a", 3)) == [6.0]
        assert streamed(engine, end("a", 1)) == [7.0]


def test_all_waiting_sequences_resume_with_space(model, monkeypatch):
    """However slowly the items are read."""
    monkeypatch.setattr(headrace.engine.streams, "ITEMS_MAX", 2)

    async def main(engine):
        ids = ["a", "b", "c"]
        stream = engine.stream(
            start("a", 400), _messages(start("b", 400), start("c", 400), *[end(id) for id in ids])
        )
        await wait_until(lambda: {info.stage for info in engine.sequences()} == {"held"})
        return await _collected(stream)

    with serving(model) as engine:
        items = run(main(engine))
    assert sorted(items) == sorted([400.0, 800.0, 1200.0, 1600.0, 2000.0] * 3)


def test_failing_message_ends_stream(model):
    """Earlier items arrived, and its own sequence has ended."""
    with serving(model) as engine:
        given = []

        async def main():
            stream = engine.stream(step_request(1), _messages(step_request(Adding.ODD), step_request(1)))
            try:
                async for item in stream:
                    given.append(item.outputs[0].data.item())
            finally:
                await stream.aclose()

        with pytest.raises(PredictError, match="odd"):
            run(main())
        assert given == [1.0]
        assert engine.sequences() == ()


def test_refused_first_message_opens_no_stream(model):
    async def main(engine):
        with pytest.raises(SequenceGoneError):
            engine.stream(more("a", 1))
        assert engine.model_statistics().open_streams == 0

    with serving(model) as engine:
        run(main(engine))


@pytest.mark.parametrize("namespace", ["", "shop"])
@pytest.mark.parametrize("last", [step_request(900), step_request(900, sequence_end=True)])
def test_departed_client_leaves_nothing(model, monkeypatch, last, namespace):
    """Its own sequence ends too, even if its last message still waits."""
    monkeypatch.setattr(headrace.engine.streams, "ITEMS_MAX", 2)

    async def main(engine):
        never = asyncio.Event()

        async def messages():
            yield last.within(namespace)
            await never.wait()

        stream = engine.stream(step_request(700).within(namespace), messages())
        await wait_until(lambda: any(info.stage == "held" for info in engine.sequences()))
        await stream.aclose()
        await wait_until(lambda: engine.sequences() == ())

    with serving(model) as engine:
        run(main(engine))
        sequences = engine._session.sequences
        assert (sequences.table.requests, sequences._row_requests) == (0, {})


@pytest.mark.parametrize("namespace", ["", "shop"])
def test_departed_client_leaves_no_idle_sequence(model, namespace):
    async def main(engine):
        never = asyncio.Event()

        async def messages():
            await never.wait()
            yield step_request(1)

        stream = engine.stream(step_request(1).within(namespace), messages())
        assert (await stream.next_batch())[0].outputs[0].data.item() == 1.0
        await wait_until(lambda: [info.stage for info in engine.sequences()] == ["idle"])
        await stream.aclose()
        await wait_until(lambda: engine.sequences() == ())

    with serving(model) as engine:
        run(main(engine))


def test_streamed_message_cannot_rewind():
    """Another part without a streamed output can."""
    given = []

    class Stream:
        def add_output(self, part, outputs, wakes):
            given.append(outputs)
            return True

    message = _MessageCollector(Stream(), 2)
    one, other = (RowRequest(pending_request(request()), {}, 1, message) for _ in range(2))
    message.add_output(one, 0, {"y": rows(1)}, [])
    assert (one.rewind(), other.rewind(), len(given)) == (False, True, 1)


def test_no_output_after_end(model):
    """A step is done for a sequence that was cancelled meanwhile."""

    async def main(engine):
        model.gate, model.stepping = threading.Event(), threading.Event()
        stream = engine.stream(start("a", 1))
        assert await in_thread(model.stepping.wait, WAIT_S)
        assert engine.cancel_sequence("a")
        model.gate.set()
        await wait_until(lambda: model.ended)
        with pytest.raises(SequenceGoneError, match="cancelled"):
            await stream.next_batch()
        assert await stream.next_batch() == []

    with serving(model) as engine:
        run(main(engine))
