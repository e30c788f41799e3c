"""Find tasks that kill workers: tasks of a dead worker are retried alone, then excluded."""

from typing import Final

from headrace.core.errors import InstanceLostError
from headrace.runs.work import RunWork

DEATHS_MAX: Final = 2
"""The number of workers that a task may kill before it is excluded."""
EXCLUDED_TASKS_MAX: Final = 3
"""The number of excluded tasks after which the model itself is blamed."""


class WorkerDeaths:
    """The deaths of a runner's workers, by task. Used by one thread.

    Args:
        model: The model's name, for errors.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._by_task: dict[int, int] = {}
        self._excluded: list[str] = []
        """Descriptions of the excluded tasks, for the error."""

    def is_suspect(self, task: int) -> bool:
        """Return True if a worker died at the task.

        Such a task is retried alone, with a checkpoint of every batch, to locate the fatal record.
        """
        return task in self._by_task

    def is_excluded(self, task: int) -> bool:
        """Return True if the task killed DEATHS_MAX workers and is not retried."""
        return self._by_task.get(task, 0) >= DEATHS_MAX

    def record_death(self, task: int, work: RunWork, reason: str) -> bool:
        """Record the death of a worker during the task.

        Return True if the task is excluded from now on.

        Raises InstanceLostError if EXCLUDED_TASKS_MAX tasks are excluded: the model is the likely
        cause.
        """
        self._by_task[task] = self._by_task.get(task, 0) + 1
        if not self.is_excluded(task):
            return False
        self._excluded.append(f"{reason} {_describe_position(task, work)}")
        if len(self._excluded) >= EXCLUDED_TASKS_MAX:
            raise self._error()
        return True

    def check(self) -> None:
        """Raise InstanceLostError if a task is excluded."""
        if self._excluded:
            raise self._error()

    def _error(self) -> InstanceLostError:
        return InstanceLostError(
            self._model,
            f"its workers died repeatedly, {'; '.join(self._excluded)}. Finished tasks stay: find out what "
            "kills the model there, then --resume",
        )


def _describe_position(task: int, work: RunWork) -> str:
    """Return the position that a task with a checkpoint of every batch has reached."""
    checkpoint = next(iter(work.ledger.checkpoints([task]).values()), None)
    shard = work.plan.tasks[task].shards[len(checkpoint.done) if checkpoint else 0]
    uri = work.plan.objects[shard.index].info.uri
    if checkpoint is None or not checkpoint.is_inside:
        part = "" if shard.is_whole else f" (from about byte {shard.start:,} on)"
        return f"at the first records of {uri}{part}, or soon after them"
    since = f" of its range from about byte {shard.start:,} on" if checkpoint.relative else ""
    return f"at record {checkpoint.record:,}{since} of {uri}, or soon after it"
