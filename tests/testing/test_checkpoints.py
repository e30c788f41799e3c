"""Each broken checkpoint store fails the checks of the guarantees that it breaks."""

import itertools

import pytest

from cases import for_each
from checkpoints.stores_under_test import memory_bench, redis_bench, sqlite_bench
from headrace.checkpoints import redis, sqlite
from headrace.checkpoints.store import MemoryCheckpointStore
from headrace.core.errors import ConfigError, HeadraceError, UnavailableError
from headrace.testing import CHECKPOINT_CHECKS, SHARED_CHECKPOINT_CHECKS, CheckpointBench
from headrace.testing.checkpoints import check_previous_steps
from testing.race_window import RaceWindow

CHECKS = {check.__name__: check for check in (*CHECKPOINT_CHECKS, *SHARED_CHECKPOINT_CHECKS)}
_numbers = itertools.count()


class NeverRefuses(MemoryCheckpointStore):
    def save(self, checkpoints):
        super().save([c._replace(previous_steps=0) for c in checkpoints])
        return [True] * len(checkpoints)


class RefusesSilently(MemoryCheckpointStore):
    def save(self, checkpoints):
        super().save(checkpoints)
        return [True] * len(checkpoints)


class AllOrNothing(MemoryCheckpointStore):
    def save(self, checkpoints):
        kept = super().save(checkpoints)
        return [all(kept)] * len(kept)


class StartsOnce(MemoryCheckpointStore):
    def save(self, checkpoints):
        there = self.load([c.id for c in checkpoints], idle_ms_max=float("inf"))
        fresh = [c for c, found in zip(checkpoints, there, strict=True) if c.previous_steps or not found]
        kept = iter(super().save(fresh))
        return [c in fresh and next(kept) for c in checkpoints]


class LooksThenSaves(MemoryCheckpointStore):
    """Looks and saves in two steps, between which others save."""

    window = RaceWindow()

    def save(self, checkpoints):
        there = self.load([c.id for c in checkpoints], idle_ms_max=float("inf"))
        self.window.open()
        pairs = zip(checkpoints, there, strict=True)
        fits = [not c.previous_steps or (f and f[0] == c.previous_steps) for c, f in pairs]
        super().save([c._replace(previous_steps=0) for c, fit in zip(checkpoints, fits, strict=True) if fit])
        return [bool(fit) for fit in fits]


class CutsStates(MemoryCheckpointStore):
    def save(self, checkpoints):
        return super().save([c._replace(state=c.state[: 1 << 20]) for c in checkpoints])


class CutsIds(MemoryCheckpointStore):
    def save(self, checkpoints):
        return super().save([c._replace(id=c.id.casefold()) for c in checkpoints])

    def load(self, ids, *, idle_ms_max):
        return super().load([id.casefold() for id in ids], idle_ms_max=idle_ms_max)


class Ageless(MemoryCheckpointStore):
    def load(self, ids, *, idle_ms_max):
        return super().load(ids, idle_ms_max=float("inf"))


class AgesFromFirstSave(MemoryCheckpointStore):
    def save(self, checkpoints):
        before = dict(self._open())
        kept = super().save(checkpoints)
        for id, there in before.items():
            self._states[id] = self._states[id]._replace(saved_s=there.saved_s)
        return kept


class DeletesNothing(MemoryCheckpointStore):
    def delete(self, ids, steps=None):
        self._open()


class DeletesContinuedSequences(MemoryCheckpointStore):
    def delete(self, ids, steps=None):
        super().delete(ids)


class PurgesTooMany(MemoryCheckpointStore):
    def purge(self, *, idle_ms_max, count_max):
        return super().purge(idle_ms_max=idle_ms_max, count_max=count_max + 1)


class PurgesYoungCheckpoints(MemoryCheckpointStore):
    def purge(self, *, idle_ms_max, count_max):
        return super().purge(idle_ms_max=0, count_max=count_max)


class RespondsAfterClose(MemoryCheckpointStore):
    def close(self):
        """Stay open."""


def failing_checks(make, names=frozenset(CHECKS)) -> set[str]:
    """Return the names of the checks that fail."""
    return {name for name in names if _fails(CHECKS[name], make())}


def _fails(check, bench: CheckpointBench) -> bool:
    try:
        with bench:
            check(bench)
    except AssertionError:
        return True
    return False


@for_each(
    ("kind", "names"),
    [
        (NeverRefuses, {"check_previous_steps", "check_concurrent_saves"}),
        (RefusesSilently, {"check_previous_steps", "check_batches", "check_concurrent_batches"}),
        (AllOrNothing, {"check_batches"}),
        (StartsOnce, {"check_restart"}),
        (CutsStates, {"check_save_and_load"}),
        (CutsIds, {"check_awkward_ids"}),
        (Ageless, {"check_idle_limit"}),
        (AgesFromFirstSave, {"check_idle_limit", "check_repeated_save"}),
        (DeletesNothing, {"check_delete", "check_awkward_ids", "check_previous_steps"}),
        (DeletesContinuedSequences, {"check_delete"}),
        (PurgesTooMany, {"check_purge"}),
        (PurgesYoungCheckpoints, {"check_purge"}),
        (RespondsAfterClose, {"check_close"}),
    ],
)
def test_broken_store_fails_its_checks(kind, names):
    assert failing_checks(lambda: memory_bench(kind), names) == names


