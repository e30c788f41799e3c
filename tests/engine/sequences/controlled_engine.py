"""A model with a diary per sequence, and instances that a test releases step by step, or kills."""

import asyncio
import json
import threading

import numpy as np

from engine.sequences.batch_loops import start_with_loops
from headrace.core import InferRequest, Model, RowError, Tensor
from headrace.core.errors import InstanceLostError
from headrace.core.sequence import SequenceLimits
from headrace.engine import Engine
from headrace.engine.local_backend import LocalBackend
from headrace.engine.settings import ServeSettings
from headrace.engine.stepper import Stepper
from headrace.testing import ManualClock

WAIT_S = 10.0
KINDS = ("plain", "fail", "refuse", "on1", "on2", "silent", "over")


class Diary(Model):
    """Appends the token of each row to the diary of its sequence, and returns the diary.

    The kind of the row says what else happens.
    """

    max_batch_rows = 3
    max_batch_delay_ms = 0.0

    def __init__(self):
        self.ended = []

    def step(self, states, x):
        """Do one step; `x` is token and kind of each row."""
        refused = {}
        failed = False
        for row, (state, (token, kind)) in enumerate(zip(states, x.tolist(), strict=True)):
            name = KINDS[kind]
            diary = state.get("diary", [])
            times = sum(written == token for written, _ in diary)
            assert state.again == (times > 0)
            state["diary"] = [*diary, [token, times]]
            if name.startswith("on") and times < int(name[2:]):
                state.reschedule()
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
        """Record the final diary."""
        self.ended.append((state.id, str(why), state.steps, state.get("diary", [])))


class ControlledBackend(LocalBackend):
    """A model in this process whose steps wait for a verdict, and which may die as a process does."""

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
        """The tokens of the call that died last."""
        self.held = None
        """Order, token and kind of each row of the call that waits for its verdict."""

    @property
    def lost(self):
        return self._dead

    def on_lost(self, hook):
        self._hook = hook

    def restart(self):
        """Forget all states."""
        self._stepper = Stepper(self.model, "diary", self._run_hook)
        self._passed = set()
        self._dead = False

    def end_sequences(self, endings):
        if self._dead:
            raise InstanceLostError("diary", "it is dead")
        super().end_sequences(endings)

    def call(self, inputs, call, deliver=None):
        rows = step_rows(inputs.parts, inputs.orders)
        verdict = self._await_verdict(rows)
        if verdict == "die":
            self._die(rows)
        try:
            return super().call(inputs, call, deliver)
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
                # A part of a released call that failed.
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
        """Give the verdict for the held call."""
        with self._cond:
            self.held, self._verdict = None, verdict
            self._cond.notify_all()

    def open_up(self):
        """Release all calls from now on."""
        with self._cond:
            self.open = True
            if self.held is not None:
                self.held, self._verdict = None, "go"
            self._cond.notify_all()

    def kill(self):
        """Die outside of a call."""
        self._dead = True
        self._hook()


class _Clock(ManualClock):
    def sleep(self, seconds, wake=None):
        """Return at once."""
        return bool(wake and wake.is_set())


class ControlledEngine:
    """A running engine whose instances wait for verdicts, and an event loop for its clients."""

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
        self.engine._backend_factory = self
        self._settings = settings
        self._lock = threading.Lock()
        self.loops = start_with_loops(self.engine)
        """The batch loop of each instance."""
        self.queue = self.engine._session.queue
        self.sequences = self.engine._session.sequences
        # In the order of the instances, not of their loading.
        self.backends = [slot.backend for slot in self.engine._session.slots]
        self.loop = asyncio.new_event_loop()

    def load(self):
        return ControlledBackend(self.model, self.clock, self._settings)

    def is_inline(self, backend):
        return False

    def run(self, coroutine):
        """Return the result of a coroutine, within a time limit."""
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, WAIT_S))

    async def wait_idle(self, *, committed=True):
        """Wait until every instance waits for a verdict or for work, and results are delivered.

        With `committed`, the commits of calls are finished too.
        """
        calm = 0
        async with asyncio.timeout(WAIT_S):
            while calm < 8:
                calm = calm + 1 if self.quiet(committed=committed) else 0
                await asyncio.sleep(0 if calm else 0.0002)

    def quiet(self, *, committed=True):
        """Return True if no instance is in motion."""
        slots = self.engine._session.slots
        return all(
            (self.committed(at) or not committed) and (self.busy(at) or (ready.is_asleep and slots[at].alive))
            for at, ready in enumerate(self.sequences.ready)
        )

    def committed(self, at):
        """Return True if the last commit is finished and the next call is prepared."""
        loop = self.loops[at]
        beside = (loop._committing, loop._next_batch)
        return all(each is None or each.done() for each in beside)

    def block_commit(self, at):
        """Block the side thread of an instance until the returned event is set."""
        free = threading.Event()
        self.loops[at]._side_thread.submit(free.wait, WAIT_S)
        return free

    def ready(self, at):
        """Return order, token and kind of each row of the prepared call."""
        coming = self.loops[at]._next_batch
        taken = coming.result() if coming is not None and coming.done() and not coming.cancelled() else None
        return [] if taken is None else step_rows(taken.inputs.parts, taken.inputs.orders)

    def busy(self, at):
        """Return True if an instance has a call that waits for its verdict."""
        return self.backends[at].held is not None

    def close(self, *, drain=False):
        """Stop the engine, and leave nothing."""
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


def step_rows(parts, orders):
    """Return order, token and kind of each row of a call."""
    rows = np.concatenate([part["x"] for part in parts]).tolist()
    return [(order, token, KINDS[kind]) for order, (token, kind) in zip(orders, rows, strict=True)]


def diary_request(rows, parameters=None, *, tensors=None, **settings):
    """Return a request of rows (token, kind); without inputs if there are none."""
    inputs = []
    if rows is not None:
        data = np.array([[t, KINDS.index(k)] for t, k in rows], np.int64).reshape(-1, 2)
        inputs.append(Tensor("x", data))
    inputs += [Tensor(name, data) for name, data in (tensors or {}).items()]
    return InferRequest(tuple(inputs), parameters=parameters or {}, **settings)


def diaries(response):
    """Return the diary in each row of a response."""
    return [json.loads(text) for text in response.outputs[0].data.tolist()] if response.outputs else []
