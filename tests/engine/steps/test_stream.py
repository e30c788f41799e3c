"""Streams whose messages are requests for steps."""

import asyncio
import threading

import pytest

import headrace.engine.streams
from engine.steps.models import Adding, end, more, run, start, step_request
from engine.support import WAIT_S, on_thread, request, rows, serving, ticket, until
from headrace.core.errors import PredictError, SequenceGoneError
from headrace.engine.steps.part import Part
from headrace.engine.steps.stream import _Message


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


def test_messages_that_name_no_sequence_are_of_the_streams_own(model):
    """It ends with the stream."""
    with serving(model) as engine:
        assert streamed(engine, step_request(1), step_request(2, 3), step_request(4)) == [1.0, 3.0, 6.0, 10.0]
        assert engine.sequences() == ()
    assert [(why, total) for _, why, total in model.told] == [("ended", 10.0)]


def test_one_request_alone_is_a_sequence_by_itself(model):
    async def main(engine):
        return await _collected(engine.stream(step_request(900)))

    with serving(model) as engine:
        assert run(main(engine)) == [900.0, 1800.0, 2700.0]
    assert model.told == [("", "ended", 2700.0)]


def test_a_message_may_begin_the_streams_sequence_anew(model):
    """The one before ends, once what was asked of it is done; nothing of it is left."""
    anew = step_request(5, sequence_start=True)
    with serving(model) as engine:
        # Steps of two sequences come as they are done.
        assert sorted(streamed(engine, step_request(1), step_request(2), anew, step_request(1))) == [
            1.0,
            3.0,
            5.0,
            6.0,
        ]
        assert engine.sequences() == ()
    assert sorted(total for _, _, total in model.told) == [3.0, 6.0]


def test_a_sequence_that_is_named_outlives_its_stream(model):
    with serving(model) as engine:
        assert streamed(engine, start("a", 1), more("a", 2)) == [1.0, 3.0]
        assert streamed(engine, more("a", 3)) == [6.0]
        assert streamed(engine, end("a", 1)) == [7.0]


def test_several_sequences_of_one_stream_wait_for_room_and_all_go_on(model, monkeypatch):
    """However slowly their answers are taken."""
    monkeypatch.setattr(headrace.engine.streams, "ITEMS_MAX", 2)

    async def main(engine):
        ids = ["a", "b", "c"]
        stream = engine.stream(
            start("a", 400), _messages(start("b", 400), start("c", 400), *[end(id) for id in ids])
        )
        await until(lambda: {info.stage for info in engine.sequences()} == {"held"})
        return await _collected(stream)

    with serving(model) as engine:
        items = run(main(engine))
    assert sorted(items) == sorted([400.0, 800.0, 1200.0, 1600.0, 2000.0] * 3)


def test_a_message_that_fails_ends_the_stream(model):
    """What came before it was given, and its own sequence is over."""
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


def test_a_first_message_that_is_not_taken_opens_nothing(model):
    async def main(engine):
        with pytest.raises(SequenceGoneError):
            engine.stream(more("a", 1))
        assert engine.model_statistics().open_streams == 0

    with serving(model) as engine:
        run(main(engine))


@pytest.mark.parametrize("last", [step_request(900), step_request(900, sequence_end=True)])
def test_nothing_is_left_of_a_stream_whose_caller_goes(model, monkeypatch, last):
    """Nor of its own sequence, though its last message may be waiting still."""
    monkeypatch.setattr(headrace.engine.streams, "ITEMS_MAX", 2)

    async def main(engine):
        never = asyncio.Event()

        async def messages():
            yield last
            await never.wait()

        stream = engine.stream(step_request(700), messages())
        await until(lambda: any(info.stage == "held" for info in engine.sequences()))
        await stream.aclose()
        await until(lambda: engine.sequences() == ())

    with serving(model) as engine:
        run(main(engine))
        channel = engine._life.steps
        assert (channel._table.requests, channel._parts) == (0, {})


def test_what_somebody_has_seen_is_not_begun_again():
    """Of one part; another one may be, of which nothing was given."""
    given = []

    class Stream:
        def give(self, part, outputs, wakes):
            given.append(outputs)
            return True

    message = _Message(Stream(), 2)
    one, other = (Part(ticket(request()), {}, 1, message) for _ in range(2))
    message.give(one, 0, {"y": rows(1)}, [])
    assert (one.rewind(), other.rewind(), len(given)) == (False, True, 1)


def test_nothing_is_given_after_the_end(model):
    """A step is done for a sequence that was cancelled meanwhile."""

    async def main(engine):
        model.gate, model.stepping = threading.Event(), threading.Event()
        stream = engine.stream(start("a", 1))
        assert await on_thread(model.stepping.wait, WAIT_S)
        assert engine.cancel_sequence("a")
        model.gate.set()
        await until(lambda: model.told)
        with pytest.raises(SequenceGoneError, match="cancelled"):
            await stream.some()
        assert await stream.some() == []

    with serving(model) as engine:
        run(main(engine))
