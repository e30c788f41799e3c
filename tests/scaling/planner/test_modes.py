"""The compared modes of a pool: their policies, the machines that a load needs, and jobs due at night."""

from dataclasses import replace

import numpy as np
import pytest

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.scaling.planner.arrivals import LoadOptions, generated_load
from headrace.scaling.planner.load import DAY_S, MONDAY_MS, Load
from headrace.scaling.planner.machine import Machine
from headrace.scaling.planner.modes import (
    NIGHT_S,
    compare,
    due_at_night,
    machines_needed,
    offered_machines,
)
from headrace.scaling.planner.simulation import simulate
from headrace.scaling.settings import PoolSettings, ScheduledLimits, WorkerRange
from scaling.planner.plans import plan_of, policy

HOUR_S = 3600.0


def load_of(arrived_s, run_s=60.0, *, days=1, began_at_ms=MONDAY_MS) -> Load:
    arrived = np.array(arrived_s, np.float64)
    return Load(arrived, np.full(len(arrived), run_s), days * DAY_S, began_at_ms=began_at_ms)


def by_name(modes):
    return {mode.name: str(mode.workers) for mode in modes}


def test_three_modes_are_compared_and_another_policy_is_the_fourth():
    load = load_of([0.0, 100.0])
    three = {"always-on": "1..1", "scale-to-zero": "0..8", "nightly batch": "0..8"}
    assert by_name(compare(load, Machine())) == three
    assert by_name(compare(load, Machine(), PoolSettings(pool="gpu", slots=2, interval_s=9.0))) == three
    assert by_name(compare(load, Machine(), policy(scale_in_window_s=30.0))) == {
        **three,
        "your policy": "0..8",
    }
    given = compare(load, Machine(), policy("1..5"), always_on=3)
    assert by_name(given) == {
        "always-on": "3..3",
        "scale-to-zero": "0..5",
        "nightly batch": "0..5",
        "your policy": "1..5",
    }
    assert [mode.keeps_workers for mode in given] == [True, False, False, True]
    assert [mode.title for mode in given] == [
        "always-on, 3 workers",
        "scale-to-zero, 0..5 workers",
        "nightly batch, 0..5 workers",
        "your policy, 1..5 workers",
    ]
    assert compare(load, Machine())[0].title == "always-on, 1 worker"


def test_schedules_set_the_range_of_all_modes():
    night = ScheduledLimits("0 2 * * *", WorkerRange(0, 20))
    modes = compare(load_of([0.0]), Machine(), policy("1..5", schedules=(night,)))
    assert by_name(modes)["scale-to-zero"] == "0..20"
    assert not modes[3].keeps_workers


def test_each_mode_is_announced_before_its_simulation():
    names = []
    modes = compare(load_of([0.0]), Machine(), policy("0..2", idle_s=1.0), on_mode=names.append)
    assert names == [mode.name for mode in modes]
    assert len(names) == 4


def test_failed_simulation_names_its_mode():
    with pytest.raises(ConfigError, match=r"^scale-to-zero, 0\.\.0 workers: 1 jobs have not ended"):
        compare(load_of([0.0]), Machine(), policy("0"), interval_s=60.0)


def test_settings_of_the_simulation_are_those_of_the_caller():
    machine = Machine(interruptions_per_h=0.5)
    costs = {
        plan_of(policy("0..1"), machine, seed=seed, interval_s=interval_s).modes[1].outcome.billed_s
        for seed, interval_s in ((0, 5.0), (1, 5.0), (0, 60.0))
    }
    assert len(costs) == 3


@for_each(
    ("jobs_per_day", "concurrency", "batch_gain", "needed"),
    [
        (1, 1, 1.0, 1),
        (230, 1, 1.0, 1),  # 79.9 %
        (230.4, 1, 1.0, 1),
        (231, 1, 1.0, 2),
        (2304, 1, 1.0, 10),
        (2304, 4, 1.0, 3),
        (2304, 4, 0.0, 10),
        (2304, 3, 0.5, 7),  # three jobs at once take twice as long
    ],
)
def test_always_on_has_work_for_at_most_80_percent(jobs_per_day, concurrency, batch_gain, needed):
    load = generated_load(LoadOptions(jobs_per_day, "even", 10, 300.0))
    machine = Machine(concurrency=concurrency, batch_gain=batch_gain)
    assert machines_needed(load, machine) == needed
    assert needed == 1 or offered_machines(load, machine) / (needed - 1) > 0.8


