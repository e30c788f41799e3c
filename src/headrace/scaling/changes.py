"""The steps that bring the workers of a pool to a wanted number without harm to a job. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.jobs.worker_registry import WorkerRecord, WorkerState
from headrace.scaling.actuator import Members


@dataclass(frozen=True, slots=True)
class Changes:
    """The steps of one round, in this order. The actuator makes the pool have `workers` members."""

    undrain: tuple[WorkerRecord, ...] = ()
    drain: tuple[WorkerRecord, ...] = ()
    ended: tuple[WorkerRecord, ...] = ()
    """Members that claim nothing and run nothing: they can end."""
    workers: int = 0


def plan_changes(wanted: int, members: Members, *, drained_by: str) -> Changes:
    """Return the steps to `wanted` claiming members.

    A surplus drains: idle members first, then those with the fewest jobs, the youngest of these first.
    Members that are starting cannot drain yet; they are superfluous next time. A shortage ends drains
    that `drained_by` ordered, before new members start.
    """
    claiming = [record for record in members.registered if not record.draining]
    draining = [record for record in members.registered if record.draining]
    shortage = max(0, wanted - len(claiming) - members.starting)
    undrain = [record for record in draining if record.draining_by == drained_by][:shortage]
    surplus = max(0, len(claiming) - wanted)
    names = {record.info.name for record in undrain}
    ended = [
        record for record in draining if record.state is WorkerState.DRAINED and record.info.name not in names
    ]
    workers = members.count - len(ended) + shortage - len(undrain)
    return Changes(tuple(undrain), tuple(_to_drain(claiming, surplus)), tuple(ended), workers)


def _to_drain(claiming: Sequence[WorkerRecord], count: int) -> list[WorkerRecord]:
    by_jobs = sorted(claiming, key=lambda record: (record.running, -record.started_at_ms, record.info.name))
    return by_jobs[:count]
