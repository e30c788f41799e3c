"""Harmful requests in real processes: other requests complete, and each harmful one gets its cause."""

import asyncio
import contextlib
import functools
import os
import random
import signal
import threading
from concurrent.futures import wait
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

import levels
from engine import process_models as models
from engine.support import WAIT_S, no_leaks, request, rows
from headrace.core.errors import (
    CancelledRequestError,
    ConfigError,
    DeadlineError,
    InstanceLostError,
    PredictError,
)
from headrace.engine import Engine
from headrace.engine.process.process_limits import own_groups
from headrace.engine.settings import ServeSettings
from headrace.testing import ManualClock
from servers.polling import wait_until

pytestmark = pytest.mark.timeout(120)
MIB = 2**20


@contextmanager
def poisonous(harm, folder, *, clock=None, in_flight_max=64, **serve):
    """Yield a started engine around a model with this harm, in a process."""
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
    """Assert that no process, control group, file or thread outlives its engine."""
    with no_leaks():
        yield
    for own in own_groups().values():
        assert list(own.folder.glob(f"headrace-{os.getpid()}-*")) == []


def pid_of(engine):
    return engine._session.slots[0].backend.pid


def has_exited(pid):
    """Return True if a process has exited, even if it is not reaped yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def has_begun(folder):
    """Return how often the model began the harm."""
    path = Path(folder, "begun")
    return len(path.read_text()) if path.exists() else 0


def run_with_neighbours(engine):
    """Send many harmless requests and one poison in the middle. Return its error, or its row's."""
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


# Harm of requests


@pytest.mark.parametrize(
    ("harm", "facts", "says"),
    [
        ("segfault", ("crash", None, "SIGSEGV"), "invalid memory access"),
        pytest.param("abort", ("crash", None, "SIGABRT"), "abort, by compiled code", marks=pytest.mark.slow),
        pytest.param("leave", ("exit", 7, None), "exited with status 7", marks=pytest.mark.slow),
    ],
)
def test_fatal_request_fails_alone_with_its_cause(tmp_path, harm, facts, says):
    """It is retried once, and never again."""
    with poisonous(harm, tmp_path) as engine:
        error = run_with_neighbours(engine)
        assert isinstance(error, InstanceLostError)
        assert (error.cause, error.exit_code, error.signal) == facts
        assert says in str(error)
        assert has_begun(tmp_path) == 2
        assert engine.submit(request(rows(5))).result(WAIT_S)["output"][0, 0] == 5
        assert engine.model_statistics().restarts == 2


@pytest.mark.slow
def test_system_exit_fails_its_request_only(tmp_path):
    """SystemExit is caught: the process lives on."""
    with poisonous("exit_politely", tmp_path) as engine:
        pid = pid_of(engine)
        error = run_with_neighbours(engine)
        assert isinstance(error, PredictError)
        assert "SystemExit: 3" in str(error)
        assert pid_of(engine) == pid


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["loop", "hold", "refuse"])
def test_endless_call_is_killed_at_timeout(tmp_path, harm):
    """Also one that holds the GIL, or ignores signals."""
    with poisonous(harm, tmp_path, call_timeout_s=0.5) as engine:
        error = run_with_neighbours(engine)
        assert isinstance(error, InstanceLostError)
        assert (error.cause, error.exit_code, error.signal) == ("timeout", None, "SIGKILL")
        assert "call_timeout_s (0.5 s)" in str(error)
        assert has_begun(tmp_path) == 2


@pytest.mark.slow
def test_kill_from_outside_is_reported(tmp_path):
    """One kill is repaired silently; a request killed twice gets the reason."""
    with poisonous("loop", tmp_path) as engine:
        future = engine.submit(request(rows(models.POISON)))
        for count in (1, 2):
            wait_until(lambda count=count: has_begun(tmp_path) == count)
            os.kill(pid_of(engine), signal.SIGKILL)
        error = future.exception(WAIT_S)
        assert isinstance(error, InstanceLostError)
        assert (error.cause, error.signal) == ("killed", "SIGKILL")
        assert "from outside" in str(error)
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