def test_more_machines_than_a_pool_has_are_refused():
    load = generated_load(LoadOptions(1_000_000, "burst", 1, 300.0))
    with pytest.raises(ConfigError, match="needs 4,341 machines, and a pool has up to 1,000: split the load"):
        compare(load, Machine())


@for_each(
    ("arrived_h", "began_h", "due_h"),
    [
        ([0.0, 2.0, 2.5, 25.0, 26.0, 27.0], 0.0, [2.0, 2.0, 26.0, 26.0, 26.0, 50.0]),
        ([0.0, 1.0, 25.0], 1.0, [1.0, 1.0, 25.0]),
        ([0.0, 4.0, 23.0], 2.0, [0.0, 24.0, 24.0]),
        ([0.0, 4.0, 23.0], 22.0, [4.0, 4.0, 28.0]),
    ],
)
def test_jobs_are_due_at_the_next_night(arrived_h, began_h, due_h):
    load = load_of(
        np.array(arrived_h) * HOUR_S, days=3, began_at_ms=MONDAY_MS + round(began_h * HOUR_S * 1000)
    )
    night = due_at_night(load)
    assert night.due.tolist() == [hours * HOUR_S for hours in due_h]
    assert (night.arrived_s == load.arrived_s).all()


def test_jobs_that_are_due_later_wait_for_the_night_after():
    load = replace(load_of([HOUR_S, 2 * HOUR_S]), due_s=np.array([HOUR_S, 3 * HOUR_S]))
    assert due_at_night(load).due.tolist() == [NIGHT_S, NIGHT_S + DAY_S]


def test_waits_of_a_nightly_batch_count_from_the_arrival():
    nightly = compare(load_of([0.0, 2 * HOUR_S + 1.0]), Machine(start_s=60.0))[2].outcome
    assert nightly.waits_s.tolist() == [NIGHT_S + 60.0, DAY_S - 1.0 + 60.0]


def test_saving_is_a_share_of_the_other_cost():
    always_on, zero, *_ = plan_of(arrivals="even").modes
    assert always_on.saving(always_on) == 0
    assert zero.saving(always_on) == pytest.approx(
        1 - zero.outcome.cost_per_day / always_on.outcome.cost_per_day
    )
    free = plan_of(machine=Machine(price_per_h=0.0)).modes
    assert free[1].saving(free[0]) == 0


def test_machine_that_is_always_on_costs_whole_days():
    """A job that ends after the last day does not lengthen the time for which the pool is paid."""
    for patterns in ("even", "random", "office", "burst"):
        plan = plan_of(policy("2..4"), arrivals=patterns, run_s=900.0, interval_s=60.0)
        assert plan.modes[0].outcome.cost_per_day == pytest.approx(24 * 0.736 * plan.modes[0].workers.most)
    late = load_of([DAY_S - 60.0], 3600.0)
    always_on, zero, _, kept = compare(late, Machine(), policy("2..4"))
    assert always_on.outcome.end_s == DAY_S + 3540.0
    assert always_on.outcome.cost_per_day == pytest.approx(24.0)
    assert kept.outcome.cost_per_day == pytest.approx(48.0)
    assert zero.outcome.cost_per_day == pytest.approx(3660 / 3600)


def test_only_kept_machines_that_were_there_cost_nothing_after_the_last_day():
    """Two are kept: one ran from the start, and one replaced an interrupted machine after the last day."""
    load = load_of([DAY_S - 60.0], 3600.0)
    outcome = simulate(load, Machine(), policy("1"))
    end_s = outcome.end_s
    replaced = replace(
        outcome,
        kept=2,
        requested_s=np.array([0.0, 0.0, DAY_S + 40.0]),
        ready_s=np.array([0.0, 0.0, DAY_S + 100.0]),
        gone_s=np.array([end_s, DAY_S + 40.0, end_s]),
    )
    assert replaced.billed_s == pytest.approx(DAY_S + (DAY_S + 40.0) + (end_s - DAY_S - 40.0))
    unbilled = replace(replaced, machine=Machine(start_billed=False))
    assert unbilled.billed_s == pytest.approx(replaced.billed_s - 60.0)
