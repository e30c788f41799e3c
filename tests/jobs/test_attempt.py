"""An attempt at a job: stop reasons, stop callbacks, waits and progress."""

import logging
import threading
from concurrent.futures import Future

import pytest

from headrace.jobs.job import JobProgress, NewJob
from headrace.jobs.kinds import AttemptStoppedError, StopReason
from jobs.support import attempt_at

WAIT_S = 20.0


@pytest.fixture
def attempt():
    return attempt_at(NewJob())


def in_thread(do):
    thread = threading.Thread(target=do)
    thread.start()
    return thread


@pytest.mark.parametrize("second", [StopReason.DRAIN, StopReason.EXPIRED, StopReason.TIME_LIMIT])
def test_first_stop_reason_stays(attempt, second):
    attempt.stop(StopReason.CANCELLED)
    attempt.stop(second)
    assert attempt.stopped is StopReason.CANCELLED


def test_lost_replaces_other_stop_reasons(attempt):
    attempt.stop(StopReason.DRAIN)
    attempt.stop(StopReason.LOST)
    attempt.stop(StopReason.CANCELLED)
    assert attempt.stopped is StopReason.LOST


def test_stop_callback_runs_once_or_at_once(attempt, caplog):
    caplog.set_level(logging.CRITICAL)
    calls: list[str] = []
    attempt.add_stop_callback(lambda: 1 // 0)
    attempt.add_stop_callback(lambda: calls.append("early"))
    attempt.stop(StopReason.DRAIN)
    attempt.stop(StopReason.LOST)
    attempt.add_stop_callback(lambda: calls.append("late"))
    assert calls == ["early", "late"]


def test_raise_if_stopped_raises_only_after_stop(attempt):
    attempt.raise_if_stopped()
    attempt.stop(StopReason.EXPIRED)
    with pytest.raises(AttemptStoppedError) as raised:
        attempt.raise_if_stopped()
    assert raised.value.reason is StopReason.EXPIRED


def test_wait_for_returns_the_result(attempt):
    future: Future[int] = Future()
    answers: list[int] = []
    waiting = in_thread(lambda: answers.append(attempt.wait_for(future, lambda _: answers.append(-1))))
    future.set_result(7)
    waiting.join(WAIT_S)
    assert answers == [7]


def test_wait_for_raises_the_futures_error(attempt):
    future: Future[int] = Future()
    future.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        attempt.wait_for(future, lambda _: None)


def test_stop_during_wait_for_abandons_the_future(attempt):
    future: Future[int] = Future()
    seen: list[object] = []

    def wait():
        try:
            attempt.wait_for(future, seen.append)
        except AttemptStoppedError as error:
            seen.append(error.reason)

    waiting = in_thread(wait)
    attempt.stop(StopReason.CANCELLED)
    waiting.join(WAIT_S)
    assert seen == [future, StopReason.CANCELLED]


def test_stopped_attempt_takes_no_result(attempt):
    future: Future[int] = Future()
    future.set_result(7)
    attempt.stop(StopReason.LOST)
    with pytest.raises(AttemptStoppedError):
        attempt.wait_for(future, lambda _: None)


def test_wait_for_serves_several_futures(attempt):
    for number in range(3):
        future: Future[int] = Future()
        setting = in_thread(lambda f=future, n=number: f.set_result(n))
        assert attempt.wait_for(future, lambda _: None) == number
        setting.join(WAIT_S)


def test_progress_is_none_if_reading_it_fails(attempt, caplog):
    caplog.set_level(logging.CRITICAL)
    assert attempt.progress is None
    attempt.set_progress_source(lambda: JobProgress(3))
    assert attempt.progress == JobProgress(3)
    attempt.set_progress_source(lambda: 1 // 0)
    assert attempt.progress is None
