"""A model that keeps a diary of each sequence, and instances of it that a test lets go on, step by step, or lets die."""

import asyncio
import json
import threading

import numpy as np

from headrace.core import InferRequest, Model, RowError, Tensor
from headrace.core.errors import InstanceLostError
from headrace.core.sequence import SequenceLimits
from headrace.engine import Engine
from headrace.engine.backend import LocalBackend
from headrace.engine.settings import ServeSettings
from headrace.engine.stepper import Stepper
from headrace.testing import ManualClock

WAIT_S = 10.0
KINDS = ("plain", "fail", "refuse", "on1", "on2", "silent", "over")


class Diary(Model):
    """Writes the token of each row into its sequence's diary, and returns all of it; the kind says what else happens."""

    max_batch_rows = 3
    max_batch_delay_ms = 0.0

    def __init__(self):
        self.ended = []

    def step(self, states, x):
        """`x`: token and kind of each row."""
        refused = {}
        failed = False
        for row, (state, (token, kind)) in enumerate(zip(states, x.tolist(), strict=True)):
            name = KINDS[kind]
            diary = state.get("diary", [])
            times = sum(written == token for written, _ in diary)
            assert state.again == (times > 0)
            state["diary"] = [*diary, [token, times]]
            if name.startswith("on") and times < int(name[2:]):
                state.go_on()
            if name == "silent":
                state.skip_output()
            if name == "over":
                state.end_sequence()
            if name == "refuse":
                refused[row] = "refused"
            failed |= name == "fail"
        if failed:
            raise ValueError("odd")
        if refused:
            raise RowError(refused)
        return np.array([json.dumps(state["diary"]) for state in states], object)

    def sequence_ended(self, state, why):
        """The diary as it was left."""
        self.ended.append((state.id, str(why), state.steps, state.get("diary", [])))


class MortalBackend(LocalBackend):
    """A model in this process, each of whose steps waits for its verdict, and which may die as a process does."""

    def __init__(self, model, clock, settings):
        self.model = model
        super().__init__(lambda: model, "diary", clock=clock, settings=settings)
        self._cond = threading.Condition()
        self._dead = False
        self._verdict = None
        self._hook = None
        self._passed = set()
        self._retry = "go"
        self.open = False
        self.died_in = None
        """The tokens of the call that it died in last."""
        self.held = None
        """What each row of the call is that waits for its verdict: order, token, kind."""

    @property
    def lost(self):
        """See `Backend`."""
        return self._dead

    def on_lost(self, hook):
        """See `Backend`."""
        self._hook = hook

    def restart(self):
        """See `Backend`: no state is left."""
        self._stepper = Stepper(self.model, "diary")
        self._passed = set()
        self._dead = False

    def end_sequences(self, endings):
        """See `Backend`."""
        if self._dead:
            raise InstanceLostError("diary", "it is dead")
        super().end_sequences(endings)

    def step(self, parts, orders, call, **settings):
        """See `Backend`."""
        rows = shown(parts, orders)
        verdict = self._await_verdict(rows)
        if verdict == "die":
            self._die(rows)
        try:
            return super().step(parts, orders, call, **settings)
        finally:
            if verdict == "die after":
                self._die(rows)

    def _await_verdict(self, rows):
        tokens = {(order.number, order.steps, token) for order, token, _ in rows}
        with self._cond:
            if self._dead:
                raise InstanceLostError("diary", "it is dead")
            if self.open:
                return "go"
            if tokens <= self._passed:
                # A part of the call that was let go, and failed.
                return self._retry
            self.held, self._verdict = rows, None
            self._cond.wait_for(lambda: self._verdict is not None)
            verdict, self._passed, self._retry = self._verdict, tokens, "go"
            if verdict == "die later":
                verdict, self._retry = "go", "die"
            return verdict

    def _die(self, rows):
        self.died_in = [token for _, token, _ in rows]
        self._dead = True
        raise InstanceLostError("diary", "it died")

    # For the test

    def judge(self, verdict):
        """Let the call go on that is held."""
        with self._cond:
            self.held, self._verdict = None, verdict
            self._cond.notify_all()

    def open_up(self):
        """Let all go on, from now on."""
        with self._cond:
            self.open = True
            if self.held is not None:
                self.held, self._verdict = None, "go"
            self._cond.notify_all()

    def kill(self):
        """Die without being asked anything."""
        self._dead = True
        self._hook()


