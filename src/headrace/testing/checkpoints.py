"""The conformance suite for checkpoint stores.

Each check takes a bench over empty storage. It raises AssertionError with the guarantee of
`headrace.checkpoints.store` that is broken::

    def my_bench(storage):
        return CheckpointBench(
            lambda model: MyStore(storage, model), advance_ms=storage.advance_ms
        )

    @pytest.mark.parametrize("check", CHECKPOINT_CHECKS, ids=lambda check: check.__name__)
    def test_my_store(check, my_storage):
        with my_bench(my_storage) as bench:
            check(bench)

`SHARED_CHECKPOINT_CHECKS` are for stores that outlive their process.
"""

import math
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Final, Self, TypeVar

from headrace.checkpoints.store import CheckpointStore, SequenceCheckpoint
from headrace.core.errors import UnavailableError
from headrace.testing.expect import equal, raises, true

THREADS: Final = 4
RACE_ROUNDS: Final = 25
LARGE_BYTES: Final = 3 << 20
BATCH_SIZE: Final = 64
WAIT_S: Final = 60.0
"""Limit of each thread in seconds; generous, for busy machines."""
MODEL: Final = "speech"
AWKWARD_IDS: Final = (
    "plain",
    "a space",
    "per%20cent",
    "q?x=1#frag",
    "ünï/日本",
    "emoji-\N{WATER WAVE}",
    "{braces}:of:saved",
    "'quotes'\"double\"",
    "line\nfeed",
    "nul\0inside",
    "*",
    "saved",
    "X" * 256,
    "x" * 256,
)


