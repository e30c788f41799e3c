"""The checkpoint stores under test, each on a bench with a clock that the test controls."""

from collections.abc import Callable
from pathlib import Path

from headrace.checkpoints.redis import RedisCheckpointStore
from headrace.checkpoints.sqlite import SqliteCheckpointStore
from headrace.checkpoints.store import MemoryCheckpointStore
from headrace.testing import CheckpointBench, ManualClock, ManualWallClock


def memory_bench(kind: type[MemoryCheckpointStore] = MemoryCheckpointStore) -> CheckpointBench:
    clock = ManualClock()
    stores: dict[str, MemoryCheckpointStore] = {}

    def new_store(model: str) -> MemoryCheckpointStore:
        """Return the open store of the model, or an empty one after `close`."""
        if model not in stores or stores[model]._states is None:
            stores[model] = kind(model, clock=clock)
        return stores[model]

    return CheckpointBench(new_store, lambda ms: clock.advance(ms / 1000))


def sqlite_bench(
    path: Path, kind: Callable[..., SqliteCheckpointStore] = SqliteCheckpointStore
) -> CheckpointBench:
    clock = ManualWallClock()
    return CheckpointBench(
        lambda model: kind(path, model, wall_ms=clock.now_ms), lambda ms: clock.advance(int(ms))
    )


def redis_bench(
    server, prefix: str, kind: Callable[..., RedisCheckpointStore] = RedisCheckpointStore
) -> CheckpointBench:
    """Return a bench that ages saved checkpoints, since the server's clock cannot move."""

    def advance(ms: float) -> None:
        with server.client() as client:
            for key in client.keys(f"{prefix}:*"):
                if client.type(key) == "hash":
                    client.hincrby(key, "saved_ms", -int(ms))
                else:
                    for id, _ in client.zscan_iter(key):
                        client.zincrby(key, -int(ms), id)

    connection = {"host": "127.0.0.1", "port": server.port}
    return CheckpointBench(lambda model: kind(connection, model, prefix=prefix), advance)