class _Clock(ManualClock):
    def sleep(self, seconds, wake=None):
        """Nothing is worth waiting for."""
        return bool(wake and wake.is_set())


class Mortals:
    """A running engine whose instances wait for verdicts, and an event loop for its callers."""

    def __init__(self, limits, *, instances=2, in_flight_max=2, rows_max=Diary.max_batch_rows):
        self.clock = _Clock()
        self.model = Diary()
        self.model.max_batch_rows = rows_max
        self.model.sequences = limits if isinstance(limits, SequenceLimits) else SequenceLimits(**limits)
        self.backends = []
        settings = ServeSettings(isolation="thread", instances=instances)
        self.engine = Engine(
            lambda: self.model, name="diary", serving=settings, in_flight_max=in_flight_max, clock=self.clock
        )
        self.engine._placement = self
        self._settings = settings
        self._lock = threading.Lock()
        self.engine.start()
        self.channel = self.engine._life.steps
        # In the order of the instances, whichever was loaded first.
        self.backends = [slot.backend for slot in self.engine._life.slots]
        self.loop = asyncio.new_event_loop()

    def load(self):
        """See `Placement`."""
        return MortalBackend(self.model, self.clock, self._settings)

    def inline(self, backend):
        """See `Placement`."""
        return False

    def run(self, coroutine):
        """What a coroutine comes to, which may not take long."""
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, WAIT_S))

    async def settle(self, *, settled=True):
        """Until every instance waits for a verdict or for work, and all answers are where they belong, if what came of calls is settled."""
        calm = 0
        async with asyncio.timeout(WAIT_S):
            while calm < 8:
                calm = calm + 1 if self.quiet(settled=settled) else 0
                await asyncio.sleep(0 if calm else 0.0002)

    def quiet(self, *, settled=True):
        """Whether no instance is on its way."""
        slots = self.engine._life.slots
        return all(
            (self.settled(at) or not settled) and (self.busy(at) or (place.asleep and slots[at].alive))
            for at, place in enumerate(self.channel._places)
        )

    def settled(self, at):
        """Whether nothing is done beside a call: what came of the last one is settled, and the next one is ready."""
        rounds = self._rounds(at)
        beside = (getattr(rounds, "_settling", None), getattr(rounds, "_next", None))
        return all(each is None or each.done() for each in beside)

    def unsettled(self, at):
        """What comes of the next call, if it is settled beside another, is so once this event is set."""
        free = threading.Event()
        self._rounds(at)._beside.submit(free.wait, WAIT_S)
        return free

    def _rounds(self, at):
        return self.engine._life.slots[at].gone.__self__

    def ready(self, at):
        """What each row of the next call is, where that was made ready: order, token, kind."""
        coming = getattr(self._rounds(at), "_next", None)
        made = coming.result() if coming is not None and coming.done() and not coming.cancelled() else None
        return [] if made is None else shown([made.call.tensors], made.call.orders)

    def busy(self, at):
        """Whether an instance has a call that waits for its verdict."""
        return self.backends[at].held is not None

    def close(self, *, drain=False):
        """Stop, and leave nothing."""
        for backend in self.backends:
            backend.open_up()
        stopping = threading.Thread(target=self.engine.stop, kwargs={"drain": drain}, daemon=True)
        stopping.start()
        stopping.join(WAIT_S)
        assert not stopping.is_alive(), "the stop hangs"
        pending = asyncio.all_tasks(self.loop)
        for task in pending:
            task.cancel()
        if pending:
            self.loop.run_until_complete(asyncio.wait(pending, timeout=WAIT_S))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


def shown(parts, orders):
    """What each row of a call is: order, token, kind."""
    rows = np.concatenate([part["x"] for part in parts]).tolist()
    return [(order, token, KINDS[kind]) for order, (token, kind) in zip(orders, rows, strict=True)]


def diary_request(rows, parameters=None, *, tensors=None, **settings):
    """A request of rows (token, kind); none, where there are no rows and no tensors."""
    inputs = []
    if rows is not None:
        data = np.array([[t, KINDS.index(k)] for t, k in rows], np.int64).reshape(-1, 2)
        inputs.append(Tensor("x", data))
    inputs += [Tensor(name, data) for name, data in (tensors or {}).items()]
    return InferRequest(tuple(inputs), parameters=parameters or {}, **settings)


def diaries(response):
    """What each row of a response tells."""
    return [json.loads(text) for text in response.outputs[0].data.tolist()] if response.outputs else []