def test_memory_store_fails_only_the_check_of_persistence():
    assert failing_checks(memory_bench) == {"check_persistence"}


def test_race_between_look_and_save_fails():
    names = {"check_concurrent_saves", "check_concurrent_batches"}
    assert failing_checks(lambda: memory_bench(LooksThenSaves), names) == names


def test_mixed_models_fail():
    def mixed():
        bench = memory_bench()
        apart = bench.open
        bench.open = lambda _model="": apart("all")
        return bench

    assert failing_checks(mixed, ["check_models_are_isolated"])


@for_each(
    ("name", "broken", "names"),
    [
        (
            "_UPDATE_IF_CURRENT",
            lambda sql: sql.replace("steps = ?6", "?6"),
            {"check_previous_steps", "check_concurrent_saves"},
        ),
        (
            "_UPDATE_IF_CURRENT",
            lambda sql: sql.replace("OR (steps = ?1 AND state = ?3)", ""),
            {"check_repeated_save"},
        ),
        ("_REPLACE", lambda sql: sql.split("DO UPDATE")[0] + "DO NOTHING", {"check_restart"}),
        ("_LOAD", lambda sql: sql.replace("saved_ms >=", "-1e400 <="), {"check_idle_limit"}),
        ("_DELETE", lambda sql: sql.split("AND")[0] + "AND ? != ''", {"check_delete"}),
        ("_DELETE_IF_CURRENT", lambda sql: sql.replace("steps =", "steps >="), {"check_delete"}),
        ("_PURGE", lambda sql: sql.replace("ORDER BY saved_ms", "ORDER BY saved_ms DESC"), {"check_purge"}),
        (
            "_PURGE",
            lambda sql: sql.replace("model = ?", "model != ?"),
            {"check_models_are_isolated", "check_purge"},
        ),
        ("_BEGIN", lambda _: "BEGIN", {"check_concurrent_batches"}),
    ],
)  # fmt: skip
def test_broken_sqlite_statement_fails_its_checks(name, broken, names, monkeypatch, tmp_path):
    statement = getattr(sqlite, name)
    assert broken(statement) != statement

    def fails(name_of_check) -> bool:
        try:
            return _fails(CHECKS[name_of_check], sqlite_bench(tmp_path / f"{next(_numbers)}.db"))
        except (UnavailableError, ConfigError):  # the transaction read first, and others wrote meanwhile
            return name == "_BEGIN"

    with monkeypatch.context() as patch:
        patch.setattr(sqlite, name, broken(statement))
        assert {each for each in names if fails(each)} == names


@for_each(
    ("name", "broken", "names"),
    [
        (
            "_SAVE",
            lambda lua: lua.replace("there == before or", "true or"),
            {"check_previous_steps", "check_concurrent_saves"},
        ),
        ("_SAVE", lambda lua: lua.replace("there == steps and", "false and"), {"check_repeated_save"}),
        ("_SAVE", lambda lua: lua.replace("'saved_ms', saved_ms", "'saved_ms', '0'"), {"check_idle_limit"}),
        ("_SAVE", lambda lua: lua.replace("redis.call('ZADD', KEYS[1], saved_ms, id)", ""), {"check_purge"}),
        ("_DELETE", lambda lua: lua.replace("== steps then", "~= false then"), {"check_delete"}),
        ("_DELETE", lambda lua: lua.replace("redis.call('ZREM', KEYS[1], id)", ""), {"check_awkward_ids"}),
        ("_FIND_OLD", lambda lua: lua.replace("ARGV[2]", "-1"), {"check_purge"}),
        ("_DROP_OLD", lambda lua: lua.replace("redis.call('DEL', KEYS[n])", ""), {"check_purge"}),
    ],
)  # fmt: skip
def test_broken_redis_script_fails_its_checks(name, broken, names, monkeypatch, valkey_server):
    script = getattr(redis, name)
    assert broken(script) != script
    with monkeypatch.context() as patch:
        patch.setattr(redis, name, broken(script))
        assert failing_checks(lambda: redis_bench(valkey_server, f"broken-{next(_numbers)}"), names) == names


def test_what_is_no_broken_promise_comes_through():
    """A store that is away is no store that lies."""

    class Away(MemoryCheckpointStore):
        def save(self, checkpoints):
            raise UnavailableError("away", "it does not answer")

    with pytest.raises(HeadraceError, match="does not answer"), memory_bench(Away) as bench:
        check_previous_steps(bench)
