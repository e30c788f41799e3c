"""Requests that do harm, in real processes: who shares an engine with them is answered, and each is told what it did."""

import asyncio
import contextlib
import functools
import os
import random
import signal
import threading
import time
from concurrent.futures import wait
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from engine import process_models as models
from engine.support import WAIT_S, nothing_left, request, rows
from headrace.core.errors import (
    CancelledRequestError,
    ConfigError,
    DeadlineError,
    InstanceLostError,
    PredictError,
)
from headrace.engine import Engine
from headrace.engine.cgroup import own_groups
from headrace.engine.settings import ServeSettings
from headrace.testing import ManualClock

pytestmark = pytest.mark.timeout(120)
MIB = 2**20


@contextmanager
def poisonous(harm, folder, *, clock=None, in_flight_max=64, **serve):
    """A started engine around a model with this harm, in a process."""
    make = functools.partial(models.Poisonous, harm=harm, folder=str(folder))
    engine = Engine(
        make,
        name="m",
        serving=ServeSettings(isolation="process", **serve),
        in_flight_max=in_flight_max,
        clock=clock,
    )
    engine.start()
    try:
        yield engine
    finally:
        engine.stop(drain=False)


@pytest.fixture(autouse=True)
def _nothing_left():
    """No process, control group, file, or thread outlives its engine."""
    with nothing_left():
        yield
    for own in own_groups().values():
        assert list(own.folder.glob(f"headrace-{os.getpid()}-*")) == []


def pid_of(engine):
    return engine._life.slots[0].backend.pid


def gone(pid):
    """Whether a process is there no more; whoever inherits it may not have reaped it yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def until(holds):
    """Wait for what another process does."""
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, "it never came"
        threading.Event().wait(0.002)


def begun(folder):
    """How often the model was asked for harm."""
    path = Path(folder, "begun")
    return len(path.read_text()) if path.exists() else 0


def innocent_and_guilty(engine):
    """Ask for much that is harmless, with one poison in the midst; the error of that one, or of its only row."""
    harmless = [engine.submit(request(rows(i))) for i in range(6)]
    guilty = engine.submit(request(rows(models.POISON)))
    harmless += [engine.submit(request(rows(i))) for i in range(6, 12)]
    wait([*harmless, guilty], WAIT_S)
    assert [f.result(0)["output"][0, 0] for f in harmless] == list(range(12))
    error = guilty.exception(0)
    if error is not None:
        return error
    (failure,) = guilty.result(0).failures
    return failure.why


# What a request can do


@pytest.mark.parametrize(
    ("harm", "facts", "says"),
    [
        ("segfault", ("crash", None, "SIGSEGV"), "touched memory that is not its own"),
        ("abort", ("crash", None, "SIGABRT"), "gave itself up"),
        ("leave", ("exit", 7, None), "ended by itself, with status 7"),
    ],
)
def test_a_request_that_kills_its_process(tmp_path, harm, facts, says):
    """The cause is told; it is asked twice, and never again."""
    with poisonous(harm, tmp_path) as engine:
        error = innocent_and_guilty(engine)
        assert isinstance(error, InstanceLostError)
        assert (error.cause, error.exit_code, error.signal) == facts
        assert says in str(error)
        assert begun(tmp_path) == 2
        assert engine.submit(request(rows(5))).result(WAIT_S)["output"][0, 0] == 5
        assert engine.model_statistics().restarts == 2


def test_a_request_that_exits_politely_ends_nothing_but_itself(tmp_path):
    """It raises SystemExit, which is caught: the process lives on."""
    with poisonous("exit_politely", tmp_path) as engine:
        pid = pid_of(engine)
        error = innocent_and_guilty(engine)
        assert isinstance(error, PredictError)
        assert "SystemExit: 3" in str(error)
        assert pid_of(engine) == pid


@pytest.mark.parametrize("harm", ["loop", "hold", "refuse"])
def test_a_call_without_end(tmp_path, harm):
    """Also one that keeps Python's lock, so that nothing else runs in its process, or that hears no signal."""
    with poisonous(harm, tmp_path, call_timeout_s=0.5) as engine:
        error = innocent_and_guilty(engine)
        assert isinstance(error, InstanceLostError)
        assert (error.cause, error.exit_code, error.signal) == ("timeout", None, "SIGKILL")
        assert "call_timeout_s (0.5 s)" in str(error)
        assert begun(tmp_path) == 2


