"""Random clients of an engine while its instances are added, removed and killed: no request is lost."""

import asyncio
import contextlib
import os
import random
import signal
import threading
from concurrent.futures import CancelledError

import pytest

import levels
from engine.resizing_models import BAD, Adding, Plain
from engine.sequences.models import end, more, start, step_request
from engine.support import WAIT_S, InstantClock, no_leaks, request, rows, values
from headrace.core import HandleRequest
from headrace.core.errors import (
    CancelledRequestError,
    DeadlineError,
    InstanceLostError,
    PredictError,
    SequenceLostError,
)
from headrace.engine import Engine
from headrace.engine.settings import ServeSettings
from servers import polling

pytestmark = pytest.mark.timeout(300)
INSTANCES_MAX = 4
CLIENTS = 6
OPERATIONS = levels.by_level(60, 150, 2000)
"""Operations of each client."""


class Bench:
    """An engine, the numbers of requests that were sent to it, and the progress of its clients."""

    def __init__(self, engine, seed, *, kills):
        self.engine = engine
        self.seed = seed
        self.kills = kills
        self.lost = (InstanceLostError, SequenceLostError) if kills else ()
        """Errors that a kill excuses."""
        self.sent = self.uncounted = 0
        self._lock = threading.Lock()
        self._progress = threading.Condition()
        self._done = 0
        self._ended = False

    def count(self):
        """Count one request."""
        with self._lock:
            self.sent += 1

    def uncount(self):
        """Count a request that the engine may count, or not: a stream of steps that its client left."""
        with self._lock:
            self.uncounted += 1

    def advance(self):
        """Count one operation of a client."""
        with self._progress:
            self._done += 1
            self._progress.notify_all()

    def end(self):
        """End the threads that follow the progress."""
        with self._progress:
            self._ended = True
            self._progress.notify_all()

    def goes_on(self, operations):
        """Wait until this many more operations are done. Return False after the last client."""
        with self._progress:
            until = self._done + operations
            assert self._progress.wait_for(lambda: self._ended or self._done >= until, WAIT_S)
            return not self._ended

    def resize(self, number):
        """Change the number of instances until the clients have ended."""
        chance = random.Random(f"{self.seed} resizes {number}")
        while self.goes_on(chance.randrange(1, 8)):
            self.engine.set_instances(chance.randint(1, INSTANCES_MAX))

    def kill(self):
        """Kill processes of instances until the clients have ended."""
        chance = random.Random(f"{self.seed} kills")
        while self.goes_on(25):
            backend = chance.choice(self.engine._session.slots).backend
            pid = None if backend is None else backend.pid
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):  # it has exited by itself since
                    os.kill(pid, signal.SIGKILL)


def is_abandoned(future):
    """Return True if a future ended because its client gave it up."""
    return future.cancelled() or isinstance(future.exception(0), CancelledRequestError)


class Client:
    """One client: each operation is one request, or one stream, with its expected outcome."""

    def __init__(self, bench, number):
        self.bench = bench
        self.engine = bench.engine
        self.chance = random.Random(f"{bench.seed} client {number}")
        self.number = number

    def numbers(self, least=1):
        """Return random values, a few rows."""
        return [float(self.chance.randrange(60)) for _ in range(self.chance.randint(least, 6))]

    def deadline(self):
        return self.engine._clock.now() + self.chance.choice((-1.0, 0.0005, 0.002, 2 * WAIT_S))

    async def result(self, sent):
        """Return the response to `infer`, or None if its client leaves, or it expires or is lost."""
        self.bench.count()
        task = asyncio.create_task(self.engine.infer(sent))
        if self.chance.random() < 0.15:
            for _ in range(self.chance.randint(1, 4)):
                await asyncio.sleep(0)
            task.cancel()
        try:
            return await asyncio.wait_for(task, WAIT_S)
        except asyncio.CancelledError:
            return None
        except DeadlineError:
            assert sent.deadline is not None
        except self.bench.lost:
            pass
        return None

    def submitted(self, sent, **options):
        """Return the response to `submit`, or None if its client leaves, or it is lost."""
        self.bench.count()
        future = self.engine.submit(sent, alone=self.chance.random() < 0.3, **options)
        left = self.chance.choice((None, None, future.cancel, lambda: self.engine.abandon(future)))
        if left is not None:
            left()
        try:
            return future.result(WAIT_S)
        except (CancelledError, CancelledRequestError):
            assert left is not None
        except self.bench.lost:
            pass
        return None

    async def run(self):
        """Do all operations."""
        for _ in range(OPERATIONS):
            await self.chance.choice(self.operations)(self)
            self.bench.advance()
        await self.finish()

    async def finish(self):
        """End what is open."""

    async def read(self, open_stream):
        """Return the values of a stream, or None if its client leaves, or it is lost."""
        leaves = self.chance.random() < 0.3
        found = []
        try:
            async with asyncio.timeout(WAIT_S), contextlib.aclosing(open_stream()) as stream:
                async for item in stream:
                    found += values(item)
                    if leaves:
                        return None
        except self.bench.lost:
            return None
        return found


