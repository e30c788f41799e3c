"""The decision about a pool that other autoscalers follow."""

import pytest

from headrace.core.errors import ResourceNotFoundError, UncontrolledPoolError
from headrace.jobs.pools import Pool, ScalingDecision, published_decision

DECISION = ScalingDecision("gpu", "c", 1, 3, "why")


def test_published_decision_is_the_last_one_of_a_controlled_pool():
    other = Pool("cpu", "c", 2_000, 1_000, ScalingDecision("cpu", "c", 0, 9, "why"))
    assert published_decision([other, Pool("gpu", "c", 1_001, 1_000, DECISION)], "gpu") == DECISION


@pytest.mark.parametrize(
    ("pool", "why"),
    [
        (Pool("gpu", "c", 1_000, 1_000, DECISION), "has no controller"),
        (Pool("gpu", "c", 2_000, 1_000), "has no decision yet"),
    ],
)
def test_number_that_may_be_outdated_is_not_published(pool, why):
    with pytest.raises(UncontrolledPoolError, match=f"pool 'gpu' {why}"):
        published_decision([pool], "gpu")


def test_unknown_pool_has_no_decision():
    with pytest.raises(ResourceNotFoundError, match="no pool 'gpu'"):
        published_decision([Pool("cpu", "c", 2_000, 1_000, DECISION)], "gpu")
