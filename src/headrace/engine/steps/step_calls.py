"""Calls of a model with a `step`: one step of each of many sequences, in one call if no step fails.

A failing call is bisected, so that each step that is not at fault is done in another call.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from typing_extensions import override

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
from headrace.engine.counters import EngineCounters
from headrace.engine.instance import BeforeCall, RunningCall, end_error
from headrace.engine.model_errors import WHY_CHARS_MAX, describe_error, reduced_rows_max, reported_error
from headrace.engine.outputs import concatenate
from headrace.engine.stepper import StepOrder, StepResult
from headrace.engine.steps.row_request import RowRequest
from headrace.engine.steps.step_queue import StepQueue
from headrace.engine.steps.step_work import StepOutcome

_log = logging.getLogger("headrace.engine")

_OF_ONE_REQUEST = (ModelContractError, ModelInputError)
"""Errors that end a request, whatever rows are left."""


@dataclass(frozen=True, slots=True)
class StepCall:
    """The arguments of one call: a row of each tensor and an order for each step."""

    outcomes: Sequence[StepOutcome]
    tensors: Mapping[str, Array]
    orders: Sequence[StepOrder]

    @classmethod
    def from_outcomes(cls, outcomes: Sequence[StepOutcome]) -> "StepCall":
        """Return the call that does all of these steps."""
        rows = [o.row_request.step_tensors() for o in outcomes]
        tensors = rows[0] if len(rows) == 1 else concatenate(rows)
        return cls(outcomes, tensors, [_step_order(o) for o in outcomes])

    @property
    def fresh(self) -> bool:
        """True if the arrays were made for this call."""
        return len(self.outcomes) > 1


@dataclass(frozen=True, slots=True)
class StepCallResult:
    """The result of one call, for each of its steps."""

    outcomes: Sequence[StepOutcome]
    stepped: StepResult

    def apply(self) -> None:
        """Give each step its row of outputs and its flags."""
        stepped = self.stepped
        outputs = stepped.outputs
        alone = len(self.outcomes) == 1
        for i, (outcome, flags, checkpoint) in enumerate(
            zip(self.outcomes, stepped.flags, stepped.checkpoints, strict=True)
        ):
            outcome.outputs = outputs if alone else {name: data[i : i + 1] for name, data in outputs.items()}
            outcome.rescheduled, outcome.silent, outcome.ends = flags
            outcome.checkpoint = checkpoint


class _RunningStep(RunningCall):
    """A call of `step`, cancelled once no row request is wanted, even if its request is."""

    row_requests: Sequence[RowRequest] = ()

    def watch(self, row_requests: Sequence[RowRequest]) -> None:
        """Set the row requests of the call in progress."""
        self.row_requests, self.entries = row_requests, [row_request.entry for row_request in row_requests]

    @property
    @override
    def cancelled(self) -> bool:
        now = self._clock.now()
        row_requests = self.row_requests
        return bool(row_requests) and not any(row_request.is_wanted(now) for row_request in row_requests)


class StepCaller:
    """A caller of one instance's model. One thread at a time, except for `cancel_if_unwanted`."""

    def __init__(
        self,
        queue: StepQueue,
        instance: int,
        backend: Backend,
        counters: EngineCounters,
        clock: Clock,
        *,
        before_step: BeforeCall,
        name: str,
    ) -> None:
        self._queue = queue
        self._instance = instance
        self._backend = backend
        self._counters = counters
        self._clock = clock
        self._before_step = before_step
        self._name = name
        self._running = _RunningStep(clock)
        self._call_lock = threading.Lock()
        """Held while the call in progress is checked or ends, so that no other call is cancelled in
        its place.
        """
        self.died_in: Sequence[StepOutcome] = ()
        """Outcomes of the last call that raised InstanceLostError."""

    def call(self, outcomes: Sequence[StepOutcome], prepared: StepCall | None) -> list[StepCallResult] | None:
        """Do the steps that are still wanted, with the `prepared` call if it fits.

        Return None without a call.

        Apply the results to the steps that are done (`StepCallResult.apply`); the outcome of any
        other step has its error. Raises InstanceLostError; then no step is done.
        """
        wanted = [outcome for outcome in outcomes if outcome.error is None and self._check_wanted(outcome)]
        if not wanted:
            return None
        if prepared is not None and len(prepared.outcomes) != len(wanted):
            prepared = None
        results: list[StepCallResult] = []
        search = Bisection(len(wanted))
        while (indices := search.next()) is not None:
            whole = len(indices) == len(wanted)
            chosen: list[int] = [] if whole else indices.tolist()
            if whole:
                self._attempt(search, wanted, results, prepared)
            else:
                self._attempt(search, [wanted[i] for i in chosen], results, retry=True)
        for refused in search.failures:
            outcome = wanted[refused.row]
            if outcome.error is None:
                why = refused.why[:WHY_CHARS_MAX]
                outcome.fail(RefusedRowsError(self._name, f"row {outcome.row}: {why}"), why, finished=False)
        return results

    def _check_wanted(self, outcome: StepOutcome) -> bool:
        error = self._end_error(outcome)
        if error is not None:
            # No step of it was begun, so it ends no sequence.
            outcome.fail(error, describe_error(error), finished=True, withdrawn=True)
        return error is None

    def _end_error(self, outcome: StepOutcome) -> HeadraceError | None:
        return end_error(outcome.row_request.entry, self._before_step)

    def _attempt(
        self,
        search: Bisection,
        outcomes: Sequence[StepOutcome],
        results: list[StepCallResult],
        prepared: StepCall | None = None,
        *,
        retry: bool = False,
    ) -> None:
        """Call the model once. After a failure, the bisection finds the step at fault."""
        try:
            stepped = self._call_model(prepared or StepCall.from_outcomes(outcomes), retry=retry)
        except InstanceLostError:
            raise
        except RowError as error:
            search.mark_refused(error.rows)
        except CancelledRequestError as error:
            self._cancelled(search, outcomes, error)
        except BaseException as error:  # noqa: BLE001 - SystemExit in a model must not kill its thread
            _log.debug("steps failed", extra={"model": self._name, "rows": len(outcomes)}, exc_info=True)
            search.mark_failed(describe_error(error))
            if (rows_max := reduced_rows_max(self._name, error, len(outcomes))) is not None:
                self._queue.limit_rows(self._instance, rows_max=rows_max)
            if len(outcomes) == 1:
                finished = isinstance(error, _OF_ONE_REQUEST)
                # A cancelled model may raise anything.
                error = self._end_error(outcomes[0]) or reported_error(self._name, error)
                outcomes[0].fail(error, describe_error(error), finished=finished)
        else:
            search.mark_succeeded()
            results.append(StepCallResult(outcomes, stepped))

    def _cancelled(
        self, search: Bisection, outcomes: Sequence[StepOutcome], error: CancelledRequestError
    ) -> None:
        """Fail the steps of a cancelled call, or retry them apart if some are still wanted."""
        now = self._clock.now()
        if len(outcomes) > 1 and any(o.row_request.is_wanted(now) for o in outcomes):
            search.mark_failed(describe_error(error))
            return
        for outcome in outcomes:
            outcome.fail(self._end_error(outcome) or error, describe_error(error), finished=True)
        search.mark_succeeded()

    def _call_model(self, call: StepCall, *, retry: bool) -> StepResult:
        counters, outcomes = self._counters, call.outcomes
        counters.calls += 1
        counters.retries += retry
        self._running.watch([o.row_request for o in outcomes])
        try:
            stepped = self._backend.step((call.tensors,), call.orders, self._running, fresh=call.fresh)
        except InstanceLostError:
            self.died_in = outcomes
            raise
        finally:
            with self._call_lock:
                self._running.watch(())
        counters.record_call(len(outcomes), stepped)
        return stepped

    def cancel_if_unwanted(self) -> None:
        """Cancel the call in progress if no client wants it any more. Any thread."""
        with self._call_lock:
            if self._running.cancelled:
                self._backend.cancel()


def _step_order(outcome: StepOutcome) -> StepOrder:
    sequence, row_request = outcome.sequence, outcome.row_request
    end = row_request.ends and row_request.row == row_request.rows - 1
    return StepOrder(
        sequence.number,
        sequence.id,
        sequence.steps,
        row_request.again,
        end,
        row_request.parameters,
        outcome.restore,
        outcome.save,
        row_request.number,
    )
