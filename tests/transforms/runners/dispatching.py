"""A dispatcher's surroundings without workers: tasks in regions, a real ledger, and what workers would say."""

from collections.abc import Callable, Sequence

from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.pipeline.ledger import Counts
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores
from headrace.transforms.ledger import TransformLedger
from headrace.transforms.locality import Locality
from headrace.transforms.plan import PlannedObject, Shard, Task, TransformPlan
from headrace.transforms.records import ShardRecord, TaskRecord
from headrace.transforms.runners.dispatch import Dispatcher, Hand
from headrace.transforms.runners.messages import Message, metadata_json
from headrace.transforms.work import Work
from transforms.support import settings_of

OUT = "memory://out/run/"
METADATA = ModelMetadata(
    name="double",
    inputs=(TensorSpec("x", "FP64", (-1, 2)),),
    outputs=(TensorSpec("y", "FP64", (-1,)),),
)
READY: Message = {"ready": metadata_json(METADATA)}
IDLE: Message = {"idle": True, "complete": True}
ROWS = 5
"""Of every task; one of them fails."""


def plan_of(regions: Sequence[str | None]) -> TransformPlan:
    """A task for each region, of one object."""
    objects = tuple(
        PlannedObject(ObjectInfo(f"memory://in/{n}.csv", 100, "e"), f"{n}.out", region)
        for n, region in enumerate(regions)
    )
    return TransformPlan(objects, tuple(Task(n, (Shard(n),), region) for n, region in enumerate(regions)))


def work_of(
    regions: Sequence[str | None], on_task: Callable[[TaskRecord], None] = lambda _: None, **more
) -> Work:
    stores = Stores()
    ledger = TransformLedger(stores.for_uri(OUT), OUT)
    return Work(
        plan=plan_of(regions),
        settings=settings_of(),
        stores=stores,
        ledger=ledger,
        learned={},
        on_task=on_task,
        **more,
    )


def record(task: int, *, attempt: str = "a", region: str | None = None) -> TaskRecord:
    shard = ShardRecord(task, 0, Counts(ROWS, ROWS - 1, 1), 9)
    return TaskRecord(task, attempt, (shard,), 0.5, region)


def told(task: int) -> Message:
    return {"task": record(task).to_json().decode()}


def hand_of(dispatcher: Dispatcher, *, ready: bool = True, **locality) -> Hand:
    """One more worker."""
    hand = Hand(Locality(**locality))
    dispatcher.hands.append(hand)
    if ready:
        dispatcher.heard(hand, READY)
    return hand
