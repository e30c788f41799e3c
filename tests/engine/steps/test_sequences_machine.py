"""Sequences as an engine answers them, under all that can happen to them at once, beside a plain reference."""

import asyncio
import os
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import headrace.engine.streams
from engine.steps.mortal import Mortals, diaries, diary_request
from engine.steps.reference import Reference, Refused, Request, Stream
from headrace.core.errors import HeadraceError
from headrace.core.sequence import SequenceLimits

ITEMS_MAX = 2
IN_FLIGHT_MAX = 2
EXAMPLES = int(os.environ.get("HEADRACE_SEQUENCES", "60"))

ids = st.sampled_from(["a", "b", "c"])
kinds = st.sampled_from(["plain", "plain", "plain", "fail", "refuse", "on1", "on2", "silent", "over"])
starts = st.sampled_from([False, True, "auto", "auto"])


def failed(request):
    """Whether a stream ends with what this message of it came to; not with an end of its own sequence that came too late."""
    needless = not any(part.rows for part in request.parts) and request.own is not None
    return request.result[0] == "error" and not needless


class Sequences(RuleBasedStateMachine):
    """Two instances, each of which has one call at a time that waits for its verdict."""

    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(headrace.engine.streams, "ITEMS_MAX", ITEMS_MAX)
        self.mortals = None
        self.tokens = 0
        self.calls = []
        """Requests of `ask` and `submit`: the reference's, and the task or future."""
        self.streams = []
        self.working = {}
        """What each instance has in its call: the reference's sequences."""
        self.ready = {}
        """What each has taken for the call after that."""
        self.beside = {}
        """What each had taken for its next call, maybe, before anybody heard what came of the last: by their tokens."""

    @initialize(
        interleave=st.booleans(),
        evict=st.sampled_from([None, 5_000.0]),
        total=st.sampled_from([None, 30_000.0]),
        live_max=st.sampled_from([2, 4]),
        rows_max=st.sampled_from([1, 2, 3, 3]),
    )
    def begin(self, *, interleave, evict, total, live_max, rows_max):
        limits = SequenceLimits(
            live_max=live_max,
            idle_ms=10_000.0,
            time_ms_max=total,
            requests_max=2,
            evict_idle_ms=evict,
            interleave=interleave,
        )
        self.mortals = Mortals(limits, instances=2, in_flight_max=IN_FLIGHT_MAX, rows_max=rows_max)
        self.rows_max = rows_max
        self.engine, self.channel = self.mortals.engine, self.mortals.channel
        self.told = Reference(limits, requests_max=2, items_max=ITEMS_MAX)
        self.mortals.run(self.mortals.settle())

    @property
    def now(self):
        return self.mortals.clock.now()

    def rows(self, some):
        self.tokens += len(some)
        return [(self.tokens - len(some) + i, kind) for i, kind in enumerate(some)]

    # What callers do

    def asked(self, request, asks):
        """What the reference says to a request; what it is refused with, or None."""
        try:
            self.told.ask(request, asks, self.now)
        except Refused as refused:
            request.result = ("error", {str(refused)})
            return str(refused)
        return None

    def put(self, request, asked, *, submit=False):
        """Ask for it, and compare at the next look."""

        async def ask():
            return await self.engine.ask(asked)

        async def main():
            if submit:
                future = self.engine.submit(asked, strict=request.strict)
            else:
                future = asyncio.ensure_future(ask())
            self.calls.append((request, future))
            await self.mortals.settle()

        self.mortals.run(main())

    @rule(
        id=st.one_of(ids, ids, st.just("")), start=starts, some=st.lists(kinds, max_size=3), end=st.booleans()
    )
    def ask(self, id, start, some, end):
        if not id and not some:
            return
        rows = self.rows(some)
        request = Request(f"r{len(self.calls)}")
        none = not rows and end
        placed = [(place, *row) for place, row in enumerate(rows)]
        self.asked(request, [(id, start, end, placed)])
        parameters = {"sequence_id": id, "sequence_start": start, "sequence_end": end}
        self.put(request, diary_request(None if none else rows, parameters))

    @rule(
        which=st.lists(
            st.tuples(st.sampled_from(["a", "b", "c", ""]), st.booleans(), st.booleans(), kinds),
            min_size=1,
            max_size=4,
        ),
        auto=st.booleans(),
        strict=st.booleans(),
    )
    def ask_rows(self, which, auto, strict):
        if not strict and self.unanswered() >= IN_FLIGHT_MAX:
            return
        rows = self.rows([kind for *_, kind in which])
        asks, growing = [], {}
        for place, ((id, start, end, _), row) in enumerate(zip(which, rows, strict=True)):
            if not id or start or id not in growing:
                growing[id] = len(asks)
                asks.append([id, (start and bool(id)) or ("auto" if auto else False), False, []])
            part = asks[growing[id]]
            part[3].append((place, *row))
            part[2] = end
            if end:
                del growing[id]
        request = Request(f"r{len(self.calls)}", strict=strict, by_rows=True)
        self.asked(request, asks)
        tensors = {
            "sequence_id": np.array([id for id, *_ in which], object),
            "sequence_start": np.array([start for _, start, *_ in which]),
            "sequence_end": np.array([end for _, _, end, _ in which]),
        }
        asked = diary_request(rows, {"sequence_start": "auto"} if auto else {}, tensors=tensors)
        self.put(request, asked, submit=not strict)

    @rule(
        id=ids,
        start=starts,
        some=st.lists(kinds, min_size=1, max_size=3),
        end=st.booleans(),
        strict=st.booleans(),
        left_s=st.sampled_from([None, 3.0]),
    )
    def submit(self, *, id, start, some, end, strict, left_s):
        if self.unanswered() >= IN_FLIGHT_MAX:
            return
        rows = self.rows(some)
        deadline = None if left_s is None else self.now + left_s
        request = Request(f"r{len(self.calls)}", strict=strict, deadline=deadline)
        placed = [(place, *row) for place, row in enumerate(rows)]
        self.asked(request, [(id, start, end, placed)])
        parameters = {"sequence_id": id, "sequence_start": start, "sequence_end": end}
        self.put(request, diary_request(rows, parameters, deadline=deadline), submit=True)

    def unanswered(self):
        return len(self.channel._put)

    @rule(id=ids, by_request=st.booleans())
    def cancel(self, id, by_request):
        lived = self.told.cancel(id, self.now)
        if by_request:
            request = Request(f"r{len(self.calls)}")
            request.result = ("rows", [], set()) if lived else ("error", {"SequenceGoneError"})
            self.put(request, diary_request(None, {"sequence_id": id, "sequence_cancel": True}))
        else:
            assert self.engine.cancel_sequence(id) == lived
            self.mortals.run(self.mortals.settle())

    @precondition(lambda self: any(request.result is None for request, _ in self.calls))
    @rule(data=st.data())
    def leave(self, data):
        waiting = [(request, future) for request, future in self.calls if request.result is None]
        request, future = data.draw(st.sampled_from(waiting), "who leaves")
        self.told.withdraw(request, self.now)

        task = isinstance(future, asyncio.Task)
        if request.begun and not task:
            # A cancelled future says that nothing was begun.
            request.result = ("error", {"CancelledRequestError"})

        async def main():
            if task:
                future.cancel()
            else:
                self.engine.abandon(future)
            await self.mortals.settle()

        self.mortals.run(main())

    # Streams

    @precondition(lambda self: sum(not one.over for one, *_ in self.streams) < 2)
    @rule(
        id=st.sampled_from(["", "", "a", "b"]),
        start=starts,
        some=st.lists(kinds, min_size=1, max_size=3),
        single=st.booleans(),
        end=st.booleans(),
    )
    def open_stream(self, id, start, some, single, end):
        start = start if id else False
        stream = Stream(single)
        rows = self.rows(some)
        arriving = asyncio.Queue()

        async def more():
            while (message := await arriving.get()) is not None:
                yield message

        try:
            self.message(stream, id, start, end, rows)
        except Refused as refused:
            why = str(refused)
        else:
            why = None

        async def main():
            parameters = {"sequence_id": id, "sequence_start": start, "sequence_end": end}
            first = diary_request(rows, parameters)
            refused = None
            try:
                there = self.engine.stream(first, None if single else more())
                self.streams.append((stream, there, arriving))
            except HeadraceError as error:
                refused = type(error).__name__
            assert refused == why
            await self.mortals.settle()

        self.mortals.run(main())
        if why is None and single:
            stream.closed = True
            self.pump()

    def message(self, stream, id, start, end, rows):
        """One message as the reference takes it."""
        request = Request(f"m{self.tokens}", stream=stream)
        placed = [(place, *row) for place, row in enumerate(rows)]
        own = not id and not stream.single
        if own and stream.own is not None:
            # An own sequence that its model has ended is gone.
            if stream.own not in self.told.living:
                raise Refused(
                    "SequenceLostError" if stream.own.why == "instance_lost" else "SequenceGoneError"
                )
            if max(len(stream.own.parts) - 1, 0) >= 2:
                raise Refused("SequenceFullError")
            part_of = stream.own
            self.told.expire(self.now)
            if part_of not in self.told.living:
                raise Refused("SequenceGoneError")
            self.told.add(part_of, request, placed, end, self.now)
        else:
            self.told.ask(request, [(id, True if own else start, end, placed)], self.now)
            if own:
                stream.own = self.told.living[-1]
        if own:
            request.own = stream.own
            if end:
                stream.own = None
        else:
            request.own = None
        if request.result is None:
            stream.pending.append(request)

    @precondition(lambda self: any(not s.single and not s.closed and not s.over for s, *_ in self.streams))
    @rule(
        data=st.data(),
        id=st.sampled_from(["", "", "", "a", "c"]),
        start=starts,
        some=st.lists(kinds, min_size=1, max_size=2),
        end=st.booleans(),
    )
    def send(self, data, id, start, some, end):
        open_ones = [
            one for one in self.streams if not one[0].single and not one[0].closed and not one[0].over
        ]
        stream, _, arriving = data.draw(st.sampled_from(open_ones), "stream")
        if len(stream.messages) >= ITEMS_MAX:
            return
        start = start if id else False
        rows = self.rows(some)
        stream.messages.append((id, start, end, rows))
        parameters = {"sequence_id": id, "sequence_start": start, "sequence_end": end}

        async def main():
            arriving.put_nowait(diary_request(rows, parameters))
            await self.mortals.settle()

        self.mortals.run(main())
        self.pump()

    @precondition(lambda self: any(not s.single and not s.closed and not s.over for s, *_ in self.streams))
    @rule(data=st.data())
    def close_stream(self, data):
        open_ones = [
            one for one in self.streams if not one[0].single and not one[0].closed and not one[0].over
        ]
        stream, _, arriving = data.draw(st.sampled_from(open_ones), "stream")
        stream.closed = True

        async def main():
            arriving.put_nowait(None)
            await self.mortals.settle()

        self.mortals.run(main())
        self.pump()

    @precondition(lambda self: any(s.items or s.over for s, *_ in self.streams))
    @rule(data=st.data())
    def read(self, data):
        """Take all that is there; the error, or the end, when there is nothing else."""
        able = [one for one in self.streams if one[0].items or one[0].over]
        one = data.draw(st.sampled_from(able), "stream")
        self._read(one)

    def _read(self, one):
        stream, there, _ = one
        expected, stream.items = stream.items, []

        async def main():
            try:
                items = await there.some()
            except HeadraceError as error:
                items = type(error).__name__
            await self.mortals.settle()
            return items

        items = self.mortals.run(main())
        if expected:
            assert [diaries(item)[0] for item in items] == [diary for _, diary in expected]
            if not stream.over:
                self.told.room(stream)
        else:
            self.streams.remove(one)
            assert items in [*(stream.error or [[]])], (items, stream)

    @precondition(lambda self: bool(self.streams))
    @rule(data=st.data())
    def leave_stream(self, data):
        one = data.draw(st.sampled_from(self.streams), "stream")
        stream, there, _ = one
        self.streams.remove(one)
        self.end_stream(stream, None)

        async def main():
            await there.aclose()
            await self.mortals.settle()

        self.mortals.run(main())

    def end_stream(self, stream, error):
        if stream.over:
            return
        stream.over, stream.error = True, error
        pending, stream.pending = stream.pending, []
        for request in pending:
            self.told.withdraw(request, self.now)
        for tale in [stream.own, *(request.own for request in pending)]:
            if tale is not None and tale in self.told.living:
                self.told.end(tale, "cancelled", self.now)

    def pump(self):
        """What streams do once some of their messages are answered."""
        changed = True
        while changed:
            changed = False
            for stream in [s for s, *_ in self.streams if not s.over]:
                changed |= self._pump(stream)

    def _pump(self, stream):
        done = [request for request in self.told.finished if request in stream.pending]
        if done and not stream.over:
            # One after another: what is asked for the first may begin a sequence before the second ends the stream.
            stream.pending.remove(done[0])
            if failed(done[0]):
                # When several end at once, any of them is the first that the stream hears of.
                errors = [one.result[1] for one in done if failed(one)]
                self.end_stream(stream, set().union(*errors))
                return True
            self._send_on(stream)
            return True
        if self._send_on(stream):
            return True
        if (
            not stream.over
            and stream.closed
            and not stream.messages
            and not stream.ending
            and len(stream.pending) < 2
        ):
            stream.ending = True
            own, stream.own = stream.own, None
            if own is not None and own in self.told.living:
                request = Request("end", stream=stream)
                request.own = own
                self.told.add(own, request, [], True, self.now)
                stream.pending.append(request)
            return True
        if not stream.over and stream.ending and not stream.pending:
            stream.over = True
            return True
        return False

    def _send_on(self, stream):
        """Ask what there is room for; whether that ended the stream."""
        while not stream.over and stream.messages and len(stream.pending) < 2:
            try:
                self.message(stream, *stream.messages.pop(0))
            except Refused as refused:
                self.end_stream(stream, {str(refused)})
                return True
        return False

    # What happens

    @precondition(lambda self: bool(self.working))
    @rule(
        data=st.data(),
        verdict=st.sampled_from(["go", "go", "go", "go", "go", "die", "die after", "die later"]),
    )
    def judge(self, data, verdict):
        at = data.draw(st.sampled_from(sorted(self.working)), "instance")
        self._judge(at, verdict)

    def _judge(self, at, verdict):
        tales = self.working.pop(at)
        backend = self.mortals.backends[at]
        backend.died_in = None
        backend.judge(verdict)
        self.mortals.run(self.mortals.settle())
        self.told.heard(self.mortals.model.ended)
        if backend.died_in is not None:
            self.told.died(at, tales + self.ready.pop(at, []), backend.died_in, self.now)
        else:
            assert verdict in ("go", "die later")
            self.beside[at] = self.taken_beside(at)
            self.told.stepped(tales, self.now)

    @rule(at=st.integers(0, 1))
    def die(self, at):
        if at in self.working:
            return
        self.told.heard(self.mortals.model.ended)
        self.told.died(at, [], [], self.now)
        self.mortals.backends[at].kill()
        self.mortals.run(self.mortals.settle())

    @rule(seconds=st.sampled_from([1.0, 4.0, 6.0, 11.0]))
    def wait(self, seconds):
        self.mortals.clock.advance(seconds)
        self.told.expire(self.now)
        self.look()
        self.mortals.run(self.mortals.settle())

    def look(self):
        """What the engine tells of the living."""
        self.told.expire(self.now)
        infos = self.engine.sequences()
        self.learn()
        known = [tale for tale in self.told.living if not tale.anonymous]
        assert [info.id for info in infos] == [
            tale.id or info.id for tale, info in zip(known, infos, strict=True)
        ]
        for tale, info in zip(known, infos, strict=True):
            tale.id = info.id
            if tale not in self.stirring:
                assert (info.steps, info.requests) == (tale.steps, len(tale.parts)), (info, tale)

    stirring = ()

    # Looking

    def learn(self):
        """Which steps were taken, and by whom."""
        self.overdue()
        for at, backend in enumerate(self.mortals.backends):
            held = backend.held
            if at in self.working:
                held = None
            elif at in self.ready:
                self.pass_over(at, held)
            if held is not None:
                self.working[at] = self.begun(at, held)
            ready = self.mortals.ready(at)
            if ready and at not in self.ready:
                self.ready[at] = [self.match(at, *row) for row in ready]
                assert len(set(map(id, self.ready[at]))) == len(ready) <= self.rows_max
                assert at in self.working, "a call is made ready, and none is made"

    def pass_over(self, at, held):
        """The call that was made ready is not made where nobody wants any of its steps."""
        tokens = {token for _, token, _ in held or ()}
        if not any(tale.doing_row[1] in tokens for tale in self.ready[at]):
            tales = self.ready.pop(at)
            for tale in tales:
                tale.late = True
                assert self.unwanted(tale), "a step that was taken is not done"
            self.told.stepped(tales, self.now)
            self.pump()

    def begun(self, at, held):
        """A call was begun: of steps that were taken just now, or before."""
        ready = self.ready.pop(at, [])
        if ready:
            tokens = [token for _, token, _ in held]
            doing = [tale for tale in ready if tale.doing_row[1] in tokens]
            assert [tale.doing_row[1] for tale in doing] == tokens
            for tale in ready:
                tale.late = tale not in doing
                assert not tale.late or self.unwanted(tale), "a step that was taken is not done"
            return ready
        beside = self.beside.pop(at, {})
        done = [beside.pop(token, None) or self.match(at, order, token, kind) for order, token, kind in held]
        doing = [*done, *beside.values()]
        doing += self.late(at, doing)
        assert len(set(map(id, doing))) == len(doing) <= self.rows_max
        if any(tale.doing_part.deaths for tale in doing):
            assert len(doing) == 1, "what may have killed an instance shares a call"
        return doing

    def unwanted(self, tale):
        """Whether nobody waits any more for the step that was taken."""
        request = tale.doing_part.request
        return request.left or (request.deadline is not None and request.deadline <= self.now)

    def match(self, at, order, token, kind):
        found = [tale for tale in self.waiting(at) if tale.parts[0].next == (token, kind)]
        assert len(found) == 1, ("a step that nobody asked for", order, token, kind, self.told.living)
        (tale,) = found
        part = tale.parts[0]
        if tale.id is None and not tale.anonymous:
            tale.id = order.id
        assert (order.id, order.steps, order.again) == (tale.id or "", tale.steps, part.times > 0), (
            order,
            tale,
        )
        assert order.end == (part.ends and part.row == len(part.rows) - 1)
        self.told.taken(tale, at)
        return tale

    def waiting(self, at):
        """Those whose next step could be taken there."""
        waiting = [tale for tale in self.told.living if tale.parts and not tale.doing and not tale.held]
        return [tale for tale in waiting if tale.at in (None, at)]

    def stepping(self, at):
        """The tokens of the steps that were taken there for the call in progress, of sequences that live."""
        current = [s.current for s in self.channel._table if s.place == at and s.stage == "stepping"]
        tokens = {int(part.step_tensors()["x"][0, 0]) for part in current}
        return tokens - {token for _, token, _ in self.mortals.ready(at)}

    def taken_beside(self, at):
        """What the next call has that needs nothing of the last: what came of that may have been settled when they were taken.

        Those that nobody wanted any more then are not done, but over with that call.
        """
        held = {token: (order, kind) for order, token, kind in self.mortals.backends[at].held or ()}
        stepping = self.stepping(at)
        taken = {}
        for tale in self.waiting(at):
            token, kind = tale.parts[0].next
            if token in held:
                taken[token] = self.match(at, held[token][0], token, kind)
            elif token in stepping:
                self.told.taken(tale, at, late=True)
                taken[token] = tale
        return taken

    def late(self, at, doing):
        """Those that were taken with these, when nobody wanted them any more: they are over when the call is."""
        rest = self.stepping(at) - {tale.doing_row[1] for tale in doing}
        tales = [tale for tale in self.waiting(at) if tale.parts[0].next[0] in rest]
        assert len(tales) == len(rest), ("steps are being done that nobody asked for", rest, tales)
        for tale in tales:
            self.told.taken(tale, at, late=True)
            assert self.unwanted(tale), "a step that was taken is not done"
        return tales

    def overdue(self):
        """Those whose time was over before an instance came to them, with nothing else to do."""
        for request, future in self.calls:
            if request.result is None and request.deadline is not None and request.deadline <= self.now:
                for tale in self.told.living:
                    if tale.parts and tale.parts[0].request is request and not tale.doing and future.done():
                        self.told.expired(tale, self.now)
                        break

    @invariant()
    def as_the_reference_says(self):
        if self.mortals is None:
            return
        for _ in range(4):
            self.pump()
            self.learn()
        self.check_calls()
        self.check_nothing_is_lost()
        self.check_all_is_told()
        self.look()
        held_by_table = len(self.channel._table)
        assert held_by_table == len(self.told.living)
        assert self.channel._table.requests == sum(len(tale.parts) for tale in self.told.living)

    def check_calls(self):
        still = []
        for request, future in self.calls:
            assert (request.result is not None) == future.done(), (request, future)
            if request.result is None:
                still.append((request, future))
            else:
                self.check_answer(request, future)
        self.calls = still

    def check_answer(self, request, future):
        what = request.result[0]
        if what == "left":
            assert future.cancelled()
            return
        error = future.exception()
        if what == "error":
            assert type(error).__name__ in request.result[1], (error, request)
            return
        assert error is None, (error, request)
        response = future.result()
        assert diaries(response) == request.result[1]
        assert {failure.row for failure in response.failures} == request.result[2]
        if request.told is not None and not request.by_rows:
            tale = request.told["id"]
            tale.id = tale.id or response.parameters["sequence_id"]
            assert response.parameters["sequence_id"] == tale.id
            # What has ended a moment later may be told already.
            end = response.parameters.get("sequence_end", False)
            assert (request.told["end"], tale.why is not None) in [(end, end), (end, True), (False, end)]

    def check_nothing_is_lost(self):
        """Whatever can be stepped is stepped, unless its instance is busy."""
        for tale in self.told.living:
            ready = tale.parts and not tale.doing and not tale.held
            if ready:
                busy = self.working if tale.at is None else tale.at in self.working
                assert busy, (tale, self.shown())

    def check_all_is_told(self):
        """An instance that has nothing to do has told its model of all that is over."""
        self.told.heard(self.mortals.model.ended)
        for told in self.told.untold:
            busy = self.working if told.tale.at is None else told.tale.at in self.working
            assert busy, (told.tale.at, self.shown(), told, self.mortals.model.ended)

    def shown(self):
        """How things are, for whoever reads of a failure."""
        return [
            [(s.id, str(s.stage), s.place, s.steps) for s in self.channel._table],
            [(len(p), p.asleep, p.running, p.endings) for p in self.channel._places],
            [(b.held, b.lost) for b in self.mortals.backends],
            [str(t) for t in __import__("threading").enumerate()],
        ]

    def teardown(self):
        if self.mortals is None:
            self.patch.undo()
            return
        try:
            for _ in range(400):
                self.as_the_reference_says()
                if self.working:
                    self._judge(min(self.working), "go")
                elif readable := [one for one in self.streams if one[0].items or one[0].over]:
                    self._read(readable[0])
                else:
                    break
            assert not self.calls, "requests that never end"
            self.finish()
        finally:
            self.mortals.close()
            self.patch.undo()
        self.check_told()

    def finish(self):
        for stream, there, _ in self.streams:
            self.end_stream(stream, None)
            self.mortals.run(there.aclose())
        self.mortals.run(self.mortals.settle())
        self.as_the_reference_says()
        for tale in list(self.told.living):
            self.told.end(tale, "stopped", self.now)

    def check_told(self):
        told = [told.shown for told in self.told.told]
        heard = [(id, why, steps, str(diary)) for id, why, steps, diary in self.mortals.model.ended]
        lacks, more = Counter(told) - Counter(heard), Counter(heard) - Counter(told)
        # What a stream's error ended may have been taken at that moment, and not be done: then the model is told of it.
        never_stepped = all(steps == 0 and diary == "[]" for _, _, steps, diary in more)
        assert not lacks, (lacks, more)
        assert never_stepped, (lacks, more)
        assert (len(self.channel._table), self.channel._parts, self.channel._put) == (0, {}, {})
        assert [len(backend._stepper) for backend in self.mortals.backends] == [0, 0]


Sequences.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestSequences = Sequences.TestCase
