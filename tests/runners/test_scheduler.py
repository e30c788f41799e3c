"""Workers start, work, report and die in any order: every task is scheduled to one live worker."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import levels
from headrace.core.errors import InstanceLostError, ModelLoadError
from headrace.runners.messages import WorkerCounters
from headrace.runners.scheduler import (
    ASSIGNED_TASKS_MAX,
    DEATHS_MAX,
    EXCLUDED_TASKS_MAX,
    TaskScheduler,
    WorkerHandle,
    any_busy,
)
from headrace.runs.records import Counts, ShardPosition, TaskCheckpoint
from headrace.runs.work import RunWork
from runners.scheduling import IDLE, READY, ROWS, add_worker, record, task_message, work_of

REGIONS = st.sampled_from([None, "eu", "us"])


class SchedulerMachine(RuleBasedStateMachine):
    """A run until too many tasks have killed workers, or too many workers died while loading."""

    @initialize(regions=st.lists(REGIONS, min_size=1, max_size=30), workers=st.integers(1, 4))
    def begin(self, regions, workers) -> None:
        self.done: set[int] = set()
        self.work = work_of(regions, lambda record: self.done.add(record.task))
        self.tasks, self.of = self.work.plan.tasks, workers
        self.scheduler = TaskScheduler("double")
        self.scheduler.begin(self.work, self.tasks)
        self.unreported: dict[int, list[int]] = {}
        """The committed and unreported tasks of each worker."""
        self.orphans: list[list[int]] = []
        """The tasks of lost workers that are still alive."""
        self.deaths: dict[int, int] = {}
        self.is_excluded: set[int] = set()
        self.unloaded = 0
        self.over = False

    @property
    def handles(self) -> list[WorkerHandle]:
        return self.scheduler.handles

    def doing(self, handle: WorkerHandle) -> list[int]:
        """Return the tasks that a worker has not committed, as far as it knows."""
        mine = {*handle.done, *self.unreported.get(id(handle), ())}
        return [n for n in handle.assigned if n not in mine]

    def chosen(self, data, handles: list[WorkerHandle]) -> WorkerHandle:
        return handles[data.draw(st.integers(0, len(handles) - 1))]

    @precondition(lambda self: not self.over and len(self.handles) < 6)
    @rule(region=REGIONS, other=st.sampled_from(["idle", "never"]))
    def add_worker_rule(self, region, other) -> None:
        add_worker(self.scheduler, ready=False, region=region, other_regions=other)

    @precondition(lambda self: any(not h.ready for h in self.handles))
    @rule(data=st.data())
    def load(self, data) -> None:
        self.scheduler.on_message(self.chosen(data, [h for h in self.handles if not h.ready]), READY)
        self.unloaded = 0

    @precondition(lambda self: not self.over and self.handles)
    @rule(data=st.data())
    def assign(self, data) -> None:
        handle = self.chosen(data, self.handles)
        before, had = self._left(), handle.assigned
        order = self.scheduler.assign(handle, workers=self.of)
        near = [n for n in before if handle.locality.is_local(self.tasks[n])]
        may = before if handle.locality.other_regions == "idle" else near
        if order is None:
            assert had or not handle.ready or not may
            assert self._left() == before
            return
        assert not had
        assert handle.ready
        assert 1 <= len(order.tasks) <= ASSIGNED_TASKS_MAX
        assert order.run_id == self.work.run_id
        assert set(order.tasks) <= set(may)
        if not set(order.tasks) <= set(near):
            assert (near, len(order.tasks)) == ([], 1)
        suspects = [n for n in order.tasks if self.deaths.get(n)]
        assert order.checkpoint_all == bool(suspects)
        assert not suspects or len(order.tasks) == 1

    @precondition(lambda self: any(self.doing(h) for h in self.handles))
    @rule(data=st.data())
    def commit(self, data) -> None:
        handle = self.chosen(data, [h for h in self.handles if self.doing(h)])
        task = self.doing(handle)[0]
        self.work.ledger.commit_task(record(task, attempt=str(id(handle))))
        self.unreported.setdefault(id(handle), []).append(task)

    @precondition(lambda self: any(self.unreported.get(id(h)) for h in self.handles))
    @rule(data=st.data())
    def report_task(self, data) -> None:
        handle = self.chosen(data, [h for h in self.handles if self.unreported.get(id(h))])
        self.scheduler.on_message(handle, task_message(self.unreported[id(handle)].pop(0)))

    @precondition(lambda self: any(h.assigned and len(h.done) == len(h.assigned) for h in self.handles))
    @rule(data=st.data())
    def report_idle(self, data) -> None:
        finished = [h for h in self.handles if h.assigned and len(h.done) == len(h.assigned)]
        self.scheduler.on_message(self.chosen(data, finished), IDLE)

    @precondition(lambda self: any(self.orphans))
    @rule(data=st.data())
    def orphan_commits(self, data) -> None:
        orphan = [o for o in self.orphans if o]
        self.work.ledger.commit_task(
            record(orphan[data.draw(st.integers(0, len(orphan) - 1))].pop(0), attempt="orphan")
        )

    @precondition(lambda self: not self.over and self.handles)
    @rule(data=st.data(), blame_task=st.booleans())
    def lose_worker(self, data, blame_task) -> None:
        handle = self.chosen(data, self.handles)
        ledger = self.work.ledger
        undone = [n for n in handle.assigned if n not in handle.done and ledger.task(n) is None]
        if not blame_task:
            self.orphans.append(list(self.doing(handle)))
        self.unreported.pop(id(handle), None)
        if blame_task and undone:
            self.deaths[undone[0]] = self.deaths.get(undone[0], 0) + 1
            if self.deaths[undone[0]] >= DEATHS_MAX:
                self.is_excluded.add(undone[0])
        self.unloaded += blame_task and not handle.ready
        if len(self.is_excluded) >= EXCLUDED_TASKS_MAX or self.unloaded >= DEATHS_MAX:
            self.over = True
            expected = ModelLoadError if self.unloaded >= DEATHS_MAX else InstanceLostError
            with pytest.raises(expected, match="with status 9"):
                self.scheduler.on_worker_died(handle, "with status 9", blame_task=blame_task)
            return
        self.scheduler.on_worker_died(handle, "with status 9", blame_task=blame_task)
        assert handle not in self.handles

    @precondition(lambda self: self.over)
    @rule()
    def nothing_more(self) -> None:
        """Do nothing: the run has ended with an error."""

    def _left(self) -> list[int]:
        return list(self.scheduler._left)

    @invariant()
    def every_task_is_at_one_place(self) -> None:
        if not hasattr(self, "work") or self.over:
            return
        left, doing = self._left(), [n for h in self.handles for n in h.assigned if n not in h.done]
        places = [*left, *doing, *self.is_excluded]
        assert len(places) == len(set(places))
        assert not self.done & set(doing)
        assert {*places, *self.done} == set(range(len(self.tasks)))
        assert self.scheduler.left == len(left)
        assert any_busy(self.handles) == any(h.assigned for h in self.handles)

    def teardown(self) -> None:
        """Finish the run with one more worker that may run every task."""
        if not hasattr(self, "work") or self.over:
            return
        last_worker = add_worker(self.scheduler)
        while self._left() or any_busy(self.handles):
            for handle in self.handles:
                if handle.ready and not handle.assigned:
                    self.scheduler.assign(handle, workers=self.of)
                for n in [n for n in handle.assigned if n not in handle.done]:
                    self.work.ledger.commit_task(record(n))
                    self.scheduler.on_message(handle, task_message(n))
                self.scheduler.on_message(handle, IDLE)
        assert last_worker in self.handles
        if self.is_excluded:
            with pytest.raises(InstanceLostError) as caught:
                self.scheduler.complete(drained=False)
            assert str(caught.value).count("with status 9") == len(self.is_excluded)
            assert not self.scheduler.complete(drained=True) or self._all_committed()
        else:
            assert self.scheduler.complete(drained=False)
            assert self.done == set(range(len(self.tasks)))

    def _all_committed(self) -> bool:
        return len(self.work.ledger.tasks()) == len(self.tasks)


SchedulerMachine.TestCase.settings = settings(max_examples=levels.examples(0.5), stateful_step_count=40)
TestScheduler = SchedulerMachine.TestCase
TestScheduler.__doc__ = "The machine, as a test."


def counters_message(records: int, failed: int = 0, **more) -> dict:
    return {
        "tally": WorkerCounters(
            records=records, rows_out=records - failed, rows_failed=failed, **more
        ).to_json()
    }


def begun(regions=(None,) * 3, **more) -> tuple[TaskScheduler, RunWork]:
    work = work_of(regions, **more)
    scheduler = TaskScheduler("double")
    scheduler.begin(work, work.plan.tasks)
    return scheduler, work


def test_equal_workers_are_distinct():
    scheduler, _ = begun()
    first, second = (add_worker(scheduler, ready=False) for _ in range(2))
    scheduler.on_worker_died(second, "with its machine", blame_task=False)
    assert scheduler.handles[0] is first


def test_repeated_work_is_counted_once():
    """Otherwise the loss of a machine could exceed the limit of failed records."""
    scheduler, work = begun()
    first = add_worker(scheduler)
    order = scheduler.assign(first, workers=1)
    assert order is not None
    assert order.tasks == (0,)
    # Half of the task and 2 records after the checkpoint; then its machine dies.
    work.ledger.checkpoint(TaskCheckpoint(0, (), counts=Counts(3, 2, 1)))
    scheduler.on_message(first, counters_message(5, failed=1, batches=4, cpu_s=2.0))
    scheduler.update_progress()
    assert (work.progress.records, work.progress.rows_failed) == (5, 1)
    scheduler.on_worker_died(first, "with its machine", blame_task=False)
    scheduler.update_progress()
    assert (work.progress.records, work.progress.rows_failed) == (3, 1)
    # Another worker resumes from the checkpoint and runs one more task.
    second = add_worker(scheduler)
    scheduler.assign(second, workers=1)
    scheduler.on_message(second, counters_message(2))
    work.ledger.commit_task(record(0))
    scheduler.on_message(second, task_message(0))
    scheduler.on_message(second, IDLE)
    scheduler.assign(second, workers=1)
    scheduler.on_message(second, counters_message(2 + ROWS, failed=1))
    work.ledger.commit_task(record(1))
    scheduler.update_progress()
    assert (work.progress.records, work.progress.rows_failed) == (10, 2)
    # It dies before it reports that task, which is counted all the same.
    scheduler.on_worker_died(second, "with its machine", blame_task=False)
    scheduler.update_progress()
    assert (work.progress.records, work.progress.rows_failed) == (2 * ROWS, 2)
    assert work.progress.batches == 4
    assert scheduler.cpu_s() == 2.0
    assert scheduler.left == 1


def test_resumed_checkpoint_is_counted_once():
    work = work_of([None])
    checkpoint = TaskCheckpoint(0, (), counts=Counts(3, 2, 1))
    work.progress.records, work.progress.rows_failed = 3, 1
    scheduler = TaskScheduler("double")
    scheduler.begin(replace(work, checkpoints={0: checkpoint}), work.plan.tasks)
    handle = add_worker(scheduler)
    scheduler.assign(handle, workers=1)
    scheduler.on_message(handle, counters_message(2))
    work.ledger.commit_task(record(0))
    scheduler.on_message(handle, task_message(0))
    scheduler.on_worker_died(handle, "with its machine", blame_task=False)
    scheduler.update_progress()
    assert (work.progress.records, work.progress.rows_failed) == (ROWS, 1)


def test_reported_error_is_raised():
    scheduler, _ = begun()
    handle = add_worker(scheduler)
    with pytest.raises(ModelLoadError, match="no weights"):
        scheduler.on_message(handle, {"error": {"type": "ModelLoadError", "message": "no weights"}})


def test_assignment_has_range_starts_and_run_id():
    work = work_of([None, None], run_id="r1", replaces=True)
    positions = {(0, 0): ShardPosition(7, 1, 2), (5, 0): ShardPosition(9, 1, 2)}
    scheduler = TaskScheduler("double")
    scheduler.begin(replace(work, range_starts=positions), work.plan.tasks)
    order = scheduler.assign(add_worker(scheduler), workers=1)
    assert order is not None
    assert (order.range_starts, order.run_id, order.replaces) == ({(0, 0): positions[0, 0]}, "r1", True)


def test_fatal_task_is_found_in_any_position():
    """The tasks before it run first; two deaths exclude it, and the others are finished."""
    scheduler, work = begun((None,) * 64)
    deaths, poison = 0, 5
    handle = add_worker(scheduler)
    while scheduler.left or handle.assigned:
        order = scheduler.assign(handle, workers=1)
        assert order is not None
        for task in order.tasks:
            if task == poison:
                deaths += 1
                scheduler.on_worker_died(handle, f"with status {deaths}")
                handle = add_worker(scheduler)
                break
            work.ledger.commit_task(record(task))
            scheduler.on_message(handle, task_message(task))
        else:
            scheduler.on_message(handle, IDLE)
    assert deaths == DEATHS_MAX
    with pytest.raises(InstanceLostError, match=r"with status 2 at the first records of memory://in/5\.csv"):
        scheduler.complete(drained=False)
    assert not scheduler.complete(drained=True)
    assert len(work.ledger.tasks()) == 63


def test_machine_failures_never_exclude_a_task():
    scheduler, work = begun((None,))
    for _ in range(3 * DEATHS_MAX):
        order = scheduler.assign(handle := add_worker(scheduler), workers=1)
        assert order is not None
        assert not order.checkpoint_all
        scheduler.on_worker_died(handle, "with its machine", blame_task=False)
        scheduler.on_worker_died(add_worker(scheduler, ready=False), "with its machine", blame_task=False)
    assert scheduler.left == 1
    assert not scheduler.complete(drained=False)
    assert work.ledger.tasks() == {}


def test_assign_all_and_recover_cover_every_task():
    done: list[int] = []
    work = work_of([None] * 20, lambda record: done.append(record.task))
    scheduler = TaskScheduler("double")
    scheduler.begin(work, work.plan.tasks)
    assignments = scheduler.assign_all(workers=2)
    assert [n for one in assignments for n in one.tasks] == list(range(20))
    assert {len(one.tasks) for one in assignments} == {2}
    assert scheduler.left == 0
    handle = add_worker(scheduler)
    # One task is reported, one committed by a worker that did not report it, one in progress.
    for number in (3, 7):
        work.ledger.commit_task(record(number))
    scheduler.on_message(handle, task_message(3))
    handle.assigned = (4, 5)
    scheduler.on_worker_died(handle, "(killed)")
    scheduler.recover()
    assert sorted(done) == [3, 7]
    assert scheduler.left == 18
    scheduler.update_progress()
    assert (work.progress.records, work.progress.rows_failed) == (2 * ROWS, 2)
    again = scheduler.assign_all(workers=2)
    assert [(one.tasks, one.checkpoint_all) for one in again if one.checkpoint_all] == [((4,), True)]
    assert sorted(n for one in again for n in one.tasks) == sorted(set(range(20)) - {3, 7})


def test_replaced_tasks_ignore_old_records():
    """The ledger has a record of each task from before."""
    work = work_of([None] * 3, replaces=True)
    for number in range(3):
        work.ledger.commit_task(record(number))
    scheduler = TaskScheduler("double")
    scheduler.begin(work, work.plan.tasks)
    scheduler.assign_all(workers=1)
    handle = add_worker(scheduler)
    scheduler.on_message(handle, task_message(1))
    scheduler.release(handle)
    scheduler.recover()
    assert [n for one in scheduler.assign_all(workers=1) for n in one.tasks] == [0, 2]
