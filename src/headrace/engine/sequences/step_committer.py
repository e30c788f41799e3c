"""Commits steps: their sequences continue, and their results are delivered.

A delivered step is final. With checkpoints, it is saved first. Steps whose store call takes long are
set aside until it is finished; other steps and the instance do not wait for them.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from typing_extensions import override

from headrace.core.clock import Clock
from headrace.core.errors import (
    CancelledRequestError,
    HeadraceError,
    InstanceLostError,
    SequenceGoneError,
    UnavailableError,
)
from headrace.engine.backend import Backend
from headrace.engine.batch_caller import CallItem, ModelCall
from headrace.engine.batch_loop import Committer
from headrace.engine.counters import EngineCounters
from headrace.engine.model_methods import internal_error
from headrace.engine.outputs import Outputs
from headrace.engine.pending_request import DEATHS_MAX, PendingRequest, RequestResult, deliver
from headrace.engine.pipe import wake_all
from headrace.engine.request_queue import RequestQueue
from headrace.engine.schedule import TakenBatch
from headrace.engine.sequences.instance_steps import InstanceSteps, StateLoader
from headrace.engine.sequences.row_request import RowRequest, StepItem, StepSequence
from headrace.engine.sequences.sequence_schedule import SequenceSchedule
from headrace.engine.sequences.sequence_store import StoreThread
from headrace.engine.stepper import SequenceEnding

_log = logging.getLogger("headrace.engine")


class StepCommitter(Committer):
    """The committer of one instance's steps. One thread at a time delivers."""

    commits_beside = True

    def __init__(
        self,
        queue: RequestQueue,
        schedule: SequenceSchedule,
        backend: Backend,
        counters: EngineCounters,
        clock: Clock,
        *,
        instance: int,
    ) -> None:
        self._queue = queue
        self._schedule = schedule
        self._steps = InstanceSteps(schedule, instance)
        self._backend = backend
        self._counters = counters
        self._clock = clock
        self._name = backend.metadata.name
        self._state_loader = _state_loader(schedule, self._steps, clock)
        self._store_thread = StoreThread(
            f"headrace-{self._name}-{instance}-checkpoints",
            is_remote=schedule.store is not None and schedule.store.is_remote,
        )
        self._delivering = threading.Lock()
        # With checkpoints, states are loaded first, which waits for the commit of the steps before.
        self.make_items = _make_items if self._state_loader is None else None

    @override
    def prepare(self, taken: TakenBatch, wait_for_commit: Callable[[], None]) -> None:
        """Report ended sequences to the model and to the store, and load the states of the steps."""
        if taken.items is None:
            taken.items = _make_items(taken)
        endings, loader = taken.endings, self._state_loader
        if endings:
            self._backend.end_sequences(endings)
        taken.endings_reported = True
        if loader is None:
            return
        items = _steps(taken)
        missing, ended = loader.missing(items), loader.has_checkpoint(endings)
        if missing or ended:
            # Calls of the store keep the order of the steps.
            wait_for_commit()
        if ended:
            self._store_thread.run(partial(loader.delete_ended, endings), lambda _: None)
        if missing and not self._fetch(loader, missing):
            waiting = set(missing)
            items = taken.items = [o for o in items if o not in waiting]
        taken.items = loader.load(items)

    def _fetch(self, loader: StateLoader, missing: Sequence[StepItem]) -> bool:
        """Fetch the states of these steps. Return False if the steps were set aside for that."""
        try:
            return self._store_thread.run(partial(loader.fetch, missing), partial(self._resume, missing))
        except UnavailableError as error:
            for item in missing:
                item.withdraw(error)
            return True

    def _resume(self, items: Sequence[StepItem], error: BaseException | None) -> None:
        """Queue steps that were set aside again, with their states fetched; or fail them."""
        for item in items:
            if error is None:
                item.undo()
            elif isinstance(error, UnavailableError):
                item.withdraw(error)
        self._commit_late(items, self._clock.now(), None if isinstance(error, UnavailableError) else error)

    @override
    def commit(self, taken: TakenBatch, calls: Sequence[ModelCall], began_s: float, ended_s: float) -> None:
        """Commit these steps with the results of their calls. If that fails, the steps fail."""
        items = _steps(taken)
        if items:
            self._commit(items, partial(self._save, items, calls, ended_s), ended_s)

    def _save(self, items: Sequence[StepItem], calls: Sequence[ModelCall], now: float) -> Sequence[StepItem]:
        """Apply the calls, and save the steps. Return the steps that were not set aside for that."""
        for call in calls:
            call.apply()
        loader = self._state_loader
        unsaved = [] if loader is None else loader.unsaved(items)
        if loader is None or not unsaved:
            return items
        if self._store_thread.run(partial(loader.save, unsaved), partial(self._commit_late, unsaved, now)):
            return items
        waiting = set(unsaved)
        return [o for o in items if o not in waiting]

    def _commit_late(self, items: Sequence[StepItem], now: float, error: BaseException | None) -> None:
        """Commit steps that were set aside for a call of the store, in the thread of the store."""

        def prepare() -> Sequence[StepItem]:
            if error is not None:
                raise error
            return items

        self._commit(items, prepare, now)

    def _commit(
        self, items: Sequence[StepItem], prepare: Callable[[], Sequence[StepItem]], now: float
    ) -> None:
        """Deliver those of the steps that `prepare` returns. If that fails, the steps fail."""
        completed: list[tuple[PendingRequest, RequestResult]] = []
        wakes: list[Callable[[], None]] = []
        try:
            items = prepare()
            if items:
                with self._delivering:
                    self._deliver(items, now, completed, wakes)
        except BaseException as error:  # noqa: BLE001 - after a defect, no client may wait for these steps
            _log.exception("a commit of steps failed with an internal error", extra={"model": self._name})
            stepping = [item.sequence for item in items if item.done is None]
            others = [item.sequence for item in items if item.done is not None]
            self._fail_corrupted([item.row_request for item in items], stepping, others, completed, error)
        finally:
            wake_all(wakes)

    def _deliver(
        self,
        items: Sequence[StepItem],
        now: float,
        completed: list[tuple[PendingRequest, RequestResult]],
        wakes: list[Callable[[], None]],
    ) -> None:
        for item in items:
            self._report_to_collector(item, wakes, now)
        self._steps.end_steps(items)
        began: list[float | None] = []
        for item in items:
            if item.held and not item.done:
                self._wait_for_space(item)
            if item.done and (result := item.row_request.finish(_request_error(item))) is not None:
                completed.append((item.row_request.entry, result))
                began.append(item.row_request.started_s)
        self._queue.mark_ended([entry for entry, _ in completed])
        for (entry, result), began_s in zip(completed, began, strict=True):
            self._counters.record_result(entry, result, now if began_s is None else began_s, now)
        deliver(completed)
        # Requests that waited behind these get their results now, not after the next call.
        self._queue.deliver_ended()

    def _fail_corrupted(
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
            self._steps.state_corrupted(stepping, others)
            unfinished = [(entry, result) for entry, result in completed if not entry.ended]
            self._queue.mark_ended([entry for entry, _ in completed])
            now = self._clock.now()
            for entry, result in unfinished:
                self._counters.record_result(entry, result, now, now)
        finally:
            deliver(completed)

    def _report_to_collector(self, item: StepItem, wakes: list[Callable[[], None]], now: float) -> None:
        """Pass the outputs or the failure of a step to its collector."""
        row_request = item.row_request
        if item.error is not None:
            # A failing row fails its request, unless the request accepts missing rows.
            rows_wanted = row_request.collector.add_failure(row_request, item.row, item.why, item.traceback)
            item.finished = item.finished or not rows_wanted
            return
        if not item.outputs:
            return
        self._count_step(row_request, now)
        row_request.sequence_ended = item.is_last
        if not item.silent:
            self._add_output(item, item.outputs[0], wakes)

    def _count_step(self, row_request: RowRequest, now: float) -> None:
        last_s = row_request.last_step_s if row_request.again else None
        self._counters.record_step(None if last_s is None else now - last_s)
        row_request.clear_suspicion()
        row_request.last_step_s = now

    def _add_output(self, item: StepItem, outputs: Outputs, wakes: list[Callable[[], None]]) -> None:
        try:
            has_space = item.row_request.collector.add_output(item.row_request, item.row, outputs, wakes)
            item.held = item.rescheduled and not has_space
        except CancelledRequestError:
            item.finished = True
        except HeadraceError as error:
            item.error, item.finished = error, True
        except Exception as error:  # noqa: BLE001 - such as MemoryError: only this request fails
            _log.exception("the outputs of a step could not be collected", extra={"model": self._name})
            item.error, item.finished = internal_error(self._name, error), True

    def _wait_for_space(self, item: StepItem) -> None:
        """Resume a rescheduled sequence once its stream has space."""
        sequence, schedule = item.sequence, self._schedule
        if not item.row_request.collector.when_space(lambda: schedule.resume(sequence)):
            schedule.resume(sequence)

    @override
    def wait_for_commits(self) -> None:
        self._store_thread.wait()

    @override
    def close(self) -> None:
        self._store_thread.close()

    # Defects, and deaths of the instance

    @override
    def fail(self, taken: TakenBatch, error: BaseException) -> None:
        """Fail the taken steps and end their sequences, whose states are unknown now.

        Endings that were not reported to the model are not reported again: they may have raised
        `error`.
        """
        steps = _taken_steps(taken)
        if steps:
            sequences = [sequence for sequence, _ in steps]
            self._fail_corrupted([row_request for _, row_request in steps], sequences, (), [], error)

    @override
    def instance_lost(
        self, taken: Sequence[TakenBatch], died_in: Sequence[CallItem], error: InstanceLostError | None
    ) -> bool:
        endings: list[SequenceEnding] = []
        for each in taken:
            endings += () if each.endings_reported else each.endings
        self._steps.return_endings(endings)
        died = cast("Sequence[StepItem]", died_in)
        intended = bool(died) and all(item.entry.cancelled for item in died)
        exhausted = [item.row_request for item in died if item.row_request.isolate() >= DEATHS_MAX]
        completed: list[tuple[PendingRequest, RequestResult]] = []
        for row_request in exhausted:
            assert error is not None
            if (result := row_request.finish(error)) is not None:
                completed.append((row_request.entry, result))
        stepping = [sequence for each in taken for sequence, _ in _taken_steps(each)]
        self._steps.instance_lost(stepping, exhausted)
        self._queue.mark_ended([entry for entry, _ in completed])
        now = self._clock.now()
        for entry, result in completed:
            self._counters.record_result(entry, result, now, now)
        deliver(completed)
        return intended

    @override
    def instance_restarted(self) -> None:
        self._steps.instance_restarted()

    @override
    def instance_given_up(self) -> None:
        self._steps.retire_instance()


def _make_items(taken: TakenBatch) -> Sequence[StepItem]:
    return [StepItem(sequence, row_request) for sequence, row_request in taken.work]


def _steps(taken: TakenBatch) -> Sequence[StepItem]:
    return cast("Sequence[StepItem]", taken.items or ())


def _taken_steps(taken: TakenBatch) -> Sequence[tuple[StepSequence, RowRequest]]:
    """Return the steps of a batch, without those that `prepare` removed."""
    if taken.items is None:
        return taken.work
    return [(item.sequence, item.row_request) for item in _steps(taken)]


def _state_loader(schedule: SequenceSchedule, steps: InstanceSteps, clock: Clock) -> StateLoader | None:
    if schedule.store is None or schedule.state_deletes is None:
        return None
    return StateLoader(schedule.store, schedule.state_deletes, steps, clock, idle_ms=schedule.limits.idle_ms)


def _request_error(item: StepItem) -> BaseException | None:
    """Return the error of a complete row request, or None."""
    row_request = item.row_request
    if item.error is not None and item.finished:
        return item.error
    if row_request.row < row_request.rows and item.ends:
        return SequenceGoneError(
            row_request.id,
            f"its model ended it at row {row_request.row} of {row_request.rows} of this request: "
            "the later rows were not predicted",
        )
    return None
