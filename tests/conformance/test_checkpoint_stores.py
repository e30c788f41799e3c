"""Every checkpoint store through the conformance suite: in memory, in a file, and on a real Valkey."""

import itertools
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import levels
from checkpoints import saving_process
from checkpoints.stores_under_test import memory_bench, redis_bench, sqlite_bench
from conformance.check_tables import run_each
from headrace.checkpoints import open_store
from headrace.checkpoints.store import CheckpointStore, SequenceCheckpoint
from headrace.testing import (
    CHECKPOINT_CHECKS,
    SHARED_CHECKPOINT_CHECKS,
    CheckpointBench,
    check_checkpoint_store,
)
from headrace.testing.checkpoints import CheckpointCheck

SHARED_CHECKS = [*CHECKPOINT_CHECKS, *SHARED_CHECKPOINT_CHECKS]
KILLS = levels.by_level(2, 3, 40)
RACE_STEPS = levels.by_level(20, 20, 400)
_numbers = itertools.count()


def test_memory():
    def run(check: CheckpointCheck) -> None:
        with memory_bench() as bench:
            check(bench)

    run_each(CHECKPOINT_CHECKS, run)


def test_sqlite(tmp_path):
    def run(check: CheckpointCheck) -> None:
        with sqlite_bench(tmp_path / f"{check.__name__}.db") as bench:
            check(bench)

    run_each(SHARED_CHECKS, run)


def test_redis(valkey_server):
    def run(check: CheckpointCheck) -> None:
        with redis_bench(valkey_server, f"conformance-{next(_numbers)}") as bench:
            check(bench)

    run_each(SHARED_CHECKS, run)


def test_check_checkpoint_store_runs_every_check_on_its_own_bench():
    opened = []

    def make():
        opened.append(memory_bench())
        return opened[-1]

    check_checkpoint_store(make, shared=False)
    assert len(opened) == len(CHECKPOINT_CHECKS)


@pytest.fixture(params=["sqlite", "sqlite, unsynced", "redis"])
def address(request, tmp_path) -> str:
    if "sqlite" in request.param:
        return f"sqlite:///{tmp_path}/checkpoints.db" + "?synchronous=normal" * ("unsynced" in request.param)
    url = request.getfixturevalue("valkey_server").url
    return f"{url}?prefix=processes-{next(_numbers)}"


def _process(*arguments: object) -> subprocess.Popen[str]:
    program = Path(saving_process.__file__)
    return subprocess.Popen(
        [sys.executable, program, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_killed_process_loses_no_acknowledged_checkpoint(address):
    """All stored states are whole."""
    acknowledged = 0
    for round_ in range(KILLS):
        process = _process("forever", address)
        for line in itertools.islice(process.stdout, 3 + 11 * (round_ % 4)):
            acknowledged = int(line)
        process.kill()
        process.wait()
        acknowledged = max([acknowledged, *map(int, process.stdout.read().split())])
        process.stdout.close()
        with closing(open_store(address, saving_process.MODEL)) as store:
            steps = saving_process.steps_of(store)
        # A batch is saved as a whole, and the last acknowledgement may be lost.
        assert steps[0] in {acknowledged, acknowledged + 1}
        assert set(steps) == {steps[0]}


@pytest.mark.slow
def test_racing_processes_neither_lose_nor_repeat_a_step(address):
    store = open_store(address, saving_process.MODEL)
    ids = saving_process.IDS
    store.save([SequenceCheckpoint(id, 1, saving_process.state_after(id, 1), 0) for id in ids])
    processes = [_process("race", address, RACE_STEPS) for _ in range(3)]
    saved = [int(process.communicate(timeout=60)[0]) for process in processes]
    steps = saving_process.steps_of(store)
    store.close()
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert min(steps) > RACE_STEPS
    assert sum(saved) == sum(steps) - len(ids)


ids = st.sampled_from("abc")
numbers = st.integers(0, 4)
checkpoints = st.builds(
    SequenceCheckpoint, ids, st.integers(1, 4), st.sampled_from([b"", b"x", b"y"]), numbers
)
operations = st.one_of(
    st.tuples(st.just("save"), st.lists(checkpoints, max_size=4)),
    st.tuples(st.just("delete"), st.lists(ids, max_size=2), st.none()),
    st.tuples(
        st.just("delete"), st.lists(ids, min_size=2, max_size=2), st.lists(numbers, min_size=2, max_size=2)
    ),
    # All or none: the order of equally old ones is not defined.
    st.tuples(st.just("purge"), st.integers(0, 3), st.sampled_from([0, 100])),
    st.tuples(st.just("advance"), st.integers(0, 3)),
    st.tuples(st.just("load"), st.lists(ids, max_size=4), st.integers(0, 4)),
)
HOUR_MS = 3_600_000
"""The unit of time; limits are half hours, because a server's real time passes too."""


def _do(bench: CheckpointBench, store: CheckpointStore, name: str, *args):
    if name == "advance":
        return bench.advance_ms(args[0] * HOUR_MS) and None
    if name == "purge":
        return store.purge(idle_ms_max=(args[0] + 0.5) * HOUR_MS, count_max=args[1])
    if name == "load":
        found = store.load(args[0], idle_ms_max=(args[1] + 0.5) * HOUR_MS)
        return [each and tuple(each) for each in found]
    return getattr(store, name)(*args)


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("redis", marks=pytest.mark.slow)])
def test_any_history_gives_the_same_results_as_in_memory(kind, tmp_path, request):
    @given(st.lists(operations, max_size=25))
    def same(history):
        number = next(_numbers)
        other = (
            sqlite_bench(tmp_path / "c.db")
            if kind == "sqlite"
            else redis_bench(request.getfixturevalue("valkey_server"), f"same-{number}")
        )
        with memory_bench() as memory, other:
            stores = memory.open(), other.open(f"m-{number}")
            for operation in [*history, ("load", list("abc"), 10**6)]:
                expected, found = _do(memory, stores[0], *operation), _do(other, stores[1], *operation)
                assert expected == found, operation

    same()
