"""Two engines over one checkpoint store, used in any order: each sequence has one history."""

import asyncio
from contextlib import ExitStack
from itertools import accumulate

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import headrace.engine.sequences.sequence_store
from engine.sequences.sum_model import FaultyStore, engine, infer_sums

ENGINES = st.sampled_from([0, 1])
IDS = st.sampled_from(["a", "b", "c"])
VALUES = st.lists(st.integers(1, 50), min_size=1, max_size=3)
GONE = "SequenceGoneError"


class Hopping(RuleBasedStateMachine):
    """`history` has the possible sums of each sequence, None for no sequence: one value, except
    after a fault.
    """

    def __init__(self):
        super().__init__()
        self.store = FaultyStore()
        self.stacks = [ExitStack(), ExitStack()]
        self.engines = [self._opened(at) for at in (0, 1)]
        self.history = {id: {None} for id in ("a", "b", "c")}
        self.loop = asyncio.new_event_loop()

    def _opened(self, at):
        # Three sequences take turns in two places.
        limits = {"live_max": 2}
        return self.stacks[at].enter_context(engine(self.store, instances=1 + at, sequences=limits))

    def teardown(self):
        for stack in self.stacks:
            stack.close()
        self.loop.close()

    def ask(self, at, *values, **settings):
        return self.loop.run_until_complete(infer_sums(self.engines[at], *values, **settings))

    def resolve(self, id, outcome, values, start):
        """Select the history that the response proves: the final sum, or None for no sequence."""
        possible = {0} if start is True else self.history[id]
        if start == "auto":
            possible = {sum_ or 0 for sum_ in possible}
        if outcome == GONE:
            assert None in possible, f"{id} is gone, and should be at {possible}"
            return None
        sums = [list(accumulate([sum_, *values]))[1:] for sum_ in possible if sum_ is not None]
        assert outcome in sums, f"{id}: {outcome}, and not one of {sums}"
        return outcome[-1]

    @initialize()
    def begin(self):
        for at, id in enumerate(("a", "b")):
            assert self.ask(at, 1, sequence_id=id, sequence_start=True) == [1]
            self.history[id] = {1}

    @rule(at=ENGINES, id=IDS, values=VALUES, start=st.sampled_from([False, False, False, True, "auto"]))
    def step(self, at, id, values, start):
        outcome = self.ask(at, *values, sequence_id=id, sequence_start=start)
        self.history[id] = {self.resolve(id, outcome, values, start)}

    @rule(at=ENGINES, id=IDS, values=VALUES, how=st.sampled_from(["sequence_end", "over"]))
    def last_step(self, at, id, values, how):
        # The model ends it with the first row, and the later rows fail.
        values = values[:1]
        self.resolve(id, self.ask(at, *values, sequence_id=id, **{how: True}), values, False)
        self.history[id] = {None}

    @rule(at=ENGINES, id=IDS, times=st.integers(2, 5))
    def text(self, at, id, times):
        outcome = self.ask(at, 1, times=times, sequence_id=id)
        self.history[id] = {self.resolve(id, outcome, [1] * times, False)}

    @rule(at=ENGINES, id=IDS, values=VALUES)
    def refused(self, at, id, values):
        outcome = self.ask(at, *values, -1, sequence_id=id)
        if outcome == GONE:
            assert None in self.history[id]
            self.history[id] = {None}
            return
        assert outcome == "RefusedRowsError"
        self.history[id] = {sum_ + sum(values) for sum_ in self.history[id] if sum_ is not None}

    @rule(at=ENGINES, id=IDS, how=st.sampled_from(["sequence_end", "sequence_cancel"]))
    def end(self, at, id, how):
        outcome = self.ask(at, sequence_id=id, **{how: True})
        assert outcome == [] or (outcome == GONE and None in self.history[id])
        self.history[id] = {None}

    @rule(at=ENGINES, id=IDS, values=VALUES, start=st.sampled_from([True, "auto"]))
    def end_and_begin_at_once(self, at, id, values, start):
        async def both():
            of = self.engines[at]
            return await asyncio.gather(
                infer_sums(of, sequence_id=id, sequence_cancel=True),
                infer_sums(of, *values, sequence_id=id, sequence_start=start),
            )

        _, outcome = self.loop.run_until_complete(both())
        assert outcome == list(accumulate(values))
        self.history[id] = {outcome[-1]}

    @rule(
        at=ENGINES,
        id=IDS,
        values=VALUES,
        fault=st.tuples(st.sampled_from(["load", "save", "delete"]), st.sampled_from(["before", "after"])),
        flags=st.tuples(st.sampled_from([False, True, "auto"]), st.booleans()),
    )
    def step_while_the_store_is_down(self, at, id, values, fault, flags):
        (name, fault), (start, end) = fault, flags
        self.store.faults[name] = fault
        outcome = self.ask(at, *values, sequence_id=id, sequence_start=start, sequence_end=end)
        self.store.faults.clear()
        if outcome != "UnavailableError":
            sum_ = self.resolve(id, outcome, values, start)
            self.history[id] = {None if end else sum_}
            return
        before = {0} if start else set()
        if start is not True:
            before |= {sum_ for sum_ in self.history[id] if sum_ is not None}
        done = {sum_ for b in before for sum_ in accumulate([b, *values])}
        # The sequence that a start replaces has ended, whatever becomes of the start.
        self.history[id] |= done - {0} | ({None} if end or start is True else set())

    @rule(at=ENGINES, id=IDS, how=st.sampled_from(["sequence_end", "sequence_cancel"]))
    def end_while_the_store_is_down(self, at, id, how):
        self.store.faults.update(load="before", delete="after")
        outcome = self.ask(at, sequence_id=id, **{how: True})
        self.store.faults.clear()
        assert outcome == "UnavailableError"
        self.history[id] |= {None}

    @rule(at=ENGINES)
    def restart(self, at):
        self.stacks[at].close()
        self.engines[at] = self._opened(at)

    @rule(id=IDS, values=VALUES)
    def both_at_once(self, id, values):
        """Two engines step one sequence at once: the second continues after the first."""

        async def both():
            return await asyncio.gather(*(infer_sums(of, sum(values), sequence_id=id) for of in self.engines))

        outcome = self.loop.run_until_complete(both())
        if GONE in outcome:
            assert outcome == [GONE, GONE]
            assert None in self.history[id]
            self.history[id] = {None}
            return
        (first,), (second,) = sorted(outcome)
        assert second == first + sum(values)
        assert first - sum(values) in self.history[id]
        self.history[id] = {second}


TestHopping = Hopping.TestCase
TestHopping.settings = settings(stateful_step_count=30)


class LateHopping(Hopping):
    """The instances wait for no call of the store: every step is set aside for its calls."""

    def __init__(self):
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(headrace.engine.sequences.sequence_store, "STORE_WAIT_S", 0.0)
        super().__init__()

    def teardown(self):
        super().teardown()
        self.patch.undo()


TestLateHopping = LateHopping.TestCase
TestLateHopping.settings = TestHopping.settings
