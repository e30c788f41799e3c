from headrace.core import current_call
from headrace.core.call import CALL


class _Hurried:
    deadline_s = 0.5
    cancelled = True


def test_outside_of_any_call_there_is_no_end():
    assert current_call().deadline_s is None
    assert not current_call().cancelled


def test_inside_it_is_the_call_that_the_engine_set():
    token = CALL.set(_Hurried())
    try:
        assert current_call().cancelled
        assert current_call().deadline_s == 0.5
    finally:
        CALL.reset(token)
    assert not current_call().cancelled