def test_a_kill_from_outside(tmp_path):
    """Once is mended without a word; who is killed twice is told by whom."""
    with poisonous("loop", tmp_path) as engine:
        asked = engine.submit(request(rows(models.POISON)))
        for count in (1, 2):
            until(lambda count=count: begun(tmp_path) == count)
            os.kill(pid_of(engine), signal.SIGKILL)
        error = asked.exception(WAIT_S)
        assert isinstance(error, InstanceLostError)
        assert (error.cause, error.signal) == ("killed", "SIGKILL")
        assert "by somebody else" in str(error)
        assert engine.submit(request(rows(5))).result(WAIT_S)["output"][0, 0] == 5


# Memory


def _has_group(controller):
    return controller in own_groups() and os.access(own_groups()[controller].folder, os.W_OK)


needs_memory_group = pytest.mark.skipif(
    not _has_group("memory"), reason="no control group of memory can be made here"
)
needs_pids_group = pytest.mark.skipif(
    not _has_group("pids"), reason="no control group of pids can be made here"
)


@needs_memory_group
@pytest.mark.parametrize("harm", ["hog", "hog_at_once"])
def test_a_memory_hog_in_a_control_group_is_killed_by_the_kernel(tmp_path, harm):
    """The kernel's own count says so."""
    with poisonous(harm, tmp_path, memory_bytes_max=256 * MIB) as engine:
        error = innocent_and_guilty(engine)
    assert isinstance(error, InstanceLostError)
    assert (error.cause, error.signal) == ("oom", "SIGKILL")
    assert "by the system since memory ran out" in str(error)
    assert "probably" not in str(error)
    assert f"{256 * MIB} bytes (memory_bytes_max)" in str(error)


@pytest.mark.parametrize("harm", ["hog", "hog_at_once"])
def test_a_memory_hog_without_a_control_group_meets_a_memory_error(tmp_path, monkeypatch, harm):
    """As any model does whose batch is too large; its process lives on."""
    monkeypatch.setattr("headrace.engine.confinement.own_groups", dict)
    with poisonous(harm, tmp_path, memory_bytes_max=1024 * MIB) as engine:
        pid = pid_of(engine)
        assert "MemoryError" in innocent_and_guilty(engine)
        assert pid_of(engine) == pid


# What it starts


@needs_pids_group
def test_a_fork_bomb_runs_against_its_bound(tmp_path):
    """Nothing that it started stays behind."""
    with poisonous("fork", tmp_path, processes_max=64) as engine:
        assert "BlockingIOError" in innocent_and_guilty(engine)
        started = [int(pid) for pid in (tmp_path / "started").read_text().split()]
        assert 10 < len(started) < 64
    assert all(map(gone, started))


@needs_pids_group
def test_what_hides_from_a_kill_in_a_session_of_its_own_is_killed_by_its_group(tmp_path):
    with poisonous("fork_and_hide", tmp_path, processes_max=64, call_timeout_s=0.5) as engine:
        assert innocent_and_guilty(engine).cause == "timeout"
        started = int((tmp_path / "started").read_text())
        assert gone(started)


def test_what_a_model_started_is_killed_with_it(tmp_path):
    """Also in a process group of its own."""
    with poisonous("spawn", tmp_path, call_timeout_s=1.0) as engine:
        assert innocent_and_guilty(engine).cause == "timeout"
        assert gone(int((tmp_path / "started").read_text()))


def test_a_bound_that_cannot_be_held_is_refused(tmp_path, monkeypatch):
    """Rather than being there by name alone: root is bound by no limit on processes."""
    monkeypatch.setattr("headrace.engine.confinement.own_groups", dict)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with (
        pytest.raises(ConfigError, match="processes_max cannot be held here"),
        poisonous("loop", tmp_path, processes_max=8),
    ):
        pass


# The environment


