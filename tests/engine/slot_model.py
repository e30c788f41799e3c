"""A model that takes a slot for each step, outside of its states, and keeps account of them."""

import asyncio
import json
from itertools import count
from pathlib import Path

import numpy as np

from headrace.core import Model, RowError, current_call
from servers.polling import reached


class Slots(Model):
    """Takes one slot for each row, and names it in the row's state.

    `do` says what else happens in the row. The slots are free again once their sequence has ended,
    or their step is undone.
    """

    max_batch_rows = 8
    max_batch_delay_ms = 0.0

    def __init__(self):
        self.held = set()
        self.calls = []
        """The ids of each call."""
        self.undone = []
        """For each call of `steps_undone`: row, id, steps, and number of slots left and restored."""
        self.ended = []
        self.cancelled = []
        """`current_call().cancelled` in each call of `steps_undone`."""
        self._numbers = count()

    def step(self, states, x, do):
        self.calls.append([state.id for state in states])
        for row, (state, what) in enumerate(zip(states, do, strict=True)):
            slot = next(self._numbers)
            self.held.add(slot)
            state["slots"] = (*state.get("slots", ()), slot)
            state.setdefault("log", []).append(slot)
            if what:
                getattr(self, what)(state, row)
        refused = {row: "refused" for row, what in enumerate(do) if what == "refuse"}
        if refused:
            raise RowError(refused)
        if "lack" in do:
            return {}
        report = json.dumps({"held": len(self.held), "undone": self.undone, "ended": self.ended})
        return {
            "slots": np.array([len(state["slots"]) for state in states]),
            "report": np.array([None if "unsendable" in do else report] * len(x), object),
        }

    def steps_undone(self, undone):
        self.cancelled.append(current_call().cancelled)
        self.undone.append(
            [
                (step.row, step.state.id, step.state.steps, *map(_slots, (step.state, step.restored)))
                for step in undone
            ]
        )
        for step in undone:
            # As often as slots are undone: a KeyError is logged, and fails the test.
            for slot in set(step.state.get("slots", ())) - set(step.restored.get("slots", ())):
                self.held.remove(slot)
            for value in step.restored.values():
                if isinstance(value, list):
                    value.append("the sequence continues with a value of its own")

    def sequence_ended(self, state, why):
        self.ended.append((state.id, why.value))
        for slot in state.get("slots", ()):
            self.held.remove(slot)

    def fail(self, state, row):
        state["more"] = row
        raise ValueError("odd")

    def refuse(self, state, row):
        pass

    def lack(self, state, row):
        pass

    def unsaveable(self, state, row):
        state["bad"] = object()

    def unsendable(self, state, row):
        pass

    def over(self, state, row):
        state.end_sequence()

    def exit(self, state, row):
        raise SystemExit(3)


def _slots(values):
    return len(values.get("slots", ()))


class AsyncSlots(Slots):
    """The same with asynchronous methods; `wait` waits until the call is cancelled."""

    def __init__(self, folder):
        super().__init__()
        self.folder = Path(folder)

    async def step(self, states, x, do):
        outputs = super().step(states, x, do)
        if "wait" in do:
            (self.folder / "began").touch()
            await asyncio.Event().wait()
        return outputs

    async def steps_undone(self, undone):
        await asyncio.sleep(0)
        super().steps_undone(undone)

    def wait(self, state, row):
        pass


class CancellableSlots(Slots):
    """The same with a `step` that looks at its call."""

    def __init__(self, folder):
        super().__init__()
        self.folder = Path(folder)

    def wait(self, state, row):
        (self.folder / "began").touch()
        assert reached(lambda: current_call().cancelled)
        raise TimeoutError("no client waits")


class ClumsySlots(Slots):
    """Frees its slots, then raises."""

    def steps_undone(self, undone):
        super().steps_undone(undone)
        raise SystemExit("clumsy")
