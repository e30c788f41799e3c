"""Statements about the table of costs and waits, and its copy in the documentation."""

from pathlib import Path

import pytest

from scaling.planner import costs_table

PAGE = Path(__file__).parent.parent.parent.parent / "docs" / "choosing.md"
KNOWN = {
    "A": ((7.90, 42), (7.88, 33), (6.80, 19), (6.75, 35)),
    "B": ((11.65, 8), (10.23, 11), (6.89, 15), (7.63, 34)),
    "C": ((12.27, 11), (8.85, 12), (6.82, 15), (7.63, 34)),
    "D": ((7.36, 6), (6.86, 7), (6.30, 14), (6.26, 29)),
}
"""Costs of a day and median minutes of another simulation of the same policies."""
BUSY = costs_table.JOBS * costs_table.RUN_S / 3600 * costs_table.PRICE_PER_H
"""The cost of the time alone for which jobs run."""


@pytest.fixture(scope="module")
def results():
    return costs_table.run_all()


def test_known_example_has_its_figures():
    assert (round(costs_table.ALWAYS_ON, 2), round(30 * costs_table.ALWAYS_ON, 2)) == (17.66, 529.92)
    assert (round(BUSY, 2), round(30 * BUSY, 2)) == (6.13, 184.00)
    assert round(100 * (1 - BUSY / costs_table.ALWAYS_ON), 1) == 65.3


@pytest.mark.parametrize("policy", KNOWN)
def test_costs_are_those_of_another_simulation(results, policy):
    """Its burst with the wake policy kept instances for longer: 13 %."""
    for found, (cost, _) in zip(results[policy], KNOWN[policy], strict=True):
        assert found.cost == pytest.approx(cost, rel=0.13 if cost == 7.63 else 0.05)


@pytest.mark.parametrize("policy", KNOWN)
def test_medians_are_those_of_another_simulation(results, policy):
    for found, (_, p50_min) in zip(results[policy], KNOWN[policy], strict=True):
        assert found.p50_min == pytest.approx(p50_min, abs=5)


def test_no_policy_saves_as_much_as_paying_for_busy_time_alone(results):
    assert min(each.cost for row in results.values() for each in row) > BUSY


def test_target_tracking_saves_at_the_price_of_waits(results):
    tracking, woken = results["A"][0], results["C"][0]
    assert tracking.cost < 0.7 * woken.cost
    assert tracking.p50_min > 3 * woken.p50_min


def test_start_of_five_minutes_costs_as_much_as_the_alarms(results):
    sparing, alarms = results["E"][0], results["C"][0]
    assert sparing.cost == pytest.approx(alarms.cost, rel=0.05)
    assert sparing.p50_min < alarms.p50_min


def test_defaults_wait_least_and_save_least_of_the_short_starts(results):
    for default, sparing in zip(results["F"], results["D"], strict=True):
        assert default.p50_min <= sparing.p50_min
        assert default.cost > sparing.cost


def test_documentation_has_the_printed_table(results):
    copied = costs_table.markdown(results) in PAGE.read_text()
    assert copied, "copy the output of `python tests/scaling/planner` into docs/choosing.md"
