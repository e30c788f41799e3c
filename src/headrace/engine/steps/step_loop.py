"""The work loop of a model with a `step`: one step of many sequences per call, then its commit.

The model is called in the thread of the instance. While calls are full, a second thread commits the
last call and prepares the next one.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from typing_extensions import override

from headrace.batching.adaptive import WaitCondition
from headrace.core.clock import Clock
from headrace.core.errors import InstanceLostError, UnavailableError
from headrace.engine.backend import Backend
from headrace.engine.batch_queue import BlockingConsumer
from headrace.engine.counters import EngineCounters
from headrace.engine.instance import BeforeCall
from headrace.engine.model_errors import describe_error
from headrace.engine.pending_request import DEATHS_MAX, PendingRequest, RequestResult, deliver
from headrace.engine.steps.state_loader import StateLoader
from headrace.engine.steps.step_calls import StepCall, StepCaller
from headrace.engine.steps.step_committer import StepCommitter
from headrace.engine.steps.step_queue import StepQueue
from headrace.engine.steps.step_work import StepOutcome, StepSequence, StepWork
from headrace.engine.work_loop import WorkLoop


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The steps that were taken, and the outcome of each."""

    batch: StepWork
    outcomes: list[StepOutcome]
    call: StepCall | None = None
    """The prepared call of these steps, if any."""

    @property
    def sequences(self) -> list[StepSequence]:
        """The sequences of the steps."""
        return [outcome.sequence for outcome in self.outcomes]


_NOTHING = StepBatch(StepWork(), [])


