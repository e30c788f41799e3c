"""The number of messages that one wait receives."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.jobs.brokers.message_wakeup_broker import AT_ONCE_S, MESSAGES_MAX, Pace


def test_occasional_messages_are_received_for_the_free_slots():
    pace = Pace()
    for now_s in (0.0, 10.0, 11.0, 50.0):
        assert pace.count(3, now_s) == 3
        pace.record(now_s)


def test_run_of_ten_thousand_messages_costs_a_few_dozen_waits():
    pace, left, waits, now_s = Pace(), 10_000, 0, 0.0
    while left > 0:
        left -= pace.count(1, now_s)
        pace.record(now_s)
        now_s += AT_ONCE_S / 10
        waits += 1
    assert waits < 60


def test_count_resets_after_a_quiet_time():
    pace = Pace()
    for number in range(6):
        pace.record(number * AT_ONCE_S / 2)
    assert pace.count(1, 3 * AT_ONCE_S) > 1
    assert pace.count(1, 5 * AT_ONCE_S) == 1


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(-2, 500), st.booleans()), max_size=50),
)
def test_count_is_within_its_limits(steps):
    pace, now_s = Pace(), 0.0
    for passes_s, jobs_max, record in steps:
        now_s += passes_s
        assert min(MESSAGES_MAX, max(1, jobs_max)) <= pace.count(jobs_max, now_s) <= MESSAGES_MAX
        if record:
            pace.record(now_s)