def test_a_process_is_given_no_more_of_the_environment_than_it_was_asked_for(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("MODEL_SIZE", "2")

    def seen(**serve):
        engine = Engine(models.Environment, name="m", serving=ServeSettings(isolation="process", **serve))
        engine.start()
        try:
            return engine.submit(request()).result(WAIT_S)["output"][0].split(",")
        finally:
            engine.stop()

    assert {"AWS_SECRET_ACCESS_KEY", "MODEL_SIZE", "PATH"} <= set(seen())
    few = seen(environ_pass=("MODEL_SIZE",))
    assert {"MODEL_SIZE", "PATH"} <= set(few)
    assert "AWS_SECRET_ACCESS_KEY" not in few


# Callers that leave


@pytest.mark.parametrize("harm", ["loop", "hold"])
def test_a_call_that_nobody_wants_any_more_is_killed_after_its_grace(tmp_path, harm):
    """And not before; who waits behind is answered by the process that comes after."""
    clock = ManualClock()
    with poisonous(harm, tmp_path, clock=clock, cancel_grace_s=5.0) as engine:
        pid = pid_of(engine)
        guilty = engine.submit(request(rows(models.POISON)))
        until(lambda: begun(tmp_path) == 1)
        behind = engine.submit(request(rows(3)))
        engine.abandon(guilty)
        engine.abandon(guilty)
        with pytest.raises(CancelledRequestError):
            guilty.result(0)
        clock.wait_for_sleepers()
        clock.advance(4.9)
        assert pid_of(engine) == pid
        assert not gone(pid)
        clock.advance(0.2)
        assert behind.result(WAIT_S)["output"][0, 0] == 3
        assert gone(pid)
        statistics = engine.model_statistics()
    assert begun(tmp_path) == 1
    assert (statistics.restarts, statistics.cancelled, statistics.success.count) == (1, 1, 1)
    assert statistics.fail.count == 0


@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_an_asker_that_leaves_has_its_call_killed_too(tmp_path, how):
    """In an event loop: cancelled, or out of time; who comes after is answered."""

    async def main(engine):
        deadline = engine._clock.now() + 1.0 if how == "deadline" else None
        asking = asyncio.create_task(engine.ask(request(rows(models.POISON), deadline=deadline)))
        await asyncio.to_thread(until, lambda: begun(tmp_path) == 1)
        if how == "cancel":
            asking.cancel()
        with pytest.raises((asyncio.CancelledError, DeadlineError)):
            await asking
        return await asyncio.wait_for(engine.ask(request(rows(3))), WAIT_S)

    with poisonous("loop", tmp_path, cancel_grace_s=0.0) as engine:
        assert asyncio.run(main(engine))["output"][0, 0] == 3
        assert engine.model_statistics().restarts == 1
    assert begun(tmp_path) == 1


def test_kills_for_leaving_do_not_make_the_next_start_wait(tmp_path):
    """They say nothing about the model."""
    clock = ManualClock()
    with poisonous("loop", tmp_path, clock=clock, cancel_grace_s=5.0) as engine:
        for count in range(1, 4):
            guilty = engine.submit(request(rows(models.POISON)))
            until(lambda count=count: begun(tmp_path) == count)
            engine.abandon(guilty)
            clock.wait_for_sleepers()
            clock.advance(5.0)
        assert engine.submit(request(rows(3))).result(WAIT_S)["output"][0, 0] == 3
        assert clock.slept_s == (5.0, 5.0, 5.0)


def test_whoever_shares_a_call_keeps_it_alive(tmp_path):
    """Until they have all gone."""
    waits = functools.partial(models.Waiting, folder=str(tmp_path))
    settings = ServeSettings(isolation="process", cancel_grace_s=0.0)
    engine = Engine(waits, name="m", serving=settings, in_flight_max=9)
    engine.start()
    try:
        pid = pid_of(engine)
        first = engine.submit(request(rows(0)))
        assert first.result(WAIT_S)["output"][0, 0] == 0
        backend = engine._life.slots[0].backend
        # Two that wait at once are one call.
        with backend._lock:
            held = engine.submit(request(rows(0)))
            until(held.running)
            both = [engine.submit(request(rows(1))) for _ in range(2)]
        until((tmp_path / "began").exists)
        assert len(engine._life.slots[0].instance._running.tickets) == 2
        engine.abandon(both[0])
        with pytest.raises(CancelledRequestError):
            both[0].result(0)
        assert backend._grace is None
        assert not (tmp_path / "cancelled").exists()
        assert pid_of(engine) == pid
        engine.abandon(both[1])
        # It is told first, and ends by itself where that is faster than being killed.
        until(lambda: (tmp_path / "cancelled").exists() or pid_of(engine) not in (None, pid))
        assert engine.submit(request(rows(0))).result(WAIT_S)["output"][0, 0] == 0
    finally:
        engine.stop(drain=False)


def test_what_waits_is_taken_out(tmp_path):
    """It is never asked, and whoever waits for its future is told."""
    clock = ManualClock()
    with poisonous("loop", tmp_path, clock=clock) as engine:
        guilty = engine.submit(request(rows(models.POISON)))
        until(lambda: begun(tmp_path) == 1)
        waiting = [engine.submit(request(rows(models.POISON))) for _ in range(3)]
        for future in waiting:
            engine.abandon(future)
        assert len(wait(waiting, WAIT_S).done) == 3
        assert all(future.cancelled() for future in waiting)
        engine.abandon(guilty)
        clock.wait_for_sleepers()
        clock.advance(5.0)
        assert engine.submit(request(rows(3))).result(WAIT_S)["output"][0, 0] == 3
    assert begun(tmp_path) == 1


def test_an_answer_that_is_there_stays(tmp_path):
    with poisonous("loop", tmp_path) as engine:
        asked = engine.submit(request(rows(3)))
        asked.result(WAIT_S)
        engine.abandon(asked)
        assert asked.result(0)["output"][0, 0] == 3
        assert engine.model_statistics().cancelled == 0


def test_a_model_that_minds_is_not_killed(tmp_path):
    """It ends its call within its grace."""
    with_folder = functools.partial(models.Waiting, folder=str(tmp_path))
    engine = Engine(with_folder, name="m", serving=ServeSettings(isolation="process"))
    engine.start()
    try:
        pid = pid_of(engine)
        asked = engine.submit(request(rows(1)))
        until((tmp_path / "began").exists)
        engine.abandon(asked)
        until((tmp_path / "cancelled").exists)
        assert engine.submit(request(rows(0))).result(WAIT_S)["output"][0, 0] == 0
        assert pid_of(engine) == pid
    finally:
        engine.stop()


def test_a_grace_without_end_kills_nobody(tmp_path):
    with poisonous("loop", tmp_path, cancel_grace_s=None) as engine:
        pid = pid_of(engine)
        guilty = engine.submit(request(rows(models.POISON)))
        until(lambda: begun(tmp_path) == 1)
        engine.abandon(guilty)
        assert engine._life.slots[0].backend._grace is None
        os.kill(pid, signal.SIGKILL)
        assert engine.submit(request(rows(3))).result(WAIT_S)["output"][0, 0] == 3
    assert begun(tmp_path) == 1, "what nobody wants is not asked again"


# All at once


@pytest.mark.parametrize("seed", range(3))
def test_every_future_ends_under_random_abandons_and_kills(tmp_path, seed):
    """No hang, no lost answer, no wrong one: what was not abandoned is answered, or was twice in a killed process."""
    choice = random.Random(seed)
    # Whoever shares a call with poison wants it, and keeps it alive, until it has lasted too long.
    serve = {"instances": 2, "cancel_grace_s": 0.0, "call_timeout_s": 0.5}
    with poisonous("loop", tmp_path, in_flight_max=32, **serve) as engine:
        asked, left = [], set()
        stop = threading.Event()

        def kill():
            while not stop.wait(0.15):
                victim = choice.choice(engine._life.slots).backend.pid
                if victim is not None:
                    with contextlib.suppress(ProcessLookupError):  # it has died by itself since
                        os.kill(victim, signal.SIGKILL)

        killing = threading.Thread(target=kill)
        killing.start()
        try:
            for i in range(400):
                bad = choice.random() < 0.02
                future = engine.submit(request(rows(models.POISON if bad else i)))
                asked.append((i, future))
                if bad:
                    # Nobody else ends it; also while its process is started again.
                    threading.Timer(choice.random() * 0.1, engine.abandon, [future]).start()
                    left.add(future)
                elif choice.random() < 0.2:
                    engine.abandon(future)
                    left.add(future)
        finally:
            stop.set()
            killing.join()
        done, not_done = wait([future for _, future in asked], WAIT_S)
        assert not not_done
        assert len(done) == 400
        lost = 0
        for i, future in asked:
            if future.cancelled() or isinstance(future.exception(), CancelledRequestError):
                assert future in left
            elif future.exception() is not None:
                assert isinstance(future.exception(), InstanceLostError)
                lost += 1
            else:
                assert future.result()["output"][0, 0] == i
        assert lost < 40
        until(lambda: engine.alive)
        assert engine.submit(request(rows(3))).result(WAIT_S)["output"][0, 0] == 3
        requests, waiting_rows, _, running = engine._life.channel.waiting()
        assert (requests, waiting_rows, running) == (0, 0, 0)
        assert engine._life.channel._put == {}
