"""What every checkpoint store must do, as checks that any store can be put through.

Each check takes a bench over an empty place, and raises AssertionError saying which promise of
`headrace.checkpoints.store` broke::

    def my_bench(place):
        return CheckpointBench(lambda model: MyStore(place, model), advance_ms=place.advance_ms)

    @pytest.mark.parametrize("check", CHECKPOINT_CHECKS, ids=lambda check: check.__name__)
    def test_my_store(check, my_place):
        with my_bench(my_place) as bench:
            check(bench)

`SHARED_CHECKPOINT_CHECKS` are for stores that outlive their process.
"""

import math
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Final, Self, TypeVar

from headrace.checkpoints.store import Checkpoint, CheckpointStore
from headrace.core.errors import UnavailableError
from headrace.testing.expect import equal, raises, true

RACERS: Final = 4
RACE_ROUNDS: Final = 25
LARGE_BYTES: Final = 3 << 20
MANY: Final = 64
WAIT_S: Final = 60.0
"""How long threads may take, on a machine that is busy."""
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
    """Opens stores, all over one place that was empty, and closes those that a check has not.

    Args:
        new_store: Given a model's name, gives a store of its checkpoints. What is saved by one is found by the next; a store
            that is its own place (in memory) must be given again while it is open.
        advance_ms: Lets so much of the place's time pass.
    """

    def __init__(
        self, new_store: Callable[[str], CheckpointStore], advance_ms: Callable[[float], object]
    ) -> None:
        self._new_store = new_store
        self._opened = ExitStack()
        self.advance_ms = advance_ms

    def open(self, model: str = MODEL) -> CheckpointStore:
        """Another store over the same place."""
        return self._opened.enter_context(closing(self._new_store(model)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()


CheckpointCheck = Callable[[CheckpointBench], None]
_T = TypeVar("_T")


def check_checkpoint_store(make: Callable[[], CheckpointBench], *, shared: bool) -> None:
    """Put a store through every check, each over a new, empty place; `shared`: it outlives its process."""
    for check in (*CHECKPOINT_CHECKS, *(SHARED_CHECKPOINT_CHECKS if shared else ())):
        with make() as bench:
            check(bench)


def check_saves_and_loads(bench: CheckpointBench) -> None:
    """What was saved is loaded, byte for byte, in the order that it is asked for; what is not there is None."""
    store = bench.open()
    states = [b"", bytes(range(256)), b"\0", _state(LARGE_BYTES), b"same", b"same"]
    saved = [Checkpoint(f"s-{n}", n + 1, state, 0) for n, state in enumerate(states)]
    equal(store.save(saved), [True] * len(saved), "saving first checkpoints")
    found = _load(store, *reversed([c.id for c in saved]), "missing", "s-0")
    wanted = [*[(c.steps, c.state) for c in reversed(saved)], None, (1, b"")]
    true(found == wanted, f"loading: got {_told(found)}, wanted {_told(wanted)}")
    true(
        all(type(each[1]) is bytes for each in found if each),
        "states are loaded as something else than bytes",
    )
    equal(store.save([]), [], "saving nothing")
    equal(store.load([], idle_ms_max=math.inf), [], "loading nothing")
    largest = (1 << 63) - 1
    equal(store.save([Checkpoint("s-1", largest, b"late", 2)]), [True], "saving steps of 63 bits")
    equal(_load(store, "s-1"), [(largest, b"late")], "steps of 63 bits")
    equal(
        store.save([Checkpoint("s-1", largest - 1, b"later", largest - 1)]), [False], "following another step"
    )


def check_awkward_ids(bench: CheckpointBench) -> None:
    """Ids are taken as they stand, and no two are taken for the same."""
    store = bench.open()
    checkpoints = [Checkpoint(id, n + 1, id.encode(), 0) for n, id in enumerate(AWKWARD_IDS)]
    equal(store.save(checkpoints), [True] * len(checkpoints), "saving awkward ids")
    equal(_load(store, *AWKWARD_IDS), [(c.steps, c.state) for c in checkpoints], "loading awkward ids")
    store.delete(AWKWARD_IDS[:5])
    wanted = [None] * 5 + [(c.steps, c.state) for c in checkpoints[5:]]
    equal(_load(store, *AWKWARD_IDS), wanted, "awkward ids after five were deleted")
    bench.advance_ms(1000)
    count = len(AWKWARD_IDS) - 5
    equal(store.purge(idle_ms_max=500, count_max=100), count, "awkward ids that were purged")
    equal(_load(store, *AWKWARD_IDS), [None] * len(AWKWARD_IDS), "awkward ids after they were purged")


def check_follows_its_before(bench: CheckpointBench) -> None:
    """A checkpoint is kept when what is there is the one before it, and changes nothing when it is not."""
    store = bench.open()
    equal(store.save([Checkpoint("a", 5, b"orphan", 4)]), [False], "following where nothing is there")
    equal(_load(store, "a"), [None], "what was not kept")
    store.save([Checkpoint("a", 1, b"one", 0)])
    equal(store.save([Checkpoint("a", 4, b"four", 1)]), [True], "following what is there")
    for before in (1, 3, 5):
        equal(
            store.save([Checkpoint("a", before + 1, b"stale", before)]),
            [False],
            f"following step {before} of 4",
        )
        equal(_load(store, "a"), [(4, b"four")], "what was there, after another was refused")
    store.delete(["a"])
    equal(store.save([Checkpoint("a", 5, b"five", 4)]), [False], "following what was deleted")
    equal(_load(store, "a"), [None], "a checkpoint that was deleted, after another was refused")


def check_begins_anew(bench: CheckpointBench) -> None:
    """A checkpoint with a `before` of 0 takes the place of whatever is there."""
    store = bench.open()
    for steps in (7, 1, 9, 9):
        state = b"begun %d" % steps
        equal(store.save([Checkpoint("a", steps, state, 0)]), [True], f"beginning with step {steps}")
        equal(_load(store, "a"), [(steps, state)], f"what began with step {steps}")
    equal(store.save([Checkpoint("a", 8, b"old", 7)]), [False], "following what was there before")


def check_saving_again(bench: CheckpointBench) -> None:
    """The very same checkpoint is kept again, as after an answer that was lost; it counts as saved now."""
    store = bench.open()
    store.save([Checkpoint("a", 1, b"one", 0)])
    second = Checkpoint("a", 2, b"two", 1)
    equal([store.save([second]), store.save([second])], [[True], [True]], "saving the same twice")
    equal(
        store.save([Checkpoint("a", 2, b"another two", 1)]), [False], "saving another state of the same steps"
    )
    equal(_load(store, "a"), [(2, b"two")], "what was saved twice")
    bench.advance_ms(60_000)
    store.save([second])
    equal(store.load(["a"], idle_ms_max=30_000), [(2, b"two")], "what was saved again since")


def check_batches(bench: CheckpointBench) -> None:
    """Of a batch each is kept or refused by itself, in order, also when an id comes twice."""
    store = bench.open()
    ids = [f"s-{n}" for n in range(MANY)]
    equal(store.save([Checkpoint(id, 1, id.encode(), 0) for id in ids]), [True] * MANY, "saving a batch")
    fits = [bool(n % 3) for n in range(MANY)]
    batch = [Checkpoint(id, 2, b"two", 1 if fit else 7) for id, fit in zip(ids, fits, strict=True)]
    equal(store.save(batch), fits, "saving a batch of which some are stale")
    wanted = [(2, b"two") if fit else (1, id.encode()) for id, fit in zip(ids, fits, strict=True)]
    equal(_load(store, *ids), wanted, "a batch of which some were refused")
    twice = [Checkpoint("t", 1, b"1", 0), Checkpoint("t", 2, b"2", 1), Checkpoint("t", 9, b"9", 8)]
    equal(store.save(twice), [True, True, False], "saving three steps of one sequence")
    equal(_load(store, "t"), [(2, b"2")], "a sequence that came three times")


def check_one_of_two_wins(bench: CheckpointBench) -> None:
    """Of several who go on from the same step, through a store each, one is kept, and it is what is there."""
    stores = [bench.open() for _ in range(RACERS)]
    stores[0].save([Checkpoint("a", 1, b"", 0)])
    for steps in range(1, RACE_ROUNDS):
        kept = _at_once(
            lambda racer, steps=steps: stores[racer].save([Checkpoint("a", steps + 1, b"%d" % racer, steps)])[
                0
            ]
        )
        equal(kept.count(True), 1, f"racers of {RACERS} that were kept")
        equal(
            _load(stores[0], "a"),
            [(steps + 1, b"%d" % kept.index(True))],
            "what the one that was kept has saved",
        )


def check_batches_at_once(bench: CheckpointBench) -> None:
    """Batches of the same sequences, in different orders, neither block each other for good nor mix."""
    stores = [bench.open() for _ in range(RACERS)]
    ids = [f"s-{n}" for n in range(MANY)]
    stores[0].save([Checkpoint(id, 1, b"", 0) for id in ids])

    def save(racer: int, steps: int) -> dict[str, bool]:
        order = ids[racer:] + ids[:racer] if racer % 2 else ids[::-1]
        batch = [Checkpoint(id, steps + 1, b"%d" % racer * 1000, steps) for id in order]
        return dict(zip(order, stores[racer].save(batch), strict=True))

    for steps in range(1, 6):
        kept = _at_once(lambda racer, steps=steps: save(racer, steps))
        for id, found in zip(ids, _load(stores[-1], *ids), strict=True):
            winners = [racer for racer in range(RACERS) if kept[racer][id]]
            equal(len(winners), 1, "racers that were kept")
            equal(found, (steps + 1, b"%d" % winners[0] * 1000), "what the one that was kept has saved")


def check_whole_under_threads(bench: CheckpointBench) -> None:
    """Threads that share a store, of one sequence each, read what they saved; who looks on sees whole states only."""
    store = bench.open()
    ids = [f"s-{n}" for n in range(RACERS)]
    over = threading.Event()

    def look() -> int:
        torn = 0
        while not over.is_set():
            torn += sum(
                each is not None and each[1] != b"%d;" % each[0] * 5000 for each in _load(store, *ids)
            )
        return torn

    def work(racer: int) -> bool:
        kept = True
        for steps in range(RACE_ROUNDS):
            saved = Checkpoint(ids[racer], steps + 1, b"%d;" % (steps + 1) * 5000, steps)
            kept = kept and store.save([saved]) == [True] and _load(store, ids[racer]) == [saved[1:3]]
        return kept

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            fine = _at_once(work)
        finally:
            over.set()
        equal(looking.result(WAIT_S), 0, "states that were torn")
    true(all(fine), "a thread did not find what it had saved")


def check_idle(bench: CheckpointBench) -> None:
    """What was saved too long ago is not found; saving it anew counts from then."""
    store = bench.open()
    store.save([Checkpoint("a", 1, b"a", 0), Checkpoint("b", 1, b"b", 0)])
    bench.advance_ms(60_000)
    store.save([Checkpoint("b", 2, b"b2", 1)])
    store.save([Checkpoint("c", 1, b"c", 0)])
    found = store.load(["a", "b", "c"], idle_ms_max=30_000.0)
    equal(found, [None, (2, b"b2"), (1, b"c")], "what was saved within 30 s, of one 60 s old and two new")
    equal(store.load(["a"], idle_ms_max=120_000), [(1, b"a")], "what was saved 60 s ago, of at most 120 s")
    equal(_load(store, "a"), [(1, b"a")], "what was saved 60 s ago, of any age")
    equal(store.save([Checkpoint("a", 2, b"a2", 1)]), [True], "following what has been idle")
    equal(store.load(["a"], idle_ms_max=30_000), [(2, b"a2")], "what was idle, and went on")


def check_deletes(bench: CheckpointBench) -> None:
    """What was deleted is gone, and nothing else; with `steps`, what has gone on stays."""
    store = bench.open()
    store.save([Checkpoint(id, 3, id.encode(), 0) for id in "abcd"])
    store.delete([])
    store.delete(["a", "missing", "a"])
    equal(_load(store, *"abcd"), [None, (3, b"b"), (3, b"c"), (3, b"d")], "after one was deleted")
    store.delete(["b", "c", "missing"], [3, 2, 1])
    equal(
        _load(store, *"bcd"), [None, (3, b"c"), (3, b"d")], "after two were deleted of which one has gone on"
    )
    equal(store.save([Checkpoint("a", 1, b"anew", 0)]), [True], "beginning anew after it was deleted")
    equal(_load(store, "a"), [(1, b"anew")], "what began anew")
    bench.advance_ms(1000)
    equal(store.purge(idle_ms_max=1, count_max=100), 3, "purged of those that were left")


def check_purges(bench: CheckpointBench) -> None:
    """Purging drops those that have been idle, the oldest first and no more than asked for, and says how many."""
    store = bench.open()
    for n in range(6):
        store.save([Checkpoint(f"s-{n}", 1, b"x", 0)])
        bench.advance_ms(60_000)
    store.save([Checkpoint("s-0", 2, b"x", 1)])
    ids = [f"s-{n}" for n in range(6)]
    equal(store.purge(idle_ms_max=math.inf, count_max=10), 0, "purged, however old")
    equal(store.purge(idle_ms_max=600_000, count_max=10), 0, "purged, when all are young")
    equal(store.purge(idle_ms_max=150_000, count_max=2), 2, "purged, of three that are old, at most two")
    equal(_there(store, ids), ["s-0", "s-3", "s-4", "s-5"], "what is left after two were purged")
    equal(store.purge(idle_ms_max=150_000, count_max=2), 1, "purged, of one that is old, at most two")
    equal(store.purge(idle_ms_max=150_000, count_max=2), 0, "purged, of none")
    equal(_there(store, ids), ["s-0", "s-4", "s-5"], "what is left of the young")
    equal(store.purge(idle_ms_max=30_000, count_max=0), 0, "purged, at most none")


def check_models_are_apart(bench: CheckpointBench) -> None:
    """Stores of other models neither find, refuse, delete nor purge these, however models and ids are called."""
    names = ("m", "M", "m:of:a", "m}", "m}:of:b", "a/b", "a%2Fb", "x y")
    ids = ("a", "b}:of:a", ":of:a")
    stores = [bench.open(name) for name in names]
    for store, name in zip(stores, names, strict=True):
        saved = store.save([Checkpoint(id, 1, f"{name} {id}".encode(), 0) for id in ids])
        equal(saved, [True] * len(ids), f"saving for model {name}")
    wanted: list[list[tuple[int, bytes] | None]] = [
        [(1, f"{name} {id}".encode()) for id in ids] for name in names
    ]
    equal([_load(store, *ids) for store in stores], wanted, "each model's checkpoints")
    stores[0].delete(ids)
    bench.advance_ms(1000)
    equal(stores[1].purge(idle_ms_max=1, count_max=100), len(ids), "purged of one model")
    wanted[0] = wanted[1] = [None] * len(ids)
    equal([_load(store, *ids) for store in stores], wanted, "each model's checkpoints after two were dropped")


def check_closes(bench: CheckpointBench) -> None:
    """Closing twice does nothing; afterwards every call is UnavailableError."""
    store = bench.open("closed")
    store.save([Checkpoint("a", 1, b"x", 0)])
    store.close()
    store.close()
    first = Checkpoint("a", 1, b"", 0)
    calls: Sequence[tuple[str, Callable[[], object]]] = (
        ("save", lambda: store.save([first])),
        ("load", lambda: store.load(["a"], idle_ms_max=1)),
        ("delete", lambda: store.delete(["a"])),
        ("purge", lambda: store.purge(idle_ms_max=1, count_max=1)),
    )
    for name, call in calls:
        raises(UnavailableError, call, f"{name} after close")


def check_outlives_its_store(bench: CheckpointBench) -> None:
    """What was saved is there when a store is opened again, and is followed and refused as before."""
    with _closing(bench) as store:
        store.save([Checkpoint("a", 1, b"one", 0), Checkpoint("b", 1, b"one", 0)])
        store.save([Checkpoint("a", 2, b"two", 1)])
    with _closing(bench) as store:
        equal(_load(store, "a", "b"), [(2, b"two"), (1, b"one")], "after it was opened again")
        batch = [Checkpoint("a", 2, b"stale", 1), Checkpoint("b", 2, b"two", 1)]
        equal(store.save(batch), [False, True], "saving after it was opened again")
        store.delete(["a"])
    with _closing(bench) as store:
        equal(_load(store, "a", "b"), [None, (2, b"two")], "after it was opened a third time")


def check_opened_at_once(bench: CheckpointBench) -> None:
    """Several may open the same new place at once, and find what the others save."""
    stores = _at_once(lambda _: bench.open())
    for racer, store in enumerate(stores):
        store.save([Checkpoint(f"s-{racer}", 1, b"x", 0)])
    for store in stores:
        ids = [f"s-{racer}" for racer in range(RACERS)]
        equal(_there(store, ids), ids, "what was saved through several stores")


CHECKPOINT_CHECKS: Final[tuple[CheckpointCheck, ...]] = (
    check_saves_and_loads,
    check_awkward_ids,
    check_follows_its_before,
    check_begins_anew,
    check_saving_again,
    check_batches,
    check_one_of_two_wins,
    check_batches_at_once,
    check_whole_under_threads,
    check_idle,
    check_deletes,
    check_purges,
    check_models_are_apart,
    check_closes,
)
"""Every check of a store that may be gone with its process."""

SHARED_CHECKPOINT_CHECKS: Final[tuple[CheckpointCheck, ...]] = (
    check_outlives_its_store,
    check_opened_at_once,
)
"""Beside these, of one that outlives its process."""


@contextmanager
def _closing(bench: CheckpointBench) -> Generator[CheckpointStore]:
    store = bench.open()
    yield store
    store.close()


def _load(store: CheckpointStore, *ids: str) -> list[tuple[int, bytes] | None]:
    return [found and (found[0], found[1]) for found in store.load(ids, idle_ms_max=math.inf)]


def _there(store: CheckpointStore, ids: Sequence[str]) -> list[str]:
    return [id for id, found in zip(ids, _load(store, *ids), strict=True) if found]


def _at_once(act: Callable[[int], _T]) -> list[_T]:
    """What each racer's turn came to; all begin at the same moment."""
    line = threading.Barrier(RACERS)

    def run(racer: int) -> _T:
        line.wait(WAIT_S)
        return act(racer)

    with ThreadPoolExecutor(RACERS) as pool:
        return [turn.result(WAIT_S) for turn in [pool.submit(run, racer) for racer in range(RACERS)]]


def _state(size: int) -> bytes:
    return bytes(range(251)) * (size // 251)


def _told(found: Sequence[tuple[int, bytes] | None]) -> list[tuple[int, int] | None]:
    """Steps and sizes: states are too long to be shown."""
    return [each and (each[0], len(each[1])) for each in found]
