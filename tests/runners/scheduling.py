"""The environment of a scheduler without workers: tasks in regions, a ledger, and messages."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.runners.messages import Message
from headrace.runners.scheduler import TaskScheduler, WorkerHandle
from headrace.runs.ledger import Ledger
from headrace.runs.plan import Plan, Shard, Task
from headrace.runs.records import Counts, PlannedObject, ShardRecord, TaskRecord
from headrace.runs.tasks import Locality
from headrace.runs.work import RunWork
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores
from runs.support import make_settings

OUT = "memory://out/run/"
METADATA = ModelMetadata(
    name="double",
    inputs=(TensorSpec("x", "FP64", (-1, 2)),),
    outputs=(TensorSpec("y", "FP64", (-1,)),),
)
READY: Message = {"ready": asdict(METADATA)}
IDLE: Message = {"idle": True, "complete": True}
ROWS = 5
"""The number of rows of each task; one of them fails."""


def plan_of(regions: Sequence[str | None]) -> Plan:
    """Return a plan with one task of one object for each region."""
    objects = tuple(
        PlannedObject(ObjectInfo(f"memory://in/{n}.csv", 100, "e"), f"{n}.out", region)
        for n, region in enumerate(regions)
    )
    return Plan(objects, tuple(Task(n, (Shard(n),), region) for n, region in enumerate(regions)))


def work_of(
    regions: Sequence[str | None], on_task: Callable[[TaskRecord], None] = lambda _: None, **more
) -> RunWork:
    stores = Stores()
    ledger = Ledger(stores.for_uri(OUT), OUT)
    return RunWork(
        plan=plan_of(regions),
        settings=make_settings(),
        stores=stores,
        ledger=ledger,
        on_task=on_task,
        **more,
    )


def record(task: int, *, attempt: str = "a", region: str | None = None) -> TaskRecord:
    shard = ShardRecord(task, 0, Counts(ROWS, ROWS - 1, 1), 9)
    return TaskRecord(task, attempt, (shard,), 0.5, region)


def task_message(task: int) -> Message:
    return {"task": record(task).to_json().decode()}


def add_worker(scheduler: TaskScheduler, *, ready: bool = True, **locality) -> WorkerHandle:
    """Return the handle of a new worker."""
    handle = WorkerHandle(Locality(**locality))
    scheduler.handles.append(handle)
    if ready:
        scheduler.on_message(handle, READY)
    return handle