@pytest.mark.slow
@needs_memory_group
@pytest.mark.parametrize("harm", ["hog", "hog_at_once"])
def test_memory_limit_by_control_group_kills(tmp_path, harm):
    """The kernel's own counter confirms it."""
    with poisonous(harm, tmp_path, memory_bytes_max=256 * MIB) as engine:
        error = run_with_neighbours(engine)
    assert isinstance(error, InstanceLostError)
    assert (error.cause, error.signal) == ("oom", "SIGKILL")
    assert "by the kernel for lack of memory" in str(error)
    assert "probably" not in str(error)
    assert f"(memory_bytes_max: {256 * MIB} bytes)" in str(error)


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["hog", "hog_at_once"])
def test_memory_limit_without_group_raises_memory_error(tmp_path, monkeypatch, harm):
    """The process lives on."""
    monkeypatch.setattr("headrace.engine.process.process_limits.own_groups", dict)
    with poisonous(harm, tmp_path, memory_bytes_max=1024 * MIB) as engine:
        pid = pid_of(engine)
        assert "MemoryError" in run_with_neighbours(engine)
        assert pid_of(engine) == pid


# Child processes


@pytest.mark.slow
@needs_pids_group
def test_processes_max_stops_fork_bomb(tmp_path):
    """Nothing that it started stays."""
    with poisonous("fork", tmp_path, processes_max=64) as engine:
        assert "BlockingIOError" in run_with_neighbours(engine)
        started = [int(pid) for pid in (tmp_path / "started").read_text().split()]
        assert 10 < len(started) < 64
    assert all(map(has_exited, started))


@pytest.mark.slow
@needs_pids_group
def test_process_in_own_session_is_killed_by_group(tmp_path):
    with poisonous("fork_and_hide", tmp_path, processes_max=64, call_timeout_s=0.5) as engine:
        assert run_with_neighbours(engine).cause == "timeout"
        started = int((tmp_path / "started").read_text())
        assert has_exited(started)


@pytest.mark.slow
def test_processes_of_model_are_killed_with_it(tmp_path):
    """Also in a process group of its own."""
    with poisonous("spawn", tmp_path, call_timeout_s=1.0) as engine:
        assert run_with_neighbours(engine).cause == "timeout"
        assert has_exited(int((tmp_path / "started").read_text()))


def test_unenforceable_limit_is_refused(tmp_path, monkeypatch):
    """Root is bound by no limit on processes."""
    monkeypatch.setattr("headrace.engine.process.process_limits.own_groups", dict)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with (
        pytest.raises(ConfigError, match="processes_max cannot be enforced here"),
        poisonous("loop", tmp_path, processes_max=8),
    ):
        pass


# The environment


@pytest.mark.slow
def test_process_gets_only_passed_environment(monkeypatch):
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


# Clients that leave


@pytest.mark.parametrize("harm", ["loop", pytest.param("hold", marks=pytest.mark.slow)])
def test_abandoned_call_is_killed_after_grace_period(tmp_path, harm):
    """And not before; the next request completes in the new process."""
    clock = ManualClock()
    with poisonous(harm, tmp_path, clock=clock, cancel_grace_s=5.0) as engine:
        pid = pid_of(engine)
        guilty = engine.submit(request(rows(models.POISON)))
        wait_until(lambda: has_begun(tmp_path) == 1)
        behind = engine.submit(request(rows(3)))
        engine.abandon(guilty)
        engine.abandon(guilty)
        with pytest.raises(CancelledRequestError):
            guilty.result(0)
        clock.wait_for_sleepers()
        clock.advance(4.9)
        assert pid_of(engine) == pid
        assert not has_exited(pid)
        clock.advance(0.2)
        assert behind.result(WAIT_S)["output"][0, 0] == 3
        assert has_exited(pid)
        statistics = engine.model_statistics()
        assert engine.last_death is None, "a kill for a client that left says nothing about the model"
    assert has_begun(tmp_path) == 1
    assert (statistics.restarts, statistics.cancelled, statistics.success.count) == (1, 1, 1)
    assert statistics.fail.count == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_cancelled_infer_has_its_call_killed(tmp_path, how):
    """In an event loop: cancelled, or expired; the next request completes."""

    async def main(engine):
        deadline = engine._clock.now() + 1.0 if how == "deadline" else None
        asking = asyncio.create_task(engine.infer(request(rows(models.POISON), deadline=deadline)))
        await asyncio.to_thread(wait_until, lambda: has_begun(tmp_path) == 1)
        if how == "cancel":
            asking.cancel()
        with pytest.raises((asyncio.CancelledError, DeadlineError)):
            await asking
        return await asyncio.wait_for(engine.infer(request(rows(3))), WAIT_S)

    with poisonous("loop", tmp_path, cancel_grace_s=0.0) as engine:
        assert asyncio.run(main(engine))["output"][0, 0] == 3
        assert engine.model_statistics().restarts == 1
    assert has_begun(tmp_path) == 1


