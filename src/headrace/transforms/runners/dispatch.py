"""Who does which tasks: what is left, what is assigned, what was told, and who died. No transport: runners carry messages.

Arrives: tasks, messages of workers, deaths. Leaves: assignments; and the run's progress, added up of what workers tell.
What is done is in the ledger: a worker that dies costs what it had not committed, which another one does again.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from typing import Final

from headrace.core.errors import ModelLoadError
from headrace.core.predictor import PredictorStatistics
from headrace.core.tensor import ModelMetadata
from headrace.pipeline.ledger import Counts
from headrace.transforms.locality import Locality
from headrace.transforms.observation import Observation
from headrace.transforms.plan import Task
from headrace.transforms.records import Checkpoint, Spot, TaskRecord
from headrace.transforms.report import sum_counts
from headrace.transforms.runners.deaths import DEATHS_MAX, Deaths
from headrace.transforms.runners.messages import (
    Assignment,
    Message,
    Tally,
    add_up,
    counts_of,
    error_of,
    metadata_of,
    statistics_of,
)
from headrace.transforms.work import Work

_log = logging.getLogger("headrace.transform")

ASSIGNED_TASKS_MAX: Final = 8
ASSIGNMENTS_AIM: Final = 4
"""How many assignments each worker should get, so that none is left with much to do at the end."""


@dataclass(slots=True, eq=False)
class Hand:
    """One worker, as the run sees it: who it is to the runner, and what it was given and has told."""

    locality: Locality = field(default_factory=Locality)
    ready: bool = False
    """Whether it has loaded the model."""
    assigned: tuple[int, ...] = ()
    done: set[int] = field(default_factory=set[int])
    """Of what is assigned."""
    counts: dict[int, Counts] = field(default_factory=dict[int, Counts])
    """What each task came to that it has done."""
    tally: Tally = field(default_factory=Tally)


class Dispatcher:
    """Gives tasks to hands; `begin` once for each run of tasks. One thread, but for what says otherwise.

    Args:
        model: Its name, for errors.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._deaths = Deaths(model)
        self.metadata: ModelMetadata | None = None
        """The model's, once a worker has loaded it, or somebody else."""
        self._gone: list[Tally] = []
        """Of the workers that are no more."""
        self._kept: dict[int, Counts] = {}
        """By task, what stays of the work of those that died."""
        self._resumed: Mapping[int, Checkpoint] = {}
        self._unloaded = 0
        """Workers that died before they had loaded the model, one after the other."""
        self._left: list[int] = []
        self._wanted: Sequence[Task] = ()
        self._done = set[int]()
        """Of what is wanted, as far as it is known."""
        self._begins: Mapping[tuple[int, int], Spot] = {}
        self._before = Counts()
        self._work: Work | None = None
        self._peak_memory_mb = 0.0
        self.hands: list[Hand] = []
        """Those that work, or are about to."""

    @property
    def left(self) -> int:
        """How many tasks nobody has yet."""
        return len(self._left)

    # Messages

    def heard(self, hand: Hand, message: Message) -> None:
        """Take what a worker tells. Raises the error that it tells of."""
        work = self._work
        if "error" in message:
            raise error_of(message["error"])
        if "ready" in message:
            hand.ready = True
            self._unloaded = 0
            self.metadata = self.metadata or metadata_of(message["ready"])
        elif "tally" in message:
            hand.tally = Tally.from_json(message["tally"])
        elif "task" in message and work is not None:
            record = TaskRecord.from_json(message["task"].encode())
            hand.done.add(record.task)
            self._done.add(record.task)
            hand.counts[record.task] = _counts_of_record(record)
            work.on_task(record)
        elif "observed" in message and work is not None and work.observation is not None:
            work.observation.add_all(Observation.from_json(message["observed"]))
        elif "idle" in message:
            hand.assigned = ()

    # Tasks

    def begin(
        self,
        work: Work,
        tasks: Sequence[Task],
        begins: Mapping[tuple[int, int], Spot],
        checkpoints: Mapping[int, Checkpoint] | None = None,
    ) -> None:
        """From here on, these tasks are to be done; the run's progress counts what is in their `checkpoints` already."""
        self._work, self._wanted, self._begins = work, tasks, begins
        self._kept, self._resumed, self._done = {}, checkpoints or {}, set[int]()
        self._left = [task.number for task in tasks]
        self._before = counts_of(work.progress)

    def assign(self, hand: Hand, *, of: int) -> Assignment | None:
        """What an idle worker, one `of` so many, does next; None when there is nothing for it."""
        assert self._work is not None, "begun before"
        if not self._left or hand.assigned or not hand.ready:
            return None
        chosen = self._choose(hand.locality, assigned_tasks(len(self._left), of))
        if not chosen:
            return None
        # A task that a worker died of is tried by itself, so that it is known, and where in it.
        alone = self._deaths.suspect(chosen[0])
        unsuspected = list(takewhile(lambda number: not self._deaths.suspect(number), chosen))
        chosen = chosen[:1] if alone else unsuspected
        taken = frozenset(chosen)
        self._left = [number for number in self._left if number not in taken]
        hand.assigned = tuple(chosen)
        hand.done.clear()
        return assignment_of(self._work, hand.assigned, self._begins, alone=alone)

    def _choose(self, locality: Locality, size: int) -> list[int]:
        assert self._work is not None, "begun before"
        tasks = self._work.plan.tasks
        own = list(islice((n for n in self._left if locality.is_own(tasks[n])), size))
        if own or locality.other_regions == "never":
            return own
        # Of others' tasks one at a time, and the last: that is the one its own workers come to last.
        return self._left[-1:]

    def assign_all(self, *, of: int) -> list[Assignment]:
        """All that is left, for an engine that gives it to its workers, about so many, as it likes; `recover` afterwards."""
        assert self._work is not None, "begun before"
        suspects = [number for number in self._left if self._deaths.suspect(number)]
        others = [number for number in self._left if not self._deaths.suspect(number)]
        size = assigned_tasks(len(others), of)
        groups = [others[at : at + size] for at in range(0, len(others), size)]
        self._left = []
        alone = [assignment_of(self._work, [number], self._begins, alone=True) for number in suspects]
        return alone + [assignment_of(self._work, group, self._begins, alone=False) for group in groups]

    def recover(self) -> None:
        """Nobody works any more: what nobody has done is left again, but for tasks that kill workers."""
        work = self._work
        assert work is not None, "begun before"
        self._left = []
        for task in self._wanted:
            record = None if task.number in self._done or work.replaces else work.ledger.task(task.number)
            if record is not None:
                # By a worker that could not say so any more.
                self._done.add(task.number)
                self._kept[task.number] = _counts_of_record(record)
                work.on_task(record)
            elif task.number not in self._done and not self._deaths.left_out(task.number):
                self._left.append(task.number)

    def told(self) -> None:
        """Bring the run's progress up to date, and tell of it."""
        assert self._work is not None, "begun before"
        before = sum_counts(kept.minus(self._counted(task)) for task, kept in self._kept.items())
        add_up(self._work.progress, self.tallies(), self._before.plus(before))
        self._peak_memory_mb = max(self._peak_memory_mb, self._memory_mb())
        self._work.on_batch(None)

    def complete(self, *, drained: bool) -> bool:
        """Nobody works any more: whether all is done, going by the ledger.

        Raises InstanceLostError for tasks that kill workers, unless it was drained: then nobody asked for all of them.
        """
        assert self._work is not None, "begun before"
        if not drained:
            self._deaths.check()
        return not self._left and {task.number for task in self._wanted} <= self._work.ledger.done()

    # Deaths

    def died(self, hand: Hand, how: str, *, by_itself: bool = True) -> None:
        """A worker has gone, as `how` says: what it had not committed is to be done again.

        `by_itself`: it may have died of what it did; else of what took others with it, as a machine does. Raises
        ModelLoadError when workers die while they load, and InstanceLostError when too many tasks kill them.
        """
        work = self._work
        undone = [n for n in hand.assigned if n not in hand.done and not self._committed(hand, n)]
        self._keep(hand, undone)
        self.released(hand)
        _log.warning("worker died", extra={"how": how, "tasks": undone})
        if work is not None and undone and by_itself and self._deaths.kills(undone[0], work, how):
            undone = undone[1:]
        elif not undone and not hand.ready and by_itself:
            self._unloaded += 1
            if self._unloaded >= DEATHS_MAX:
                raise ModelLoadError(self._model, f"its workers end {how} while they load it")
        self._left[:0] = undone

    def released(self, hand: Hand) -> None:
        """A worker is no more."""
        self.hands.remove(hand)
        self._gone.append(hand.tally)

    def _committed(self, hand: Hand, number: int) -> bool:
        """Whether a worker had committed a task without having been able to say so."""
        work = self._work
        record = None if work is None or work.replaces else work.ledger.task(number)
        if record is not None and work is not None:
            self._done.add(number)
            hand.counts[number] = _counts_of_record(record)
            work.on_task(record)
        return record is not None

    def _keep(self, hand: Hand, undone: Sequence[int]) -> None:
        """Count only what stays of a dead worker's work: what it had not kept is done, and counted, again."""
        hand.tally = replace(hand.tally, records=0, rows_out=0, rows_failed=0, objects_broken=0)
        self._kept |= hand.counts
        if self._work is None or self._work.replaces:
            return
        for task, checkpoint in self._work.ledger.checkpoints(undone).items():
            self._kept[task] = _counts_of(checkpoint)

    def _counted(self, task: int) -> Counts:
        """What the run's progress counted of a task before it began."""
        return _counts_of(self._resumed[task]) if task in self._resumed else Counts()

    # Figures; safe from any thread

    def tallies(self) -> list[Tally]:
        """Of all workers that ever were."""
        return [*self._gone, *(hand.tally for hand in list(self.hands))]

    def statistics(self) -> PredictorStatistics:
        """See `Runner.statistics`."""
        return statistics_of(self.tallies())

    def reading(self) -> Sequence[str]:
        """See `Runner.reading`."""
        return [hand.tally.reading for hand in list(self.hands) if hand.assigned]

    def cpu_s(self) -> float:
        """See `Runner.cpu_s`."""
        return sum(tally.cpu_s for tally in self.tallies())

    def peak_memory_mb(self) -> float:
        """See `Runner.peak_memory_mb`."""
        return max(self._peak_memory_mb, self._memory_mb())

    def _memory_mb(self) -> float:
        return sum(hand.tally.peak_memory_mb for hand in list(self.hands))


