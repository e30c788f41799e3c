"""How many messages a wait takes."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.jobs.dispatchers.pace import AT_ONCE_S, MESSAGES_MAX, Pace


def test_messages_that_come_now_and_then_are_taken_for_the_room_there_is():
    pace = Pace()
    for now_s in (0.0, 10.0, 11.0, 50.0):
        assert pace.count(3, now_s) == 3
        pace.took(now_s)


def test_a_run_of_ten_thousand_costs_a_few_dozen_waits():
    pace, left, waits, now_s = Pace(), 10_000, 0, 0.0
    while left > 0:
        left -= pace.count(1, now_s)
        pace.took(now_s)
        now_s += AT_ONCE_S / 10
        waits += 1
    assert waits < 60


def test_after_a_run_and_some_quiet_it_begins_anew():
    pace = Pace()
    for number in range(6):
        pace.took(number * AT_ONCE_S / 2)
    assert pace.count(1, 3 * AT_ONCE_S) > 1
    assert pace.count(1, 5 * AT_ONCE_S) == 1


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(-2, 500), st.booleans()), max_size=50),
)
def test_a_count_is_always_sensible(steps):
    pace, now_s = Pace(), 0.0
    for passes_s, jobs_max, took in steps:
        now_s += passes_s
        assert min(MESSAGES_MAX, max(1, jobs_max)) <= pace.count(jobs_max, now_s) <= MESSAGES_MAX
        if took:
            pace.took(now_s)
