"""Which tasks kill workers: those that were being done when one died are tried by themselves, and then left out."""

from typing import Final

from headrace.core.errors import InstanceLostError
from headrace.transforms.work import Work

DEATHS_MAX: Final = 2
"""A task that was being done when this many workers died is what kills them, and is left out."""
LEFT_OUT_MAX: Final = 3
"""A model that so many tasks kill is not killed by what is in them."""


class Deaths:
    """Counts deaths at tasks, for the runs of one runner. One thread.

    Args:
        model: Its name, for errors.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._by_task: dict[int, int] = {}
        self._left_out: list[str] = []
        """What is said of the tasks that kill workers."""

    def suspect(self, task: int) -> bool:
        """Whether a worker died at it: it is to be tried alone, with a checkpoint of every batch, so that it is known where."""
        return task in self._by_task

    def left_out(self, task: int) -> bool:
        """Whether so many workers died at it that it is not tried any more."""
        return self._by_task.get(task, 0) >= DEATHS_MAX

    def kills(self, task: int, work: Work, how: str) -> bool:
        """A worker died, as `how` says, while it did the task: whether the task is left out from now on.

        Raises InstanceLostError when so many tasks kill workers that it cannot be what is in them.
        """
        self._by_task[task] = self._by_task.get(task, 0) + 1
        if not self.left_out(task):
            return False
        self._left_out.append(f"{how} {_place(task, work)}")
        if len(self._left_out) >= LEFT_OUT_MAX:
            raise self._lost()
        return True

    def check(self) -> None:
        """Raise InstanceLostError when a task was left out."""
        if self._left_out:
            raise self._lost()

    def _lost(self) -> InstanceLostError:
        return InstanceLostError(
            self._model,
            f"its workers died, each time that it was tried, {'; '.join(self._left_out)}. What is finished stays: find "
            "out what kills the model there, then --resume",
        )


def _place(task: int, work: Work) -> str:
    """How far a task has come whose every batch was kept."""
    checkpoint = next(iter(work.ledger.checkpoints([task]).values()), None)
    shard = work.plan.tasks[task].shards[len(checkpoint.done) if checkpoint else 0]
    uri = work.plan.objects[shard.index].info.uri
    if checkpoint is None or not checkpoint.entries:
        part = "" if shard.whole else f" (from about byte {shard.start:,} on)"
        return f"at the first records of {uri}{part}, or soon behind them"
    since = f" of its range from about byte {shard.start:,} on" if checkpoint.relative else ""
    return f"at record {checkpoint.record:,}{since} of {uri}, or soon behind it"
