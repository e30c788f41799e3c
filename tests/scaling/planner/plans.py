"""Plans of small loads for the tests of the planner."""

from functools import cache

from headrace.scaling.planner.arrivals import LoadOptions, generated_load
from headrace.scaling.planner.machine import Machine
from headrace.scaling.planner.modes import compare
from headrace.scaling.planner.plan import PoolPlan
from headrace.scaling.planner.recommendation import recommend
from headrace.scaling.settings import ScalingSettings, WorkerRange

PRICE = 0.736


def policy(workers="0..8", **values):
    return ScalingSettings(workers=WorkerRange.parse(workers), **values)


@cache
def plan_of(
    settings=None,
    machine=None,
    *,
    wait_s_max=600.0,
    always_on=None,
    currency="$",
    interval_s=5.0,
    seed=0,
    **load,
) -> PoolPlan:
    """Return a plan for 100 jobs a day of 5 minutes in two days, or for the load of these options."""
    machine = machine or Machine(price_per_h=PRICE)
    made = generated_load(LoadOptions(**{"run_s": 300.0, "days": 2, **load}))
    modes = compare(
        made, machine, settings or policy(), always_on=always_on, interval_s=interval_s, seed=seed
    )
    chosen = recommend(made, machine, modes, wait_s_max=wait_s_max, currency=currency)
    return PoolPlan(made, machine, modes, chosen, currency)