class PlainClient(Client):
    """A client of `Plain`."""

    async def infer(self):
        sent = self.numbers()
        deadline = self.deadline() if self.chance.random() < 0.3 else None
        response = await self.result(request(rows(*sent), deadline=deadline))
        assert response is None or values(response) == [2 * value for value in sent]

    async def bad(self):
        """One bad row fails its request, and no other one."""
        self.bench.count()
        with pytest.raises((PredictError, *self.bench.lost)):
            await asyncio.wait_for(self.engine.infer(request(rows(1.0, BAD))), WAIT_S)

    async def submit(self):
        sent = self.numbers()
        response = await asyncio.to_thread(self.submitted, request(rows(*sent)))
        assert response is None or values(response) == [2 * value for value in sent]

    async def stream(self):
        count = self.chance.randint(1, 4)

        async def later():
            for value in range(1, count):
                yield request(rows(float(value)))

        found = await self.read(lambda: self.engine.stream(request(rows(0.0)), later()))
        assert found is None or found == [2.0 * value for value in range(count)]

    async def handle(self):
        body = self.chance.choice((b"a", b"bad", b"chunks a", b"chunks b"))
        self.bench.count()
        try:
            async with asyncio.timeout(WAIT_S):
                response, chunks = await self.engine.handle(HandleRequest({"body": body}))
        except PredictError:
            assert body == b"bad"
            return
        except self.bench.lost:
            return
        if chunks is None:
            assert response.body == body * 2
            return
        try:
            async with asyncio.timeout(WAIT_S):
                if self.chance.random() < 0.7:
                    assert b"".join([chunk async for chunk in chunks]) == body * 3
        except self.bench.lost:
            pass
        finally:
            await chunks.aclose()

    operations = (infer, infer, submit, bad, stream, handle)


class StepClient(Client):
    """A client of `Adding`, with one sequence at a time."""

    def __init__(self, bench, number):
        super().__init__(bench, number)
        self.sequences = 0
        self.total = None
        """The sum of the live sequence, or None if there is none."""

    @property
    def id(self):
        return f"{self.number}/{self.sequences}"

    async def step(self):
        """Do steps of the sequence; begin one, or end it, sometimes."""
        sent = self.numbers()
        ends = self.chance.random() < 0.15
        if self.total is None:
            self.sequences += 1
            self.total, asked = 0.0, start(self.id, *sent)
        else:
            asked = (end if ends else more)(self.id, *sent)
        response = await self.answer(asked)
        if response is None:
            # How many steps are done is unknown.
            self.engine.cancel_sequence(self.id)
            self.total = None
            return
        assert values(response) == self.sums(sent, self.total)
        self.total = None if asked.parameters.get("sequence_end") else values(response)[-1]

    async def answer(self, asked):
        if self.chance.random() < 0.5:
            return await self.result(asked)
        return await asyncio.to_thread(self.submitted, asked, strict=True)

    @staticmethod
    def sums(sent, total=0.0):
        """Return the sums after each step."""
        return [total + sum(sent[: count + 1]) for count in range(len(sent))]

    async def single(self):
        """Do the steps of a request without a sequence."""
        sent = self.numbers()
        response = await self.answer(step_request(*sent))
        assert response is None or values(response) == self.sums(sent)

    async def stream(self):
        sent = self.numbers()
        self.bench.count()
        found = await self.read(lambda: self.engine.stream(step_request(*sent)))
        assert found is None or found == self.sums(sent)
        if found is None:
            self.bench.uncount()

    async def bad(self):
        """A failed step changes nothing."""
        if self.total is not None:
            self.bench.count()
            with pytest.raises((PredictError, *self.bench.lost)) as raised:
                await asyncio.wait_for(self.engine.infer(more(self.id, BAD)), WAIT_S)
            if not raised.errisinstance(PredictError):
                self.engine.cancel_sequence(self.id)
                self.total = None

    async def finish(self):
        if self.total is not None:
            self.engine.cancel_sequence(self.id)

    operations = (step, step, step, step, single, stream, bad)


def run_clients(bench, kind):
    """Run the clients in one event loop, beside two threads that resize and one that kills."""
    beside = [threading.Thread(target=bench.resize, args=(number,)) for number in range(2)]
    if bench.kills:
        beside.append(threading.Thread(target=bench.kill))

    async def clients():
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(kind(bench, number).run())

    for thread in beside:
        thread.start()
    try:
        asyncio.run(clients())
    finally:
        bench.end()
        for thread in beside:
            thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in beside)


def assert_all_ended(bench):
    """Assert that every request ended once, and that only the wanted instances are left."""
    engine, session = bench.engine, bench.engine._session
    engine.set_instances(2)
    polling.wait_until(lambda: engine.instance_counts() == (2, 2, 0), timeout_s=WAIT_S)
    figures = engine.model_statistics()
    ended = figures.success.count + figures.fail.count + figures.cancelled + figures.expired
    assert bench.sent - bench.uncounted <= ended <= bench.sent
    assert figures.refused == 0
    assert (figures.in_flight, figures.waiting_requests, figures.open_streams) == (0, 0, 0)
    assert session.queue._entries_by_future == {}
    if session.sequences is not None:
        assert len(session.sequences.table) == 0
        assert session.sequences._row_requests == {}
    # Each instance that ends beside the members has a client, or was removed a moment ago.
    assert len(session.slots) <= INSTANCES_MAX + 2 * CLIENTS


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("make", "kind", "checkpoints"),
    [(Plain, PlainClient, None), (Adding, StepClient, None), (Adding, StepClient, "memory:")],
)
@pytest.mark.parametrize("seed", range(levels.by_level(1, 1, 20)))
def test_no_request_is_lost_while_instances_come_and_go(make, kind, checkpoints, isolation, seed):
    settings = ServeSettings(
        isolation=isolation, checkpoints=checkpoints, queue_rows_max=10_000, streams_max=1000
    )
    with no_leaks():
        engine = Engine(make, name="m", serving=settings, in_flight_max=64, clock=InstantClock())
        engine.start()
        try:
            bench = Bench(engine, seed, kills=isolation == "process")
            run_clients(bench, kind)
            assert_all_ended(bench)
        finally:
            engine.stop(drain=False)