class CheckpointBench:
    """A factory of stores over one storage, initially empty. Closes the open stores at its end.

    Args:
        new_store: Takes a model's name and returns a store of its checkpoints. Stores of one model
            share their checkpoints. A store that is its own storage (in memory) must be returned again
            while it is open.
        advance_ms: Advances the storage's clock by some milliseconds.
    """

    def __init__(
        self, new_store: Callable[[str], CheckpointStore], advance_ms: Callable[[float], object]
    ) -> None:
        self._new_store = new_store
        self._opened = ExitStack()
        self.advance_ms = advance_ms

    def open(self, model: str = MODEL) -> CheckpointStore:
        """Return another store over the same storage."""
        return self._opened.enter_context(closing(self._new_store(model)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()


CheckpointCheck = Callable[[CheckpointBench], None]
_T = TypeVar("_T")


def check_checkpoint_store(make: Callable[[], CheckpointBench], *, shared: bool) -> None:
    """Run every check, each over new, empty storage.

    With `shared`, include the checks of stores that outlive their process.
    """
    for check in (*CHECKPOINT_CHECKS, *(SHARED_CHECKPOINT_CHECKS if shared else ())):
        with make() as bench:
            check(bench)


def check_save_and_load(bench: CheckpointBench) -> None:
    """Check that checkpoints are loaded unchanged, in the order of the ids, and None if missing."""
    store = bench.open()
    states = [b"", bytes(range(256)), b"\0", _state(LARGE_BYTES), b"same", b"same"]
    saved = [SequenceCheckpoint(f"s-{n}", n + 1, state, 0) for n, state in enumerate(states)]
    equal(store.save(saved), [True] * len(saved), "saving first checkpoints")
    found = _load(store, *reversed([c.id for c in saved]), "missing", "s-0")
    expected = [*[(c.steps, c.state) for c in reversed(saved)], None, (1, b"")]
    true(found == expected, f"loading: got {_without_states(found)}, expected {_without_states(expected)}")
    true(
        all(type(item[1]) is bytes for item in found if item),
        "states are loaded with another type than bytes",
    )
    equal(store.save([]), [], "saving nothing")
    equal(store.load([], idle_ms_max=math.inf), [], "loading nothing")
    largest = (1 << 63) - 1
    equal(store.save([SequenceCheckpoint("s-1", largest, b"late", 2)]), [True], "saving steps of 63 bits")
    equal(_load(store, "s-1"), [(largest, b"late")], "steps of 63 bits")
    equal(
        store.save([SequenceCheckpoint("s-1", largest - 1, b"later", largest - 1)]),
        [False],
        "saving after a checkpoint with other steps",
    )


def check_awkward_ids(bench: CheckpointBench) -> None:
    """Check that ids with special characters neither collide nor change, in all methods."""
    store = bench.open()
    checkpoints = [SequenceCheckpoint(id, n + 1, id.encode(), 0) for n, id in enumerate(AWKWARD_IDS)]
    equal(store.save(checkpoints), [True] * len(checkpoints), "saving awkward ids")
    equal(_load(store, *AWKWARD_IDS), [(c.steps, c.state) for c in checkpoints], "loading awkward ids")
    store.delete(AWKWARD_IDS[:5])
    expected = [None] * 5 + [(c.steps, c.state) for c in checkpoints[5:]]
    equal(_load(store, *AWKWARD_IDS), expected, "awkward ids after five were deleted")
    bench.advance_ms(1000)
    count = len(AWKWARD_IDS) - 5
    equal(store.purge(idle_ms_max=500, count_max=100), count, "the number of purged awkward ids")
    equal(_load(store, *AWKWARD_IDS), [None] * len(AWKWARD_IDS), "awkward ids after they were purged")


def check_previous_steps(bench: CheckpointBench) -> None:
    """Check that a checkpoint is saved only if the stored one has its `previous_steps`.

    A refused checkpoint changes nothing.
    """
    store = bench.open()
    equal(
        store.save([SequenceCheckpoint("a", 5, b"orphan", 4)]), [False], "saving after a missing checkpoint"
    )
    equal(_load(store, "a"), [None], "a checkpoint that was refused")
    store.save([SequenceCheckpoint("a", 1, b"one", 0)])
    equal(store.save([SequenceCheckpoint("a", 4, b"four", 1)]), [True], "saving after the stored checkpoint")
    for previous_steps in (1, 3, 5):
        equal(
            store.save([SequenceCheckpoint("a", previous_steps + 1, b"stale", previous_steps)]),
            [False],
            f"saving after step {previous_steps}, with step 4 stored",
        )
        equal(_load(store, "a"), [(4, b"four")], "the stored checkpoint after a refusal")
    store.delete(["a"])
    equal(store.save([SequenceCheckpoint("a", 5, b"five", 4)]), [False], "saving after a deleted checkpoint")
    equal(_load(store, "a"), [None], "a deleted checkpoint after a refusal")


def check_restart(bench: CheckpointBench) -> None:
    """Check that a checkpoint with `previous_steps` of 0 replaces any stored checkpoint."""
    store = bench.open()
    for steps in (7, 1, 9, 9):
        state = b"begun %d" % steps
        equal(
            store.save([SequenceCheckpoint("a", steps, state, 0)]),
            [True],
            f"saving step {steps} of a restarted sequence",
        )
        equal(_load(store, "a"), [(steps, state)], f"the sequence restarted with step {steps}")
    equal(store.save([SequenceCheckpoint("a", 8, b"old", 7)]), [False], "saving after a replaced checkpoint")


def check_repeated_save(bench: CheckpointBench) -> None:
    """Check that an identical checkpoint is saved again, as after a lost response.

    It then counts as saved now.
    """
    store = bench.open()
    store.save([SequenceCheckpoint("a", 1, b"one", 0)])
    second = SequenceCheckpoint("a", 2, b"two", 1)
    equal([store.save([second]), store.save([second])], [[True], [True]], "saving the same checkpoint twice")
    equal(
        store.save([SequenceCheckpoint("a", 2, b"another two", 1)]),
        [False],
        "saving another state with the same steps",
    )
    equal(_load(store, "a"), [(2, b"two")], "a checkpoint that was saved twice")
    bench.advance_ms(60_000)
    store.save([second])
    equal(
        store.load(["a"], idle_ms_max=30_000), [(2, b"two")], "a checkpoint that was saved again within 30 s"
    )


def check_batches(bench: CheckpointBench) -> None:
    """Check that each checkpoint of a batch is saved or refused on its own, in order.

    An id may occur twice.
    """
    store = bench.open()
    ids = [f"s-{n}" for n in range(BATCH_SIZE)]
    equal(
        store.save([SequenceCheckpoint(id, 1, id.encode(), 0) for id in ids]),
        [True] * BATCH_SIZE,
        "saving a batch",
    )
    current = [bool(n % 3) for n in range(BATCH_SIZE)]
    batch = [
        SequenceCheckpoint(id, 2, b"two", 1 if is_current else 7)
        for id, is_current in zip(ids, current, strict=True)
    ]
    equal(store.save(batch), current, "saving a batch with stale checkpoints")
    expected = [
        (2, b"two") if is_current else (1, id.encode()) for id, is_current in zip(ids, current, strict=True)
    ]
    equal(_load(store, *ids), expected, "a batch with refused checkpoints")
    repeated = [
        SequenceCheckpoint("t", 1, b"1", 0),
        SequenceCheckpoint("t", 2, b"2", 1),
        SequenceCheckpoint("t", 9, b"9", 8),
    ]
    equal(store.save(repeated), [True, True, False], "saving three steps of one sequence")
    equal(_load(store, "t"), [(2, b"2")], "a sequence that was three times in a batch")


def check_concurrent_saves(bench: CheckpointBench) -> None:
    """Check that of concurrent saves with the same `previous_steps` one succeeds and is stored.

    Each thread uses its own store.
    """
    stores = [bench.open() for _ in range(THREADS)]
    stores[0].save([SequenceCheckpoint("a", 1, b"", 0)])
    for steps in range(1, RACE_ROUNDS):
        saved = _at_once(
            lambda thread, steps=steps: stores[thread].save(
                [SequenceCheckpoint("a", steps + 1, b"%d" % thread, steps)]
            )[0]
        )
        equal(saved.count(True), 1, f"successful saves of {THREADS}")
        equal(
            _load(stores[0], "a"),
            [(steps + 1, b"%d" % saved.index(True))],
            "the checkpoint of the successful save",
        )


def check_concurrent_batches(bench: CheckpointBench) -> None:
    """Check that concurrent batches of the same ids, in different orders, neither deadlock nor mix."""
    stores = [bench.open() for _ in range(THREADS)]
    ids = [f"s-{n}" for n in range(BATCH_SIZE)]
    stores[0].save([SequenceCheckpoint(id, 1, b"", 0) for id in ids])

    def save(thread: int, steps: int) -> dict[str, bool]:
        order = ids[thread:] + ids[:thread] if thread % 2 else ids[::-1]
        batch = [SequenceCheckpoint(id, steps + 1, b"%d" % thread * 1000, steps) for id in order]
        return dict(zip(order, stores[thread].save(batch), strict=True))

    for steps in range(1, 6):
        saved = _at_once(lambda thread, steps=steps: save(thread, steps))
        for id, found in zip(ids, _load(stores[-1], *ids), strict=True):
            winners = [thread for thread in range(THREADS) if saved[thread][id]]
            equal(len(winners), 1, "the number of successful saves")
            equal(found, (steps + 1, b"%d" % winners[0] * 1000), "the checkpoint of the successful save")


def check_atomic_reads(bench: CheckpointBench) -> None:
    """Check that a shared store returns whole states only.

    Each writing thread has a sequence of its own and must load the checkpoints that it saved.
    """
    store = bench.open()
    ids = [f"s-{n}" for n in range(THREADS)]
    done = threading.Event()

    def read_until_done() -> int:
        torn = 0
        while not done.is_set():
            torn += sum(
                item is not None and item[1] != b"%d;" % item[0] * 5000 for item in _load(store, *ids)
            )
        return torn

    def save_and_load(thread: int) -> bool:
        for steps in range(RACE_ROUNDS):
            checkpoint = SequenceCheckpoint(ids[thread], steps + 1, b"%d;" % (steps + 1) * 5000, steps)
            if store.save([checkpoint]) != [True] or _load(store, ids[thread]) != [checkpoint[1:3]]:
                return False
        return True

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_until_done)
        try:
            succeeded = _at_once(save_and_load)
        finally:
            done.set()
        equal(reading.result(WAIT_S), 0, "the number of torn states")
    true(all(succeeded), "a thread could not save, or did not load the checkpoint it saved")


def check_idle_limit(bench: CheckpointBench) -> None:
    """Check that `load` ignores checkpoints older than `idle_ms_max`; a later save renews the age."""
    store = bench.open()
    store.save([SequenceCheckpoint("a", 1, b"a", 0), SequenceCheckpoint("b", 1, b"b", 0)])
    bench.advance_ms(60_000)
    store.save([SequenceCheckpoint("b", 2, b"b2", 1)])
    store.save([SequenceCheckpoint("c", 1, b"c", 0)])
    found = store.load(["a", "b", "c"], idle_ms_max=30_000.0)
    equal(
        found,
        [None, (2, b"b2"), (1, b"c")],
        "checkpoints of the last 30 s, with one of 60 s ago and two new ones",
    )
    equal(
        store.load(["a"], idle_ms_max=120_000), [(1, b"a")], "a checkpoint of 60 s ago, with a limit of 120 s"
    )
    equal(_load(store, "a"), [(1, b"a")], "a checkpoint of 60 s ago, without a limit")
    equal(store.save([SequenceCheckpoint("a", 2, b"a2", 1)]), [True], "saving after an idle checkpoint")
    equal(store.load(["a"], idle_ms_max=30_000), [(2, b"a2")], "an idle sequence that continued")


def check_delete(bench: CheckpointBench) -> None:
    """Check that `delete` removes these ids only; with `steps`, continued sequences stay."""
    store = bench.open()
    store.save([SequenceCheckpoint(id, 3, id.encode(), 0) for id in "abcd"])
    store.delete([])
    store.delete(["a", "missing", "a"])
    equal(
        _load(store, *"abcd"),
        [None, (3, b"b"), (3, b"c"), (3, b"d")],
        "the checkpoints after one was deleted",
    )
    store.delete(["b", "c", "missing"], [3, 2, 1])
    equal(
        _load(store, *"bcd"),
        [None, (3, b"c"), (3, b"d")],
        "the checkpoints after two deletions, one with other steps",
    )
    equal(store.save([SequenceCheckpoint("a", 1, b"anew", 0)]), [True], "restarting a deleted sequence")
    equal(_load(store, "a"), [(1, b"anew")], "a restarted sequence")
    bench.advance_ms(1000)
    equal(store.purge(idle_ms_max=1, count_max=100), 3, "the number of purged checkpoints after deletions")


def check_purge(bench: CheckpointBench) -> None:
    """Check that `purge` deletes old checkpoints, oldest first up to its limit, and counts them."""
    store = bench.open()
    for n in range(6):
        store.save([SequenceCheckpoint(f"s-{n}", 1, b"x", 0)])
        bench.advance_ms(60_000)
    store.save([SequenceCheckpoint("s-0", 2, b"x", 1)])
    ids = [f"s-{n}" for n in range(6)]
    equal(store.purge(idle_ms_max=math.inf, count_max=10), 0, "the number purged with an infinite age")
    equal(store.purge(idle_ms_max=600_000, count_max=10), 0, "the number purged when none is old")
    equal(
        store.purge(idle_ms_max=150_000, count_max=2),
        2,
        "the number purged of three old ones, with a limit of two",
    )
    equal(_stored_ids(store, ids), ["s-0", "s-3", "s-4", "s-5"], "the ids left after two were purged")
    equal(
        store.purge(idle_ms_max=150_000, count_max=2),
        1,
        "the number purged of one old one, with a limit of two",
    )
    equal(store.purge(idle_ms_max=150_000, count_max=2), 0, "the number purged of no old ones")
    equal(_stored_ids(store, ids), ["s-0", "s-4", "s-5"], "the ids left after all old ones were purged")
    equal(store.purge(idle_ms_max=30_000, count_max=0), 0, "the number purged with a limit of 0")


def check_models_are_isolated(bench: CheckpointBench) -> None:
    """Check that stores of different models do not affect each other, with any names and ids."""
    names = ("m", "M", "m:of:a", "m}", "m}:of:b", "a/b", "a%2Fb", "x y")
    ids = ("a", "b}:of:a", ":of:a")
    stores = [bench.open(name) for name in names]
    for store, name in zip(stores, names, strict=True):
        saved = store.save([SequenceCheckpoint(id, 1, f"{name} {id}".encode(), 0) for id in ids])
        equal(saved, [True] * len(ids), f"saving for model {name}")
    expected: list[list[tuple[int, bytes] | None]] = [
        [(1, f"{name} {id}".encode()) for id in ids] for name in names
    ]
    equal([_load(store, *ids) for store in stores], expected, "each model's checkpoints")
    stores[0].delete(ids)
    bench.advance_ms(1000)
    equal(stores[1].purge(idle_ms_max=1, count_max=100), len(ids), "the number purged of one model")
    expected[0] = expected[1] = [None] * len(ids)
    equal(
        [_load(store, *ids) for store in stores],
        expected,
        "each model's checkpoints after those of two were removed",
    )


def check_close(bench: CheckpointBench) -> None:
    """Check that a second `close` does nothing, and that later calls raise UnavailableError."""
    store = bench.open("closed")
    store.save([SequenceCheckpoint("a", 1, b"x", 0)])
    store.close()
    store.close()
    first = SequenceCheckpoint("a", 1, b"", 0)
    calls: Sequence[tuple[str, Callable[[], object]]] = (
        ("save", lambda: store.save([first])),
        ("load", lambda: store.load(["a"], idle_ms_max=1)),
        ("delete", lambda: store.delete(["a"])),
        ("purge", lambda: store.purge(idle_ms_max=1, count_max=1)),
    )
    for name, call in calls:
        raises(UnavailableError, call, f"{name} after close")


def check_persistence(bench: CheckpointBench) -> None:
    """Check that a reopened store has all checkpoints and saves and refuses as before."""
    with _closing(bench) as store:
        store.save([SequenceCheckpoint("a", 1, b"one", 0), SequenceCheckpoint("b", 1, b"one", 0)])
        store.save([SequenceCheckpoint("a", 2, b"two", 1)])
    with _closing(bench) as store:
        equal(_load(store, "a", "b"), [(2, b"two"), (1, b"one")], "the checkpoints after reopening")
        batch = [SequenceCheckpoint("a", 2, b"stale", 1), SequenceCheckpoint("b", 2, b"two", 1)]
        equal(store.save(batch), [False, True], "saving after reopening")
        store.delete(["a"])
    with _closing(bench) as store:
        equal(_load(store, "a", "b"), [None, (2, b"two")], "the checkpoints after reopening twice")


def check_concurrent_opening(bench: CheckpointBench) -> None:
    """Check that several stores can open the same new storage at once and share checkpoints."""
    stores = _at_once(lambda _: bench.open())
    for thread, store in enumerate(stores):
        store.save([SequenceCheckpoint(f"s-{thread}", 1, b"x", 0)])
    for store in stores:
        ids = [f"s-{thread}" for thread in range(THREADS)]
        equal(_stored_ids(store, ids), ids, "the ids saved through several stores")


CHECKPOINT_CHECKS: Final[tuple[CheckpointCheck, ...]] = (
    check_save_and_load,
    check_awkward_ids,
    check_previous_steps,
    check_restart,
    check_repeated_save,
    check_batches,
    check_concurrent_saves,
    check_concurrent_batches,
    check_atomic_reads,
    check_idle_limit,
    check_delete,
    check_purge,
    check_models_are_isolated,
    check_close,
)
"""Checks of every store, also of one in memory."""

SHARED_CHECKPOINT_CHECKS: Final[tuple[CheckpointCheck, ...]] = (
    check_persistence,
    check_concurrent_opening,
)
"""Further checks, of stores that outlive their process."""


@contextmanager
def _closing(bench: CheckpointBench) -> Generator[CheckpointStore]:
    store = bench.open()
    yield store
    store.close()


def _load(store: CheckpointStore, *ids: str) -> list[tuple[int, bytes] | None]:
    return [found and (found[0], found[1]) for found in store.load(ids, idle_ms_max=math.inf)]


def _stored_ids(store: CheckpointStore, ids: Sequence[str]) -> list[str]:
    return [id for id, found in zip(ids, _load(store, *ids), strict=True) if found]


def _at_once(act: Callable[[int], _T]) -> list[_T]:
    """Return the results of `act` by thread number. All threads begin at the same moment."""
    barrier = threading.Barrier(THREADS)

    def run(thread: int) -> _T:
        barrier.wait(WAIT_S)
        return act(thread)

    with ThreadPoolExecutor(THREADS) as pool:
        return [call.result(WAIT_S) for call in [pool.submit(run, thread) for thread in range(THREADS)]]


def _state(size: int) -> bytes:
    return bytes(range(251)) * (size // 251)


def _without_states(found: Sequence[tuple[int, bytes] | None]) -> list[tuple[int, int] | None]:
    """Return steps and sizes, because states are too long for a message."""
    return [item and (item[0], len(item[1])) for item in found]
