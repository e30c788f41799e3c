"""One step of each of many sequences, by one instance: in one call of the model where all goes well.

When a call fails, whose fault it was is found out by parting its rows: each step that is not at fault is done, in another call.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.batching.bisect import Bisection
from headrace.core.clock import Clock
from headrace.core.errors import (
    CancelledRequestError,
    HeadraceError,
    InstanceLostError,
    ModelContractError,
    ModelInputError,
    RefusedRowsError,
)
from headrace.core.model import RowError
from headrace.core.tensor import Array
from headrace.engine.backend import Backend
from headrace.engine.instance import BeforeCall, RunningCall, over
from headrace.engine.outputs import together
from headrace.engine.reason import WHY_CHARS_MAX, failure, reason, room
from headrace.engine.stepper import StepOrder, Stepped
from headrace.engine.steps.channel import StepChannel
from headrace.engine.steps.part import Part
from headrace.engine.steps.work import StepOutcome
from headrace.engine.tally import Tally

_log = logging.getLogger("headrace.engine")

_OF_ONE_REQUEST = (ModelContractError, ModelInputError)
"""Errors that end a request, whatever rows of it are left."""


@dataclass(frozen=True, slots=True)
class StepCall:
    """What a call of the model is made with: a row of each tensor and an order for each step. It is made once."""

    outcomes: Sequence[StepOutcome]
    tensors: Mapping[str, Array]
    orders: Sequence[StepOrder]

    @classmethod
    def of(cls, outcomes: Sequence[StepOutcome]) -> "StepCall":
        """The call that does all of these."""
        rows = [o.part.step_tensors() for o in outcomes]
        tensors = rows[0] if len(rows) == 1 else together(rows)
        return cls(outcomes, tensors, [_order(o) for o in outcomes])

    @property
    def fresh(self) -> bool:
        """Whether the arrays are nobody else's."""
        return len(self.outcomes) > 1


@dataclass(frozen=True, slots=True)
class Came:
    """What a call came back with, for each of its steps."""

    outcomes: Sequence[StepOutcome]
    stepped: Stepped

    def tell(self) -> None:
        """Each step has its own row of outputs, and what the model said of it."""
        stepped = self.stepped
        outputs = stepped.outputs
        alone = len(self.outcomes) == 1
        for i, (outcome, said, saved) in enumerate(
            zip(self.outcomes, stepped.said, stepped.saved, strict=True)
        ):
            outcome.outputs = outputs if alone else {name: data[i : i + 1] for name, data in outputs.items()}
            outcome.goes_on, outcome.silent, outcome.ends = said
            outcome.saved = saved


class _RunningStep(RunningCall):
    """A call of `step`: a part that is over wants it no more, though its request may."""

    parts: Sequence[Part] = ()

    def of(self, parts: Sequence[Part]) -> None:
        """Whose steps the call does from now on."""
        self.parts, self.tickets = parts, [part.ticket for part in parts]

    @property
    def cancelled(self) -> bool:
        now = self._clock.now()
        parts = self.parts
        return bool(parts) and not any(part.wanted(now) for part in parts)


