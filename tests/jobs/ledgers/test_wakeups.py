from headrace.jobs.ledgers.database import News
from headrace.jobs.ledgers.wakeups import Bells


def test_bells_ring_for_what_they_want_to_hear():
    bells = Bells()
    of_a, of_all = bells.hang(["a"]), bells.hang(None)
    bells.tell(News({"b"}, changed=True))
    assert (of_a.wait(0), of_all.wait(0)) == (False, True)
    bells.tell(News({"a", "b"}))
    assert (of_a.wait(0), of_all.wait(0)) == (True, True)
    assert (of_a.wait(0), of_all.wait(0)) == (False, False)


def test_what_is_taken_down_is_quiet():
    bells = Bells()
    bell = bells.hang(None)
    bells.take_down(bell)
    bells.take_down(bell)
    bells.tell(News({"a"}, changed=True))
    assert not bell.wait(0)


def test_ringing_before_a_wait_ends_it():
    bell = Bells().hang(["a"])
    bell.ring()
    assert bell.wait(10)
