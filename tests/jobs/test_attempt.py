"""One attempt: told once why to stop, and soon."""

import logging
import threading
from concurrent.futures import Future

import pytest

from headrace.jobs.attempt import AttemptStoppedError, StopReason
from headrace.jobs.job import NewJob, Progress
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
def test_the_first_reason_stands(attempt, second):
    attempt.stop(StopReason.CANCELLED)
    attempt.stop(second)
    assert attempt.stopped is StopReason.CANCELLED


def test_nothing_excuses_a_lost_lease(attempt):
    attempt.stop(StopReason.DRAIN)
    attempt.stop(StopReason.LOST)
    attempt.stop(StopReason.CANCELLED)
    assert attempt.stopped is StopReason.LOST


def test_who_listens_is_told_once_and_at_once_where_it_comes_late(attempt, caplog):
    caplog.set_level(logging.CRITICAL)
    told: list[str] = []
    attempt.on_stop(lambda: 1 // 0)
    attempt.on_stop(lambda: told.append("early"))
    attempt.stop(StopReason.DRAIN)
    attempt.stop(StopReason.LOST)
    attempt.on_stop(lambda: told.append("late"))
    assert told == ["early", "late"]


def test_looking_raises_only_when_it_was_told(attempt):
    attempt.check()
    attempt.stop(StopReason.EXPIRED)
    with pytest.raises(AttemptStoppedError) as raised:
        attempt.check()
    assert raised.value.reason is StopReason.EXPIRED


def test_an_answer_is_waited_for(attempt):
    future: Future[int] = Future()
    answers: list[int] = []
    waiting = in_thread(lambda: answers.append(attempt.answer(future, lambda _: answers.append(-1))))
    future.set_result(7)
    waiting.join(WAIT_S)
    assert answers == [7]


def test_an_answers_error_is_raised(attempt):
    future: Future[int] = Future()
    future.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        attempt.answer(future, lambda _: None)


def test_told_to_stop_while_it_waits_it_gives_the_answer_up(attempt):
    future: Future[int] = Future()
    seen: list[object] = []

    def wait():
        try:
            attempt.answer(future, seen.append)
        except AttemptStoppedError as error:
            seen.append(error.reason)

    waiting = in_thread(wait)
    attempt.stop(StopReason.CANCELLED)
    waiting.join(WAIT_S)
    assert seen == [future, StopReason.CANCELLED]


def test_one_that_was_told_takes_no_answer_even_if_it_is_there(attempt):
    future: Future[int] = Future()
    future.set_result(7)
    attempt.stop(StopReason.LOST)
    with pytest.raises(AttemptStoppedError):
        attempt.answer(future, lambda _: None)


def test_answers_one_after_the_other(attempt):
    for number in range(3):
        future: Future[int] = Future()
        setting = in_thread(lambda f=future, n=number: f.set_result(n))
        assert attempt.answer(future, lambda _: None) == number
        setting.join(WAIT_S)


def test_how_far_it_is_or_none_where_that_cannot_be_told(attempt, caplog):
    caplog.set_level(logging.CRITICAL)
    assert attempt.progress is None
    attempt.report(lambda: Progress(3))
    assert attempt.progress == Progress(3)
    attempt.report(lambda: 1 // 0)
    assert attempt.progress is None
