from headrace.core import current_call
from headrace.core.call import CALL


class _EndingCall:
    deadline_s = 0.5
    cancelled = True


def test_no_deadline_outside_of_calls():
    assert current_call().deadline_s is None
    assert not current_call().cancelled


def test_current_call_is_the_one_that_the_engine_set():
    token = CALL.set(_EndingCall())
    try:
        assert current_call().cancelled
        assert current_call().deadline_s == 0.5
    finally:
        CALL.reset(token)
    assert not current_call().cancelled