def _counts_of_record(record: TaskRecord) -> Counts:
    return sum_counts(shard.counts for shard in record.shards)


def _counts_of(checkpoint: Checkpoint) -> Counts:
    return checkpoint.counts.plus(sum_counts(shard.counts for shard in checkpoint.done))


def busy(hands: Iterable[Hand]) -> bool:
    """Whether any of them has something to do."""
    return any(hand.assigned for hand in hands)


def assignment_of(
    work: Work, numbers: Sequence[int], begins: Mapping[tuple[int, int], Spot], *, alone: bool
) -> Assignment:
    """The assignment of some tasks; `alone`: the one task is suspected of killing workers."""
    shards = [s for number in numbers for s in work.plan.tasks[number].shards]
    keys = {(s.index, s.number) for s in shards} & begins.keys()
    return Assignment(
        tuple(numbers),
        {key: begins[key] for key in keys},
        replaces=work.replaces,
        observed_since_s=work.observation.began_s if work.observation is not None else None,
        keep_all=alone,
        run=work.run,
    )


def assigned_tasks(left: int, workers: int) -> int:
    """How many tasks a worker is given at once, when so many are left for so many workers."""
    return max(1, min(ASSIGNED_TASKS_MAX, left // (workers * ASSIGNMENTS_AIM)))
