"""Every checkpoint store through the one conformance suite: in memory, in a file, and on a real Valkey."""

import itertools
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints import saving_process
from checkpoints.stores_under_test import memory_bench, redis_bench, sqlite_bench
from headrace.checkpoints.open import open_store
from headrace.checkpoints.store import Checkpoint, CheckpointStore
from headrace.testing import (
    CHECKPOINT_CHECKS,
    SHARED_CHECKPOINT_CHECKS,
    CheckpointBench,
    check_checkpoint_store,
)
from headrace.testing.checkpoints import CheckpointCheck

each_check = pytest.mark.parametrize("check", CHECKPOINT_CHECKS, ids=lambda check: check.__name__)
each_shared_check = pytest.mark.parametrize(
    "check", [*CHECKPOINT_CHECKS, *SHARED_CHECKPOINT_CHECKS], ids=lambda check: check.__name__
)
_numbers = itertools.count()


@each_check
def test_memory(check: CheckpointCheck):
    with memory_bench() as bench:
        check(bench)


@each_shared_check
def test_sqlite(check: CheckpointCheck, tmp_path):
    with sqlite_bench(tmp_path / "checkpoints.db") as bench:
        check(bench)


@each_shared_check
def test_redis(check: CheckpointCheck, valkey_server):
    with redis_bench(valkey_server, f"conformance-{next(_numbers)}") as bench:
        check(bench)


def test_check_checkpoint_store_runs_every_check_on_a_bench_of_its_own():
    made = []

    def make():
        made.append(memory_bench())
        return made[-1]

    check_checkpoint_store(make, shared=False)
    assert len(made) == len(CHECKPOINT_CHECKS)


@pytest.fixture(params=["sqlite", "sqlite, unsynced", "redis"])
def address(request, tmp_path) -> str:
    if "sqlite" in request.param:
        return f"sqlite:///{tmp_path}/checkpoints.db" + "?synchronous=normal" * ("unsynced" in request.param)
    url = request.getfixturevalue("valkey_server").url
    return f"{url}?prefix=processes-{next(_numbers)}"


def _process(*words: object) -> subprocess.Popen[str]:
    program = Path(saving_process.__file__)
    return subprocess.Popen([sys.executable, program, *map(str, words)], stdout=subprocess.PIPE, text=True)


def test_a_process_is_killed_in_the_middle_of_saving(address):
    """Whatever it was told is kept is there, and all that is there is whole."""
    acknowledged = 0
    for round_ in range(4):
        process = _process("forever", address)
        for line in itertools.islice(process.stdout, 3 + 11 * round_):
            acknowledged = int(line)
        process.kill()
        process.wait()
        acknowledged = max([acknowledged, *map(int, process.stdout.read().split())])
        process.stdout.close()
        with closing(open_store(address, saving_process.MODEL)) as store:
            steps = saving_process.steps_of(store)
        # A batch is one transaction, or one script: it was kept as a whole, and the last answer may be lost.
        assert steps[0] in {acknowledged, acknowledged + 1}
        assert set(steps) == {steps[0]}


def test_processes_race_and_no_step_is_lost_or_doubled(address):
    store = open_store(address, saving_process.MODEL)
    ids = saving_process.IDS
    store.save([Checkpoint(id, 1, saving_process.state_after(id, 1), 0) for id in ids])
    processes = [_process("race", address, 40) for _ in range(3)]
    told = [int(process.communicate(timeout=60)[0]) for process in processes]
    steps = saving_process.steps_of(store)
    store.close()
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert min(steps) > 40
    assert sum(told) == sum(steps) - len(ids)


ids = st.sampled_from("abc")
numbers = st.integers(0, 4)
checkpoints = st.builds(Checkpoint, ids, st.integers(1, 4), st.sampled_from([b"", b"x", b"y"]), numbers)
operations = st.one_of(
    st.tuples(st.just("save"), st.lists(checkpoints, max_size=4)),
    st.tuples(st.just("delete"), st.lists(ids, max_size=2), st.none()),
    st.tuples(
        st.just("delete"), st.lists(ids, min_size=2, max_size=2), st.lists(numbers, min_size=2, max_size=2)
    ),
    # All or none: of several that are equally old, any may go first.
    st.tuples(st.just("purge"), st.integers(0, 3), st.sampled_from([0, 100])),
    st.tuples(st.just("advance"), st.integers(0, 3)),
    st.tuples(st.just("load"), st.lists(ids, max_size=4), st.integers(0, 4)),
)
HOUR_MS = 3_600_000
"""Time passes in hours, and ages are asked in halves of them: on a server the real one passes as well."""


def _do(bench: CheckpointBench, store: CheckpointStore, name: str, *args):
    if name == "advance":
        return bench.advance_ms(args[0] * HOUR_MS) and None
    if name == "purge":
        return store.purge(idle_ms_max=(args[0] + 0.5) * HOUR_MS, count_max=args[1])
    if name == "load":
        found = store.load(args[0], idle_ms_max=(args[1] + 0.5) * HOUR_MS)
        return [each and tuple(each) for each in found]
    return getattr(store, name)(*args)


@pytest.mark.parametrize("which", ["sqlite", "redis"])
def test_any_history_is_the_same_as_in_memory(which, tmp_path, valkey_server):
    @settings(max_examples=60, deadline=None)
    @given(st.lists(operations, max_size=25))
    def same(history):
        number = next(_numbers)
        other = (
            sqlite_bench(tmp_path / "c.db")
            if which == "sqlite"
            else redis_bench(valkey_server, f"same-{number}")
        )
        with memory_bench() as memory, other:
            stores = memory.open(), other.open(f"m-{number}")
            for operation in [*history, ("load", list("abc"), 10**6)]:
                wanted, found = _do(memory, stores[0], *operation), _do(other, stores[1], *operation)
                assert wanted == found, operation

    same()
