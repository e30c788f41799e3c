"""The suite for checkpoint stores goes red for those that break a promise, each in its own way."""

import itertools
import threading

import pytest

from checkpoints.stores_under_test import memory_bench, redis_bench, sqlite_bench
from headrace.checkpoints import redis, sqlite
from headrace.checkpoints.memory import MemoryCheckpointStore
from headrace.core.errors import ConfigError, HeadraceError, UnavailableError
from headrace.testing import CHECKPOINT_CHECKS, SHARED_CHECKPOINT_CHECKS, CheckpointBench
from headrace.testing.checkpoints import check_follows_its_before

CHECKS = {check.__name__: check for check in (*CHECKPOINT_CHECKS, *SHARED_CHECKPOINT_CHECKS)}
_numbers = itertools.count()


class NeverRefuses(MemoryCheckpointStore):
    def save(self, checkpoints):
        super().save([c._replace(before=0) for c in checkpoints])
        return [True] * len(checkpoints)


class RefusesUntold(MemoryCheckpointStore):
    def save(self, checkpoints):
        super().save(checkpoints)
        return [True] * len(checkpoints)


class AllOrNothing(MemoryCheckpointStore):
    def save(self, checkpoints):
        kept = super().save(checkpoints)
        return [all(kept)] * len(kept)


class BeginsOnce(MemoryCheckpointStore):
    def save(self, checkpoints):
        there = self.load([c.id for c in checkpoints], idle_ms_max=float("inf"))
        fresh = [c for c, found in zip(checkpoints, there, strict=True) if c.before or not found]
        kept = iter(super().save(fresh))
        return [c in fresh and next(kept) for c in checkpoints]


class LooksThenSaves(MemoryCheckpointStore):
    """Two steps, between which others save."""

    def save(self, checkpoints):
        there = self.load([c.id for c in checkpoints], idle_ms_max=float("inf"))
        threading.Event().wait(0.001)
        fits = [not c.before or (f and f[0] == c.before) for c, f in zip(checkpoints, there, strict=True)]
        super().save([c._replace(before=0) for c, fit in zip(checkpoints, fits, strict=True) if fit])
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


class AgesFromItsBeginning(MemoryCheckpointStore):
    def save(self, checkpoints):
        before = dict(self._open())
        kept = super().save(checkpoints)
        for id, there in before.items():
            self._kept[id] = self._kept[id]._replace(saved_s=there.saved_s)
        return kept


class DeletesNothing(MemoryCheckpointStore):
    def delete(self, ids, steps=None):
        self._open()


class DeletesWhatWentOn(MemoryCheckpointStore):
    def delete(self, ids, steps=None):
        super().delete(ids)


class PurgesTooMany(MemoryCheckpointStore):
    def purge(self, *, idle_ms_max, count_max):
        return super().purge(idle_ms_max=idle_ms_max, count_max=count_max + 1)


class PurgesTheYoung(MemoryCheckpointStore):
    def purge(self, *, idle_ms_max, count_max):
        return super().purge(idle_ms_max=0, count_max=count_max)


class AnswersAfterClose(MemoryCheckpointStore):
    def close(self):
        """It goes on."""


def red(make, names=frozenset(CHECKS)) -> set[str]:
    """Which of these checks go red."""
    return {name for name in names if _is_red(CHECKS[name], make())}


def _is_red(check, bench: CheckpointBench) -> bool:
    try:
        with bench:
            check(bench)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (NeverRefuses, {"check_follows_its_before", "check_one_of_two_wins"}),
        (RefusesUntold, {"check_follows_its_before", "check_batches", "check_batches_at_once"}),
        (AllOrNothing, {"check_batches"}),
        (BeginsOnce, {"check_begins_anew"}),
        (CutsStates, {"check_saves_and_loads"}),
        (CutsIds, {"check_awkward_ids"}),
        (Ageless, {"check_idle"}),
        (AgesFromItsBeginning, {"check_idle", "check_saving_again"}),
        (DeletesNothing, {"check_deletes", "check_awkward_ids", "check_follows_its_before"}),
        (DeletesWhatWentOn, {"check_deletes"}),
        (PurgesTooMany, {"check_purges"}),
        (PurgesTheYoung, {"check_purges"}),
        (AnswersAfterClose, {"check_closes"}),
    ],
)
def test_each_broken_promise_is_found(kind, names):
    assert red(lambda: memory_bench(kind), names) == names