@pytest.mark.slow
def test_intended_kills_do_not_delay_restart(tmp_path):
    """They say nothing about the model."""
    clock = ManualClock()
    with poisonous("loop", tmp_path, clock=clock, cancel_grace_s=5.0) as engine:
        for count in range(1, 4):
            guilty = engine.submit(request(rows(models.POISON)))
            wait_until(lambda count=count: has_begun(tmp_path) == count)
            engine.abandon(guilty)
            clock.wait_for_sleepers()
            clock.advance(5.0)
        assert engine.submit(request(rows(3))).result(WAIT_S)["output"][0, 0] == 3
        assert clock.slept_s == (5.0, 5.0, 5.0)


@pytest.mark.slow
def test_shared_call_survives_abandonment(tmp_path):
    """Until all of its clients have left."""
    waits = functools.partial(models.Waiting, folder=str(tmp_path))
    settings = ServeSettings(isolation="process", cancel_grace_s=0.0)
    engine = Engine(waits, name="m", serving=settings, in_flight_max=9)
    engine.start()
    try:
        pid = pid_of(engine)
        first = engine.submit(request(rows(0)))
        assert first.result(WAIT_S)["output"][0, 0] == 0
        backend = engine._session.slots[0].backend
        # Two requests that wait at once share a call.
        with backend._lock:
            held = engine.submit(request(rows(0)))
            wait_until(held.running)
            both = [engine.submit(request(rows(1))) for _ in range(2)]
        wait_until((tmp_path / "began").exists)
        caller = engine._session.slots[0].cancel_if_unwanted.__self__
        assert len(caller._running.items) == 2
        engine.abandon(both[0])
        with pytest.raises(CancelledRequestError):
            both[0].result(0)
        assert backend._kill_timer is None
        assert not (tmp_path / "cancelled").exists()
        assert pid_of(engine) == pid
        engine.abandon(both[1])
        # The model sees the cancellation first, and may end faster than the kill.
        wait_until(lambda: (tmp_path / "cancelled").exists() or pid_of(engine) not in (None, pid))
        assert engine.submit(request(rows(0))).result(WAIT_S)["output"][0, 0] == 0
    finally:
        engine.stop(drain=False)


@pytest.mark.slow
def test_abandoned_waiting_request_is_removed(tmp_path):
    """It is never called, and waiting threads see the cancellation."""
    clock = ManualClock()
    with poisonous("loop", tmp_path, clock=clock) as engine:
        guilty = engine.submit(request(rows(models.POISON)))
        wait_until(lambda: has_begun(tmp_path) == 1)
        waiting = [engine.submit(request(rows(models.POISON))) for _ in range(3)]
        for future in waiting:
            engine.abandon(future)
        assert len(wait(waiting, WAIT_S).done) == 3
        assert all(future.cancelled() for future in waiting)
        engine.abandon(guilty)
        clock.wait_for_sleepers()
        clock.advance(5.0)
        assert engine.submit(request(rows(3))).result(WAIT_S)["output"][0, 0] == 3
    assert has_begun(tmp_path) == 1


