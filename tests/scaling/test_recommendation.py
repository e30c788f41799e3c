"""The recommendation for a queue without a controller."""

import pytest

from cases import for_each
from headrace.core.errors import DataError
from headrace.jobs.ledger import QueueCounts
from headrace.scaling.recommendation import recommend_workers


def recommended(slots=1, **counts):
    decision = recommend_workers(QueueCounts(**counts), slots)
    return decision.wanted, decision.reason


@for_each(
    ("due", "running", "slots", "workers"),
    [(0, 0, 1, 0), (1, 0, 1, 1), (0, 1, 1, 1), (3, 2, 1, 5), (3, 2, 2, 3), (4, 0, 4, 1), (1, 0, 10_000, 1)],
)
def test_every_due_and_running_job_gets_a_slot(due, running, slots, workers):
    reason = f"{due} due and {running} running jobs, {slots:g} for each worker"
    assert recommended(slots, due=due, running=running) == (workers, reason)


def test_jobs_that_are_not_due_need_no_worker():
    assert recommended(later=7, blocked=8)[0] == 0


@for_each(("slots", "most"), [(1, 1_000), (8, 8_000)])
def test_workers_are_limited_and_the_reason_says_so(slots, most):
    figures = f"{most:,} due and 0 running jobs, {slots} for each worker"
    assert recommended(slots, due=most) == (1_000, figures)
    figures = f"{most:,} due and 1 running jobs, {slots} for each worker"
    limited = (1_000, f"{figures}; limited to the maximum of 1000")
    assert recommended(slots, due=most, running=1) == limited


def test_earlier_recommendations_have_no_effect():
    assert [recommended(due=due)[0] for due in (9, 0, 4, 1)] == [9, 0, 4, 1]


@for_each("slots", [0, -1])
def test_less_than_one_slot_is_refused(slots):
    with pytest.raises(DataError, match=f"^slots_per_worker: must be at least 1, not {slots}$"):
        recommend_workers(QueueCounts(), slots)