class StepCaller:
    """Calls one instance's model. One thread at a time, but for `gone`."""

    def __init__(
        self,
        channel: StepChannel,
        place: int,
        backend: Backend,
        tally: Tally,
        clock: Clock,
        *,
        before_step: BeforeCall,
        name: str,
    ) -> None:
        self._channel = channel
        self._place = place
        self._backend = backend
        self._tally = tally
        self._clock = clock
        self._before_step = before_step
        self._name = name
        self._running = _RunningStep(clock)
        self._guard = threading.Lock()
        """Held where the call in progress is looked at, and where it ends, so that no other is cancelled in its place."""
        self.died_in: Sequence[StepOutcome] = ()
        """Whose steps the call was to do that raised InstanceLostError last."""

    def call(self, outcomes: Sequence[StepOutcome], ready: StepCall | None) -> list[Came] | None:
        """Do the step of each that is still wanted, by the call that is `ready` if it fits. None: no call was made.

        What came of a step that was done is to be told to it (`Came.tell`); of any other the outcome has its error.
        InstanceLostError is raised: then none is done.
        """
        wanted = [outcome for outcome in outcomes if outcome.error is None and self._wanted(outcome)]
        if not wanted:
            return None
        if ready is not None and len(ready.outcomes) != len(wanted):
            ready = None
        came: list[Came] = []
        search = Bisection(len(wanted))
        while (indices := search.next()) is not None:
            whole = len(indices) == len(wanted)
            chosen: list[int] = [] if whole else indices.tolist()
            if whole:
                self._try(search, wanted, came, ready)
            else:
                self._try(search, [wanted[i] for i in chosen], came, retry=True)
        for refused in search.failures:
            outcome = wanted[refused.row]
            if outcome.error is None:
                why = refused.why[:WHY_CHARS_MAX]
                outcome.fails(RefusedRowsError(self._name, f"row {outcome.row}: {why}"), why, finished=False)
        return came

    def _wanted(self, outcome: StepOutcome) -> bool:
        error = self._over(outcome)
        if error is not None:
            # Nothing of it was begun: it ends no sequence.
            outcome.fails(error, reason(error), finished=True, withdrawn=True)
        return error is None

    def _over(self, outcome: StepOutcome) -> HeadraceError | None:
        return over(outcome.part.ticket, self._before_step)

    def _try(
        self,
        search: Bisection,
        some: Sequence[StepOutcome],
        came: list[Came],
        ready: StepCall | None = None,
        *,
        retry: bool = False,
    ) -> None:
        """One call of the model; when it fails, whose fault it was is found out by parting its steps."""
        try:
            stepped = self._called(ready or StepCall.of(some), retry=retry)
        except InstanceLostError:
            raise
        except RowError as error:
            search.refused(error.rows)
        except CancelledRequestError as error:
            self._cancelled(search, some, error)
        except BaseException as error:  # noqa: BLE001 - SystemExit in a model must not kill its thread
            _log.debug("steps failed", extra={"model": self._name, "rows": len(some)}, exc_info=True)
            search.failed(reason(error))
            if (rows_max := room(self._name, error, len(some))) is not None:
                self._channel.shrink(self._place, rows_max=rows_max)
            if len(some) == 1:
                finished = isinstance(error, _OF_ONE_REQUEST)
                # A model that is told that nobody waits may raise anything.
                told = self._over(some[0]) or failure(self._name, error)
                some[0].fails(told, reason(error), finished=finished)
        else:
            search.succeeded()
            came.append(Came(some, stepped))

    def _cancelled(
        self, search: Bisection, some: Sequence[StepOutcome], error: CancelledRequestError
    ) -> None:
        """Nobody is left who wants any of these; or one of them was meant, and the others were not."""
        now = self._clock.now()
        if len(some) > 1 and any(o.part.wanted(now) for o in some):
            search.failed(reason(error))
            return
        for outcome in some:
            outcome.fails(self._over(outcome) or error, reason(error), finished=True)
        search.succeeded()

    def _called(self, call: StepCall, *, retry: bool) -> Stepped:
        tally, some = self._tally, call.outcomes
        tally.calls += 1
        tally.retries += retry
        self._running.of([o.part for o in some])
        try:
            stepped = self._backend.step((call.tensors,), call.orders, self._running, fresh=call.fresh)
        except InstanceLostError:
            self.died_in = some
            raise
        finally:
            with self._guard:
                self._running.of(())
        tally.called(len(some), stepped)
        return stepped

    def gone(self) -> None:
        """Somebody has left: when nobody is left who waits for the call in progress, it is cancelled. Any thread."""
        with self._guard:
            if self._running.cancelled:
                self._backend.cancel()


def _order(outcome: StepOutcome) -> StepOrder:
    sequence, part = outcome.sequence, outcome.part
    end = part.ends and part.row == part.rows - 1
    return StepOrder(
        sequence.number,
        sequence.id,
        sequence.steps,
        part.again,
        end,
        part.parameters,
        outcome.restore,
        outcome.save,
        part.number,
    )