@pytest.mark.slow
def test_abandon_after_result_keeps_result(tmp_path):
    with poisonous("loop", tmp_path) as engine:
        future = engine.submit(request(rows(3)))
        future.result(WAIT_S)
        engine.abandon(future)
        assert future.result(0)["output"][0, 0] == 3
        assert engine.model_statistics().cancelled == 0


@pytest.mark.slow
def test_model_that_heeds_cancellation_is_not_killed(tmp_path):
    """It ends its call within the grace period."""
    with_folder = functools.partial(models.Waiting, folder=str(tmp_path))
    engine = Engine(with_folder, name="m", serving=ServeSettings(isolation="process"))
    engine.start()
    try:
        pid = pid_of(engine)
        future = engine.submit(request(rows(1)))
        wait_until((tmp_path / "began").exists)
        engine.abandon(future)
        wait_until((tmp_path / "cancelled").exists)
        assert engine.submit(request(rows(0))).result(WAIT_S)["output"][0, 0] == 0
        assert pid_of(engine) == pid
    finally:
        engine.stop()


@pytest.mark.slow
def test_infinite_grace_period_kills_no_process(tmp_path):
    with poisonous("loop", tmp_path, cancel_grace_s=None) as engine:
        pid = pid_of(engine)
        guilty = engine.submit(request(rows(models.POISON)))
        wait_until(lambda: has_begun(tmp_path) == 1)
        engine.abandon(guilty)
        assert engine._session.slots[0].backend._kill_timer is None
        os.kill(pid, signal.SIGKILL)
        assert engine.submit(request(rows(3))).result(WAIT_S)["output"][0, 0] == 3
    assert has_begun(tmp_path) == 1, "a cancelled request is not retried"


# Everything at once


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(levels.by_level(1, 3, 30)))
def test_every_future_ends_under_random_abandons_and_kills(tmp_path, seed):
    """No hang, no lost and no wrong response: every other request succeeds, or was killed twice."""
    choice = random.Random(seed)
    # A request that shares a call with poison keeps it alive until its timeout.
    serve = {"instances": 2, "cancel_grace_s": 0.0, "call_timeout_s": 0.5}
    with poisonous("loop", tmp_path, in_flight_max=32, **serve) as engine:
        sent, left = [], set()
        stop = threading.Event()

        def kill():
            while not stop.wait(0.15):
                victim = choice.choice(engine._session.slots).backend.pid
                if victim is not None:
                    with contextlib.suppress(ProcessLookupError):  # it has exited by itself since
                        os.kill(victim, signal.SIGKILL)

        killing = threading.Thread(target=kill)
        killing.start()
        try:
            for i in range(400):
                bad = choice.random() < 0.02
                future = engine.submit(request(rows(models.POISON if bad else i)))
                sent.append((i, future))
                if bad:
                    # No other end is possible, also during a restart.
                    threading.Timer(choice.random() * 0.1, engine.abandon, [future]).start()
                    left.add(future)
                elif choice.random() < 0.2:
                    engine.abandon(future)
                    left.add(future)
        finally:
            stop.set()
            killing.join()
        done, not_done = wait([future for _, future in sent], WAIT_S)
        assert not not_done
        assert len(done) == 400
        lost = 0
        for i, future in sent:
            if future.cancelled() or isinstance(future.exception(), CancelledRequestError):
                assert future in left
            elif future.exception() is not None:
                assert isinstance(future.exception(), InstanceLostError)
                lost += 1
            else:
                assert future.result()["output"][0, 0] == i
        assert lost < 40
        wait_until(lambda: engine.alive)
        assert engine.submit(request(rows(3))).result(WAIT_S)["output"][0, 0] == 3
        requests, waiting_rows, _, running = engine._session.queue.waiting()
        assert (requests, waiting_rows, running) == (0, 0, 0)
        assert engine._session.queue._entries_by_future == {}