class StepLoop(WorkLoop[StepBatch]):
    """The work loop of `Model.step`: one step of many sequences per call."""

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
        self._caller = StepCaller(
            queue, instance, backend, counters, clock, before_step=before_step, name=name
        )
        self._state_loader = _state_loader(queue, clock)
        self._committer = StepCommitter(queue, instance, counters, clock, self._state_loader, name=name)
        self._batch = _NOTHING
        self._endings_reported = False
        """True once the model was told of the sequences that ended before this batch."""
        self._side_thread = ThreadPoolExecutor(1, f"headrace-{name}-{instance}-beside")
        self._committing: Future[None] | None = None
        """The commit of the last call's steps, while the next call may be made."""
        self._next_batch: Future[StepBatch | None] | None = None
        """The next batch, prepared while the model is called for this one."""

    @override
    def take(
        self, consumer: BlockingConsumer, unavailable: Callable[[], bool]
    ) -> StepBatch | WaitCondition | None:
        if self._next_batch is not None:
            if unavailable():
                return WaitCondition()
            if (prepared := self._take_prepared()) is not None:
                return prepared
        batch = self._queue.take(consumer, self._instance, unavailable)
        if batch is None and self._committing is not None:
            # Sequences that end with the last call are reported to the model as well.
            self._wait_for_commit()
            batch = self._queue.take(consumer, self._instance, unavailable)
        return _batch(batch) if isinstance(batch, StepWork) else batch

    def _take_prepared(self) -> StepBatch | None:
        """Return the prepared batch; None if there is none or its preparation has not begun."""
        prepared_future, self._next_batch = self._next_batch, None
        return None if prepared_future is None or prepared_future.cancel() else prepared_future.result()

    def _prepare_next(self) -> StepBatch | None:
        batch = self._queue.take_full(self._instance)
        if batch is None:
            return None
        step_batch = _batch(batch)
        try:
            call = StepCall.from_outcomes(step_batch.outcomes)
        except Exception:  # noqa: BLE001 - raised again where the call is made
            call = None
        return StepBatch(batch, step_batch.outcomes, call)

    @override
    def run_batch(self, batch: StepBatch) -> bool:
        self._batch, self._endings_reported = batch, False
        self._caller.died_in = ()
        self._report_ended(batch.batch)
        if not batch.outcomes:
            return False
        counters = self._counters
        began_s = self._clock.now()
        try:
            outcomes = self._load_states(batch)
            if self._state_loader is None and self._queue.is_full(self._instance):
                # With checkpoints, states are loaded first, which waits for the commit of the steps
                # before.
                self._next_batch = self._side_thread.submit(self._prepare_next)
            results = self._caller.call(outcomes, batch.call)
        finally:
            counters.ended_s = ended_s = self._clock.now()
            counters.busy_s += ended_s - began_s
        counters.close_reasons[batch.batch.reason] = counters.close_reasons.get(batch.batch.reason, 0) + 1
        self._wait_for_commit()
        if self._next_batch is not None or self._queue.is_full(self._instance):
            # The next call is full already, so it runs while this one is committed.
            self._committing = self._side_thread.submit(
                self._committer.commit, outcomes, results or (), ended_s
            )
        else:
            self._committer.commit(outcomes, results or (), ended_s)
        self._batch = _NOTHING
        return results is not None

    def _report_ended(self, batch: StepWork) -> None:
        """Report ended sequences to the model, and to the store."""
        if batch.endings:
            self._backend.end_sequences(batch.endings)
        self._endings_reported = True
        if self._state_loader is not None and batch.endings:
            self._wait_for_commit()
            self._state_loader.delete_ended(batch.endings)

    def _load_states(self, batch: StepBatch) -> list[StepOutcome]:
        """Load the states of these steps. Return the steps whose sequences can continue."""
        state_loader, outcomes = self._state_loader, batch.outcomes
        if state_loader is None:
            return outcomes
        if state_loader.needs_load(outcomes):
            self._wait_for_commit()
        try:
            loaded = state_loader.load(outcomes)
        except UnavailableError as error:
            for outcome in outcomes:
                if not outcome.sequence.loaded:
                    outcome.fail(error, describe_error(error), finished=True, withdrawn=True)
            return outcomes
        self._batch = replace(batch, outcomes=loaded)
        return loaded

    def _wait_for_commit(self) -> None:
        """Wait for the commit of the last call: calls are committed in order."""
        committing = self._committing
        if committing is not None:
            # A commit whose error handling failed raises in every later call.
            committing.result()
            self._committing = None

    # Defects

    @override
    def internal_failure(self, error: BaseException) -> None:
        """Fail the taken steps and end their sequences, whose states are unknown now.

        Endings that were not reported to the model are not reported again: they may have raised
        `error`.
        """
        self._wait_for_commit()
        outcomes = self._batch.outcomes
        self._batch, self._caller.died_in = _NOTHING, ()
        if outcomes:
            self._committer.fail_corrupted(
                [o.row_request for o in outcomes], [o.sequence for o in outcomes], (), [], error
            )

    # Death of the instance

    @override
    def instance_lost(self, error: InstanceLostError | None) -> bool:
        """Requeue the steps in flight.

        Those of the call that died are retried in calls of their own.
        """
        self._wait_for_commit()
        unreported = () if error is None or self._endings_reported else self._batch.batch.endings
        stepping = [] if error is None else self._batch.sequences
        died_in = () if error is None else self._caller.died_in
        if (prepared := self._take_prepared()) is not None:
            unreported += prepared.batch.endings
            stepping += prepared.sequences
        self._queue.return_endings(self._instance, unreported)
        intended = bool(died_in) and all(o.row_request.entry.cancelled for o in died_in)
        exhausted = [o.row_request for o in died_in if o.row_request.isolate() >= DEATHS_MAX]
        completed: list[tuple[PendingRequest, RequestResult]] = []
        for row_request in exhausted:
            assert error is not None
            if (result := row_request.finish(error)) is not None:
                completed.append((row_request.entry, result))
        self._queue.instance_lost(self._instance, stepping, exhausted)
        self._queue.mark_ended([entry for entry, _ in completed])
        now = self._clock.now()
        for entry, result in completed:
            self._counters.record_result(entry, result, now, now)
        deliver(completed)
        self._batch = _NOTHING
        return intended

    @override
    def instance_restarted(self) -> None:
        self._queue.instance_available(self._instance)

    @override
    def instance_given_up(self) -> None:
        self._queue.retire_instance(self._instance)

    @override
    def close(self) -> None:
        try:
            self._wait_for_commit()
        finally:
            self._side_thread.shutdown()

    def cancel_if_unwanted(self) -> None:
        """Cancel the call in progress if no client wants it any more. Any thread."""
        self._caller.cancel_if_unwanted()


def _batch(batch: StepWork) -> StepBatch:
    return StepBatch(batch, [StepOutcome(sequence, row_request) for sequence, row_request in batch.steps])


def _state_loader(queue: StepQueue, clock: Clock) -> StateLoader | None:
    if queue.store is None or queue.state_deletes is None:
        return None
    return StateLoader(queue.store, queue.state_deletes, queue, clock, idle_ms=queue.limits.idle_ms)