def test_a_sound_store_is_found_sound_but_what_is_gone_with_its_process_is_not_shared():
    assert red(memory_bench) == {"check_outlives_its_store"}


def test_a_race_between_looking_and_saving_is_found():
    names = {"check_one_of_two_wins", "check_batches_at_once"}
    assert red(lambda: memory_bench(LooksThenSaves), names) == names


def test_models_that_are_mixed_are_found():
    def mixed():
        bench = memory_bench()
        apart = bench.open
        bench.open = lambda _model="": apart("all")
        return bench

    assert red(mixed, ["check_models_are_apart"])


@pytest.mark.parametrize(
    ("name", "broken", "names"),
    [
        ("_FOLLOW", lambda sql: sql.replace("steps = ?6", "?6"), {"check_follows_its_before", "check_one_of_two_wins"}),
        ("_FOLLOW", lambda sql: sql.replace("OR (steps = ?1 AND state = ?3)", ""), {"check_saving_again"}),
        ("_REPLACE", lambda sql: sql.split("DO UPDATE")[0] + "DO NOTHING", {"check_begins_anew"}),
        ("_LOAD", lambda sql: sql.replace("saved_ms >=", "-1e400 <="), {"check_idle"}),
        ("_DELETE", lambda sql: sql.split("AND")[0] + "AND ? != ''", {"check_deletes"}),
        ("_DELETE_OF", lambda sql: sql.replace("steps =", "steps >="), {"check_deletes"}),
        ("_PURGE", lambda sql: sql.replace("ORDER BY saved_ms", "ORDER BY saved_ms DESC"), {"check_purges"}),
        ("_PURGE", lambda sql: sql.replace("model = ?", "model != ?"), {"check_models_are_apart", "check_purges"}),
        ("_BEGIN", lambda _: "BEGIN", {"check_batches_at_once"}),
    ],
)  # fmt: skip
def test_sqlite_broken_in_one_statement_is_found(name, broken, names, monkeypatch, tmp_path):
    statement = getattr(sqlite, name)
    monkeypatch.setattr(sqlite, name, broken(statement))
    assert getattr(sqlite, name) != statement

    def is_red(name_of_check) -> bool:
        try:
            return _is_red(CHECKS[name_of_check], sqlite_bench(tmp_path / f"{next(_numbers)}.db"))
        except (UnavailableError, ConfigError):  # it began by reading, and found that others had written
            return name == "_BEGIN"

    assert {each for each in names if is_red(each)} == names


@pytest.mark.parametrize(
    ("name", "broken", "names"),
    [
        ("_SAVE", lambda lua: lua.replace("there == before or", "true or"), {"check_follows_its_before", "check_one_of_two_wins"}),
        ("_SAVE", lambda lua: lua.replace("there == steps and", "false and"), {"check_saving_again"}),
        ("_SAVE", lambda lua: lua.replace("'saved_ms', saved_ms", "'saved_ms', '0'"), {"check_idle"}),
        ("_SAVE", lambda lua: lua.replace("redis.call('ZADD', KEYS[1], saved_ms, id)", ""), {"check_purges"}),
        ("_DELETE", lambda lua: lua.replace("== steps then", "~= false then"), {"check_deletes"}),
        ("_DELETE", lambda lua: lua.replace("redis.call('ZREM', KEYS[1], id)", ""), {"check_awkward_ids"}),
        ("_FIND_OLD", lambda lua: lua.replace("ARGV[2]", "-1"), {"check_purges"}),
        ("_DROP_OLD", lambda lua: lua.replace("redis.call('DEL', KEYS[n])", ""), {"check_purges"}),
    ],
)  # fmt: skip
def test_redis_broken_in_one_script_is_found(name, broken, names, monkeypatch, valkey_server):
    script = getattr(redis, name)
    monkeypatch.setattr(redis, name, broken(script))
    assert getattr(redis, name) != script
    assert red(lambda: redis_bench(valkey_server, f"broken-{next(_numbers)}"), names) == names


def test_what_is_no_broken_promise_comes_through():
    """A store that is away is no store that lies."""

    class Away(MemoryCheckpointStore):
        def save(self, checkpoints):
            raise UnavailableError("away", "it does not answer")

    with pytest.raises(HeadraceError, match="does not answer"), memory_bench(Away) as bench:
        check_follows_its_before(bench)
