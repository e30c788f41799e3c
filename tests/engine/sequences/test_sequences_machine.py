"""Sequences of an engine compared with a plain reference, under everything that can happen at once."""

import asyncio
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import headrace.engine.streams
from engine.sequences.controlled_engine import ControlledEngine, diaries, diary_request
from engine.sequences.reference import Reference, Refused, Request, Stream
from headrace.core.errors import HeadraceError
from headrace.core.sequence import SequenceLimits

ITEMS_MAX = 2
IN_FLIGHT_MAX = 2

ids = st.sampled_from(["a", "b", "c"])
kinds = st.sampled_from(["plain", "plain", "plain", "fail", "refuse", "on1", "on2", "silent", "over"])
starts = st.sampled_from([False, True, "auto", "auto"])


def failed(request):
    """Return True if the result of this message ends its stream, other than a late end of its own
    sequence.
    """
    needless = not any(part.rows for part in request.parts) and request.own is not None
    return request.result[0] == "error" and not needless


class Sequences(RuleBasedStateMachine):
    """Two instances, each with one call at a time that waits for its verdict."""

    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(headrace.engine.streams, "ITEMS_MAX", ITEMS_MAX)
        self.controlled = None
        self.tokens = 0
        self.calls = []
        """Requests of `infer` and `submit`: the reference's request, and the task or future."""
        self.streams = []
        self.working = {}
        """The reference's sequences in the call of each instance."""
        self.ready = {}
        """The sequences of each instance's prepared call."""
        self.beside = {}
        """By token: sequences whose steps may have been taken for the next call before the last
        commit.
        """

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
        self.controlled = ControlledEngine(
            limits, instances=2, in_flight_max=IN_FLIGHT_MAX, rows_max=rows_max
        )
        self.rows_max = rows_max
        self.engine, self.queue = self.controlled.engine, self.controlled.queue
        self.sequences = self.controlled.sequences
        self.reference = Reference(limits, requests_max=2, items_max=ITEMS_MAX)
        self.controlled.run(self.controlled.wait_idle())

    @property
    def now(self):
        return self.controlled.clock.now()

    def rows(self, some):
        self.tokens += len(some)
        return [(self.tokens - len(some) + i, kind) for i, kind in enumerate(some)]

    # Clients

    def refusal(self, request, asks):
        """Send a request to the reference. Return the name of the error that refuses it, or None."""
        try:
            self.reference.ask(request, asks, self.now)
        except Refused as refused:
            request.result = ("error", {str(refused)})
            return str(refused)
        return None

    def put(self, request, sent, *, submit=False):
        """Send a request to the engine; results are compared later."""

        async def ask():
            return await self.engine.infer(sent)

        async def main():
            if submit:
                future = self.engine.submit(sent, strict=request.strict)
            else:
                future = asyncio.ensure_future(ask())
            self.calls.append((request, future))
            await self.controlled.wait_idle()

        self.controlled.run(main())

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
        self.refusal(request, [(id, start, end, placed)])
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
        self.refusal(request, asks)
        tensors = {
            "sequence_id": np.array([id for id, *_ in which], object),
            "sequence_start": np.array([start for _, start, *_ in which]),
            "sequence_end": np.array([end for _, _, end, _ in which]),
        }
        sent = diary_request(rows, {"sequence_start": "auto"} if auto else {}, tensors=tensors)
        self.put(request, sent, submit=not strict)

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
        self.refusal(request, [(id, start, end, placed)])
        parameters = {"sequence_id": id, "sequence_start": start, "sequence_end": end}
        self.put(request, diary_request(rows, parameters, deadline=deadline), submit=True)

    def unanswered(self):
        return len(self.queue._entries_by_future)

    @rule(id=ids, by_request=st.booleans())
    def cancel(self, id, by_request):
        lived = self.reference.cancel(id, self.now)
        if by_request:
            request = Request(f"r{len(self.calls)}")
            request.result = ("rows", [], set()) if lived else ("error", {"SequenceGoneError"})
            self.put(request, diary_request(None, {"sequence_id": id, "sequence_cancel": True}))
        else:
            assert self.engine.cancel_sequence(id) == lived
            self.controlled.run(self.controlled.wait_idle())

    @precondition(lambda self: any(request.result is None for request, _ in self.calls))
    @rule(data=st.data())
    def leave(self, data):
        waiting = [(request, future) for request, future in self.calls if request.result is None]
        request, future = data.draw(st.sampled_from(waiting), "who leaves")
        self.reference.withdraw(request, self.now)

        task = isinstance(future, asyncio.Task)
        if request.is_started and not task:
            # A cancelled future would mean that nothing was begun.
            request.result = ("error", {"CancelledRequestError"})

        async def main():
            if task:
                future.cancel()
            else:
                self.engine.abandon(future)
            await self.controlled.wait_idle()

        self.controlled.run(main())

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
            await self.controlled.wait_idle()

        self.controlled.run(main())
        if why is None and single:
            stream.closed = True
            self.pump()

    def message(self, stream, id, start, end, rows):
        """Send one message of a stream to the reference."""
        request = Request(f"m{self.tokens}", stream=stream)
        placed = [(place, *row) for place, row in enumerate(rows)]
        own = not id and not stream.single
        if own and stream.own is not None:
            # The model has ended the stream's own sequence.
            if stream.own not in self.reference.living:
                raise Refused(
                    "SequenceLostError" if stream.own.why == "instance_lost" else "SequenceGoneError"
                )
            if max(len(stream.own.parts) - 1, 0) >= 2:
                raise Refused("SequenceFullError")
            part_of = stream.own
            self.reference.expire(self.now)
            if part_of not in self.reference.living:
                raise Refused("SequenceGoneError")
            self.reference.add(part_of, request, placed, end, self.now)
        else:
            self.reference.ask(request, [(id, True if own else start, end, placed)], self.now)
            if own:
                stream.own = self.reference.living[-1]
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
            await self.controlled.wait_idle()

        self.controlled.run(main())
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
            await self.controlled.wait_idle()

        self.controlled.run(main())
        self.pump()

    @precondition(lambda self: any(s.items or s.over for s, *_ in self.streams))
    @rule(data=st.data())
    def read(self, data):
        """Read all items of a stream; its error or end if there are none."""
        able = [one for one in self.streams if one[0].items or one[0].over]
        one = data.draw(st.sampled_from(able), "stream")
        self._read(one)

    def _read(self, one):
        stream, there, _ = one
        expected, stream.items = stream.items, []

        async def main():
            try:
                items = await there.next_batch()
            except HeadraceError as error:
                items = type(error).__name__
            await self.controlled.wait_idle()
            return items

        items = self.controlled.run(main())
        if expected:
            assert [diaries(item)[0] for item in items] == [diary for _, diary in expected]
            if not stream.over:
                self.reference.room(stream)
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
            await self.controlled.wait_idle()

        self.controlled.run(main())

    def end_stream(self, stream, error):
        if stream.over:
            return
        stream.over, stream.error = True, error
        pending, stream.pending = stream.pending, []
        for request in pending:
            self.reference.withdraw(request, self.now)
        for sequence in [stream.own, *(request.own for request in pending)]:
            if sequence is not None and sequence in self.reference.living:
                self.reference.end(sequence, "cancelled", self.now)

    def pump(self):
        """Do what streams do once some of their messages are complete."""
        changed = True
        while changed:
            changed = False
            for stream in [s for s, *_ in self.streams if not s.over]:
                changed |= self._pump(stream)

    def _pump(self, stream):
        done = [request for request in self.reference.finished if request in stream.pending]
        if done and not stream.over:
            # One by one: the first may start a sequence before the second ends the stream.
            stream.pending.remove(done[0])
            if failed(done[0]):
                # If several end at once, any of them may be the stream's error.
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
            if own is not None and own in self.reference.living:
                request = Request("end", stream=stream)
                request.own = own
                self.reference.add(own, request, [], True, self.now)
                stream.pending.append(request)
            return True
        if not stream.over and stream.ending and not stream.pending:
            stream.over = True
            return True
        return False

    def _send_on(self, stream):
        """Send the waiting messages, up to the limit. Return True if that ended the stream."""
        while not stream.over and stream.messages and len(stream.pending) < 2:
            try:
                self.message(stream, *stream.messages.pop(0))
            except Refused as refused:
                self.end_stream(stream, {str(refused)})
                return True
        return False

    # Events

    @precondition(lambda self: bool(self.working))
    @rule(
        data=st.data(),
        verdict=st.sampled_from(["go", "go", "go", "go", "go", "die", "die after", "die later"]),
    )
    def judge(self, data, verdict):
        at = data.draw(st.sampled_from(sorted(self.working)), "instance")
        self._judge(at, verdict)

    def _judge(self, at, verdict):
        sequences = self.working.pop(at)
        backend = self.controlled.backends[at]
        backend.died_in = None
        backend.judge(verdict)
        self.controlled.run(self.controlled.wait_idle())
        self.reference.receive(self.controlled.model.ended)
        if backend.died_in is not None:
            self.reference.died(at, sequences + self.ready.pop(at, []), backend.died_in, self.now)
        else:
            assert verdict in ("go", "die later")
            self.beside[at] = self.taken_beside(at)
            self.reference.stepped(sequences, self.now)

    @rule(at=st.integers(0, 1))
    def die(self, at):
        if at in self.working:
            return
        self.reference.receive(self.controlled.model.ended)
        self.reference.died(at, [], [], self.now)
        self.controlled.backends[at].kill()
        self.controlled.run(self.controlled.wait_idle())

    @rule(seconds=st.sampled_from([1.0, 4.0, 6.0, 11.0]))
    def wait(self, seconds):
        self.controlled.clock.advance(seconds)
        self.reference.expire(self.now)
        self.look()
        self.controlled.run(self.controlled.wait_idle())

    def look(self):
        """Compare the listed sequences."""
        self.reference.expire(self.now)
        infos = self.engine.sequences()
        self.learn()
        known = [sequence for sequence in self.reference.living if not sequence.anonymous]
        assert [info.id for info in infos] == [
            sequence.id or info.id for sequence, info in zip(known, infos, strict=True)
        ]
        for sequence, info in zip(known, infos, strict=True):
            sequence.id = info.id
            if sequence not in self.stirring:
                assert (info.steps, info.requests) == (sequence.steps, len(sequence.parts)), (info, sequence)

    stirring = ()

    # Checks

    def learn(self):
        """Find out which steps were taken, and by which instance."""
        self.overdue()
        for at, backend in enumerate(self.controlled.backends):
            held = backend.held
            if at in self.working:
                held = None
            elif at in self.ready:
                self.pass_over(at, held)
            if held is not None:
                self.working[at] = self.call_begun(at, held)
            ready = self.controlled.ready(at)
            if ready and at not in self.ready:
                self.ready[at] = [self.match(at, *row) for row in ready]
                assert len(set(map(id, self.ready[at]))) == len(ready) <= self.rows_max
                assert at in self.working, "a call is made ready, and none is made"

    def pass_over(self, at, held):
        """Expire a prepared call that no client wants."""
        tokens = {token for _, token, _ in held or ()}
        if not any(sequence.doing_row[1] in tokens for sequence in self.ready[at]):
            sequences = self.ready.pop(at)
            for sequence in sequences:
                sequence.late = True
                assert self.unwanted(sequence), "a step that was taken is not done"
            self.reference.stepped(sequences, self.now)
            self.pump()

    def call_begun(self, at, held):
        """Match a call that has begun: of steps that were taken just now, or before."""
        ready = self.ready.pop(at, [])
        if ready:
            tokens = [token for _, token, _ in held]
            doing = [sequence for sequence in ready if sequence.doing_row[1] in tokens]
            assert [sequence.doing_row[1] for sequence in doing] == tokens
            for sequence in ready:
                sequence.late = sequence not in doing
                assert not sequence.late or self.unwanted(sequence), "a step that was taken is not done"
            return ready
        beside = self.beside.pop(at, {})
        done = [beside.pop(token, None) or self.match(at, order, token, kind) for order, token, kind in held]
        doing = [*done, *beside.values()]
        doing += self.late(at, doing)
        assert len(set(map(id, doing))) == len(doing) <= self.rows_max
        if any(sequence.doing_part.deaths for sequence in doing):
            assert len(doing) == 1, "what may have killed an instance shares a call"
        return doing

    def unwanted(self, sequence):
        """Return True if no client wants the taken step."""
        request = sequence.doing_part.request
        return request.left or (request.deadline is not None and request.deadline <= self.now)

    def match(self, at, order, token, kind):
        found = [sequence for sequence in self.waiting(at) if sequence.parts[0].next == (token, kind)]
        assert len(found) == 1, ("a step without a request", order, token, kind, self.reference.living)
        (sequence,) = found
        part = sequence.parts[0]
        if sequence.id is None and not sequence.anonymous:
            sequence.id = order.id
        assert (order.id, order.steps, order.again) == (sequence.id or "", sequence.steps, part.times > 0), (
            order,
            sequence,
        )
        assert order.end == (part.ends and part.row == len(part.rows) - 1)
        self.reference.taken(sequence, at)
        return sequence

    def waiting(self, at):
        """Return the sequences whose next step an instance may take."""
        waiting = [
            sequence
            for sequence in self.reference.living
            if sequence.parts and not sequence.doing and not sequence.held
        ]
        return [sequence for sequence in waiting if sequence.at in (None, at)]

    def stepping(self, at):
        """Return the tokens of the steps taken for the call in progress, of live sequences."""
        current = [s.current for s in self.sequences.table if s.instance == at and s.stage == "stepping"]
        tokens = {int(part.step_tensors()["x"][0, 0]) for part in current}
        return tokens - {token for _, token, _ in self.controlled.ready(at)}

    def taken_beside(self, at):
        """Return the steps of the next call that are independent of the last one, which may be
        committed later.

        Unwanted steps are not done, but end with that call.
        """
        held = {token: (order, kind) for order, token, kind in self.controlled.backends[at].held or ()}
        stepping = self.stepping(at)
        taken = {}
        for sequence in self.waiting(at):
            token, kind = sequence.parts[0].next
            if token in held:
                taken[token] = self.match(at, held[token][0], token, kind)
            elif token in stepping:
                self.reference.taken(sequence, at, late=True)
                taken[token] = sequence
        return taken

    def late(self, at, doing):
        """Return the steps that were unwanted when they were taken: they end with the call."""
        rest = self.stepping(at) - {sequence.doing_row[1] for sequence in doing}
        sequences = [sequence for sequence in self.waiting(at) if sequence.parts[0].next[0] in rest]
        assert len(sequences) == len(rest), ("steps without requests are being done", rest, sequences)
        for sequence in sequences:
            self.reference.taken(sequence, at, late=True)
            assert self.unwanted(sequence), "a step that was taken is not done"
        return sequences

    def overdue(self):
        """Expire requests whose deadline passed before an idle instance took them."""
        for request, future in self.calls:
            if request.result is None and request.deadline is not None and request.deadline <= self.now:
                for sequence in self.reference.living:
                    if (
                        sequence.parts
                        and sequence.parts[0].request is request
                        and not sequence.doing
                        and future.done()
                    ):
                        self.reference.expired(sequence, self.now)
                        break

    @invariant()
    def as_the_reference_says(self):
        if self.controlled is None:
            return
        for _ in range(4):
            self.pump()
            self.learn()
        self.check_calls()
        self.check_nothing_is_lost()
        self.check_all_is_reported()
        self.look()
        held_by_table = len(self.sequences.table)
        assert held_by_table == len(self.reference.living)
        assert self.sequences.table.requests == sum(len(sequence.parts) for sequence in self.reference.living)

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
        if request.parameters is not None and not request.by_rows:
            sequence = request.parameters["id"]
            sequence.id = sequence.id or response.parameters["sequence_id"]
            assert response.parameters["sequence_id"] == sequence.id
            # An end a moment later may be reported already.
            end = response.parameters.get("sequence_end", False)
            assert (request.parameters["end"], sequence.why is not None) in [
                (end, end),
                (end, True),
                (False, end),
            ]

    def check_nothing_is_lost(self):
        """Assert that every ready step is taken, unless its instance is busy."""
        for sequence in self.reference.living:
            ready = sequence.parts and not sequence.doing and not sequence.held
            if ready:
                assert self.is_busy(sequence), (sequence, self.shown())

    def check_all_is_reported(self):
        """Assert that idle instances have reported all ends to the model."""
        self.reference.receive(self.controlled.model.ended)
        unreported = Counter(end.shown for end in self.reference.unreported)
        # Equal ends are interchangeable: as many may wait as belong to busy instances.
        waiting = Counter(end.shown for end in self.reference.reported if self.is_busy(end.sequence))
        assert not unreported - waiting, (unreported, self.shown(), self.controlled.model.ended)

    def is_busy(self, sequence):
        """Return True if the instance of a sequence, or any of them, has a call that waits."""
        return bool(self.working) if sequence.at is None else sequence.at in self.working

    def shown(self):
        """Return the state of the engine, for failure messages."""
        return [
            [(s.id, str(s.stage), s.instance, s.steps) for s in self.sequences.table],
            [(len(r), r.is_asleep, r.running) for r in self.sequences.ready],
            self.sequences.endings,
            [(b.held, b.lost) for b in self.controlled.backends],
        ]

    def teardown(self):
        if self.controlled is None:
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
            self.controlled.close()
            self.patch.undo()
        self.check_reports()

    def finish(self):
        for stream, there, _ in self.streams:
            self.end_stream(stream, None)
            self.controlled.run(there.aclose())
        self.controlled.run(self.controlled.wait_idle())
        self.as_the_reference_says()
        for sequence in list(self.reference.living):
            self.reference.end(sequence, "stopped", self.now)

    def check_reports(self):
        reported = [end.shown for end in self.reference.reported]
        received = [(id, why, steps, str(diary)) for id, why, steps, diary in self.controlled.model.ended]
        lacks, more = Counter(reported) - Counter(received), Counter(received) - Counter(reported)
        # A step of a failed stream may be taken and not done: then the model is told of its end.
        never_stepped = all(steps == 0 and diary == "[]" for _, _, steps, diary in more)
        assert not lacks, (lacks, more)
        assert never_stepped, (lacks, more)
        assert (len(self.sequences.table), self.sequences._row_requests, self.queue._entries_by_future) == (
            0,
            {},
            {},
        )
        assert [len(backend._stepper) for backend in self.controlled.backends] == [0, 0]


Sequences.TestCase.settings = settings(
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)
TestSequences = Sequences.TestCase


def test_step_that_fails_after_its_deadline_reports_the_deadline():
    """A case that the machine found: the deadline passes during the call, and then the model
    raises.
    """
    machine = Sequences()
    machine.begin(interleave=False, evict=None, total=None, live_max=2, rows_max=3)
    machine.as_the_reference_says()
    machine.submit(id="a", start=True, some=["fail"], end=False, strict=True, left_s=3.0)
    machine.as_the_reference_says()
    machine.wait(4.0)
    machine.as_the_reference_says()
    ((request, _),) = machine.calls
    machine._judge(*machine.working, "go")
    machine.as_the_reference_says()
    assert request.result == ("error", {"DeadlineError"})
    machine.teardown()
