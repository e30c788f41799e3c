"""Commits steps: their sequences continue, and their results are delivered.

A delivered step is final. With checkpoints, it is saved first.
"""

import logging
from collections.abc import Callable, Sequence

from headrace.core.clock import Clock
from headrace.core.errors import CancelledRequestError, HeadraceError, SequenceGoneError
from headrace.engine.counters import EngineCounters
from headrace.engine.model_errors import internal_error
from headrace.engine.outputs import Outputs
from headrace.engine.pending_request import PendingRequest, RequestResult, deliver
from headrace.engine.pipe import wake_all
from headrace.engine.steps.row_request import RowRequest
from headrace.engine.steps.state_loader import StateLoader
from headrace.engine.steps.step_calls import StepCallResult
from headrace.engine.steps.step_queue import StepQueue
from headrace.engine.steps.step_work import StepOutcome, StepSequence

_log = logging.getLogger("headrace.engine")


class StepCommitter:
    """The commits of one instance's steps, call after call. One thread at a time."""

    def __init__(
        self,
        queue: StepQueue,
        instance: int,
        counters: EngineCounters,
        clock: Clock,
        state_loader: StateLoader | None,
        *,
        name: str,
    ) -> None:
        self._queue = queue
        self._instance = instance
        self._counters = counters
        self._clock = clock
        self._state_loader = state_loader
        self._name = name

    def commit(self, outcomes: Sequence[StepOutcome], results: Sequence[StepCallResult], now: float) -> None:
        """Commit these steps with the results of their calls, at `now`.

        If this raises, the steps fail.
        """
        completed: list[tuple[PendingRequest, RequestResult]] = []
        wakes: list[Callable[[], None]] = []
        try:
            self._commit(outcomes, results, now, completed, wakes)
        except BaseException as error:  # noqa: BLE001 - after a defect, no client may wait for these steps
            _log.exception("a commit of steps failed with an internal error", extra={"model": self._name})
            stepping = [o.sequence for o in outcomes if o.done is None]
            others = [o.sequence for o in outcomes if o.done is not None]
            self.fail_corrupted([o.row_request for o in outcomes], stepping, others, completed, error)
        finally:
            wake_all(wakes)

    def _commit(
        self,
        outcomes: Sequence[StepOutcome],
        results: Sequence[StepCallResult],
        now: float,
        completed: list[tuple[PendingRequest, RequestResult]],
        wakes: list[Callable[[], None]],
    ) -> None:
        for each in results:
            each.apply()
        if self._state_loader is not None:
            self._state_loader.save(outcomes)
        for outcome in outcomes:
            self._report_to_collector(outcome, wakes, now)
        self._queue.end_steps(self._instance, outcomes)
        began: list[float | None] = []
        for outcome in outcomes:
            if outcome.held and not outcome.done:
                self._wait_for_space(outcome)
            if outcome.done and (result := outcome.row_request.finish(_request_error(outcome))) is not None:
                completed.append((outcome.row_request.entry, result))
                began.append(outcome.row_request.started_s)
        self._queue.mark_ended([entry for entry, _ in completed])
        for (entry, result), began_s in zip(completed, began, strict=True):
            self._counters.record_result(entry, result, now if began_s is None else began_s, now)
        deliver(completed)
        # Requests that waited behind these get their results now, not after the next call.
        self._queue.deliver_ended()

    def fail_corrupted(
        self,
        row_requests: Sequence[RowRequest],
        stepping: Sequence[StepSequence],
        others: Sequence[StepSequence],
        completed: list[tuple[PendingRequest, RequestResult]],
        error: BaseException,
    ) -> None:
        """Fail the row requests and end their sequences, after a defect raised `error`.

        The states of the sequences are unknown. `stepping` are sequences whose steps are not ended
        yet. Results that are `completed` already stay as they are.
        """
        error_to_report = internal_error(self._name, error, " and ended its sequence")
        try:
            completed += [
                each
                for row_request in row_requests
                if (each := row_request.finish_with_entry(error_to_report)) is not None
            ]
            self._queue.state_corrupted(self._instance, stepping, others)
            unfinished = [(entry, result) for entry, result in completed if not entry.ended]
            self._queue.mark_ended([entry for entry, _ in completed])
            now = self._clock.now()
            for entry, result in unfinished:
                self._counters.record_result(entry, result, now, now)
        finally:
            deliver(completed)

    def _report_to_collector(self, outcome: StepOutcome, wakes: list[Callable[[], None]], now: float) -> None:
        """Pass the outputs or the failure of a step to its collector."""
        row_request = outcome.row_request
        if outcome.error is not None:
            # A failing row fails its request, unless the request accepts missing rows.
            rows_wanted = row_request.collector.add_failure(row_request, outcome.row, outcome.why)
            outcome.finished = outcome.finished or not rows_wanted
            return
        if outcome.outputs is None:
            return
        self._count_step(row_request, now)
        row_request.sequence_ended = outcome.is_last
        if not outcome.silent:
            self._add_output(outcome, outcome.outputs, wakes)

    def _count_step(self, row_request: RowRequest, now: float) -> None:
        last_s = row_request.last_step_s if row_request.again else None
        self._counters.record_step(None if last_s is None else now - last_s)
        row_request.clear_suspicion()
        row_request.last_step_s = now

    def _add_output(self, outcome: StepOutcome, outputs: Outputs, wakes: list[Callable[[], None]]) -> None:
        try:
            has_space = outcome.row_request.collector.add_output(
                outcome.row_request, outcome.row, outputs, wakes
            )
            outcome.held = outcome.rescheduled and not has_space
        except CancelledRequestError:
            outcome.finished = True
        except HeadraceError as error:
            outcome.error, outcome.finished = error, True
        except Exception as error:  # noqa: BLE001 - such as MemoryError: only this request fails
            _log.exception("the outputs of a step could not be collected", extra={"model": self._name})
            outcome.error, outcome.finished = internal_error(self._name, error), True

    def _wait_for_space(self, outcome: StepOutcome) -> None:
        """Resume a rescheduled sequence once its stream has space."""
        sequence, queue = outcome.sequence, self._queue
        if not outcome.row_request.collector.when_space(lambda: queue.resume(sequence)):
            queue.resume(sequence)


def _request_error(outcome: StepOutcome) -> BaseException | None:
    """Return the error of a complete row request, or None."""
    row_request = outcome.row_request
    if outcome.error is not None and outcome.finished:
        return outcome.error
    if row_request.row < row_request.rows and outcome.ends:
        return SequenceGoneError(
            row_request.id,
            f"its model ended it at row {row_request.row} of {row_request.rows} of this request: "
            "the later rows were not predicted",
        )
    return None
