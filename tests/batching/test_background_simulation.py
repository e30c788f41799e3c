"""Background work and live requests, simulated: the limit holds, and background work gets what it leaves."""

from dataclasses import replace
from pathlib import Path

import pytest

from batching.background_simulation import SCENARIOS, Scenario, markdown, simulate
from headrace.batching.background import EXCEEDING, IDLE_S, SHARE_MIN

PAGE = Path(__file__).parents[2] / "docs" / "adr" / "0055-background-work-yields-by-a-share.md"
SEEDS = (1, 2, 3)
CALLS = Scenario()
IDLE_SHARE = 1 - CALLS.live_s * CALLS.live_per_s
"""The fraction of time that live requests leave."""


def test_latencies_without_background_are_those_of_a_queue():
    """The mean wait of a queue with constant service times: Pollaczek and Khinchine."""
    found = simulate(replace(CALLS, background_s=0.0))
    busy = 1 - IDLE_SHARE
    mean_s = CALLS.live_s * (1 + busy / (2 * (1 - busy)))
    assert sum(found.latencies_s) / len(found.latencies_s) == pytest.approx(mean_s, rel=0.02)
    assert found.percentile_s(99) < 0.015
    assert found.background_share() == 0


def test_background_without_a_limit_delays_live_requests():
    found = simulate(CALLS)
    assert found.percentile_s(99) > CALLS.background_s
    assert found.background_share() == pytest.approx(IDLE_SHARE, rel=0.01)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("live_per_s", [5.0, 40.0, 100.0])
def test_limit_holds_and_background_goes_on(live_per_s, seed):
    """At each rate of live requests; the limit is less than a third of a background call."""
    found = simulate(replace(CALLS, limit_s=0.03, live_per_s=live_per_s, seed=seed))
    assert found.percentile_s(99) < 0.03
    assert found.background_share() > SHARE_MIN / 2


@pytest.mark.parametrize("seed", SEEDS)
def test_fraction_above_a_limit_between_is_the_intended_one(seed):
    """A limit that neither the smallest nor the largest share decides."""
    found = simulate(replace(CALLS, limit_s=0.1, seed=seed))
    assert found.exceeding(0.1) == pytest.approx(EXCEEDING, rel=0.1)
    assert found.background_share() > 10 * SHARE_MIN


def test_limit_that_leaves_much_gives_most_of_the_idle_time():
    found = simulate(replace(CALLS, limit_s=0.2))
    assert found.percentile_s(99) < 0.2
    assert found.background_share() > 0.9 * IDLE_SHARE


def test_background_has_the_whole_time_after_the_end_of_live_traffic():
    found = simulate(replace(CALLS, limit_s=0.03, tail_s=2 * IDLE_S))
    idle_s = found.span_s + IDLE_S
    assert found.background_share(found.span_s, idle_s) < 0.05
    assert found.background_share(idle_s + 2.0, found.span_s + 2 * IDLE_S) == pytest.approx(1.0)


def test_documentation_has_the_printed_table():
    copied = markdown(SCENARIOS) in PAGE.read_text()
    assert copied, "copy the output of `python -m batching.background_simulation` into the decision record"
