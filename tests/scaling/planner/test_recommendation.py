"""Recommended modes: the kind of service by the acceptable wait, the cheapest mode in time, and reasons."""

import pytest

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.scaling.planner.machine import Machine
from headrace.scaling.planner.recommendation import money, percent, recommend, seconds
from scaling.planner.plans import PRICE, plan_of, policy

SPOT = Machine(price_per_h=PRICE, interruptions_per_h=0.5)


@for_each(
    ("wait_s_max", "mode", "kind", "commands"),
    [
        (0.0, "always-on", "real time", ("headrace serve",)),
        (59.9, "always-on", "real time", ("headrace serve",)),
        (60.0, "scale-to-zero", "asynchronous", ("headrace up", "headrace scale --workers 0..8")),
        (600.0, "scale-to-zero", "asynchronous", ("headrace up", "headrace scale --workers 0..8")),
        (12 * 3600.0, "scale-to-zero", "asynchronous", ("headrace up", "headrace scale --workers 0..8")),
        (24 * 3600.0, "nightly batch", "batch", ("headrace transform",)),
    ],
)
def test_acceptable_wait_decides_on_the_kind_of_service(wait_s_max, mode, kind, commands):
    found = plan_of(arrivals="even", wait_s_max=wait_s_max).recommendation
    assert (found.mode, found.kind, found.commands) == (mode, kind, commands)
    assert found.is_in_time
    assert found.wait_s_max == wait_s_max
    assert 3 <= len(found.reasons) <= 6
    assert all(reason.endswith(".") for reason in found.reasons)


def test_reasons_have_the_figures_of_the_known_example():
    assert plan_of(arrivals="even").recommendation.reasons == (
        (
            "Asynchronous: jobs may wait 10 min. Submit them to `headrace up` with a notification, and let "
            "`headrace scale --workers 0..8` start and end the machines."
        ),
        (
            "It costs $13.39 a day and $401.73 a month. That saves 24.2 % of always-on, $128.19 a "
            "month; no mode "
            "can save more than 65.3 %: then only busy time would cost."
        ),
        "95 % of its jobs begin within 1 min. Too late: nightly batch by 22 h 30 min.",
    )


def test_user_who_waits_needs_a_worker_at_all_times():
    assert plan_of(arrivals="even", wait_s_max=5.0).recommendation.reasons == (
        (
            "Real time: a wait of 5 s is shorter than the start of a machine, 1 min, so a worker "
            "must be there "
            "before its job. Run `headrace serve` on 1 machine."
        ),
        (
            "It costs $17.66 a day and $529.92 a month; no mode can save more than 65.3 %: then "
            "only busy time "
            "would cost."
        ),
        "95 % of its jobs begin at once. Too late: scale-to-zero by 55 s and nightly batch by 22 h 40 min.",
    )


def test_mode_from_zero_is_no_choice_for_a_user_who_waits():
    """95 % of the jobs find a worker, but the others would wait for the start of a machine."""
    plan = plan_of(arrivals="office", jobs_per_day=2000, run_s=10.0, wait_s_max=30.0, always_on=4)
    always_on, zero, _ = (mode.outcome for mode in plan.modes)
    assert zero.wait.p95_s <= 30
    assert zero.cost_per_day < always_on.cost_per_day
    assert plan.recommendation.mode == "always-on"
    assert "on 4 machines." in plan.recommendation.reasons[0]


def test_nights_are_for_jobs_that_may_wait_a_day():
    first, second, *_ = plan_of(arrivals="even", wait_s_max=86_400.0).recommendation.reasons
    assert first == (
        "Nightly batch: jobs may wait 24 h, so those of a day can run together at night. Run "
        "`headrace transform` over their files from a schedule."
    )
    assert "That saves 60.9 % of always-on, $322.51 a month" in second


def test_own_policy_runs_on_kubernetes_or_other_machines():
    given = plan_of(policy("0..8", scale_in_window_s=0.0), arrivals="even").recommendation
    assert (given.mode, given.commands) == ("your policy", ("headrace up", "headrace scale"))
    assert "let `headrace scale` run your policy (0..8 workers), on Kubernetes or other" in given.reasons[0]
    assert "saves 58.3 % of always-on" in given.reasons[1]
    kept = plan_of(policy("1..8", scale_in_window_s=0.0), wait_s_max=59.0, currency="").recommendation
    assert (kept.mode, kept.kind, kept.is_in_time) == ("your policy", "real time", False)
    assert "Let `headrace scale` run your policy (1..8 workers), which always has one." in kept.reasons[0]
    assert kept.reasons[1].endswith(" more than always-on.")


@for_each(
    ("changed", "words"),
    [
        (
            {"arrivals": "office", "wait_s_max": 30.0},
            [
                "No mode with a worker at all times keeps the limit: ",
                "always-on, which is ",
                "--always-on 2.",
            ],
        ),
        (
            {"arrivals": "burst"},
            [
                (
                    "No mode keeps the limit: 95 % of the jobs begin within 56 min in the fastest, "
                    "scale-to-zero, "
                    "which is 46 min more. All of its workers were needed: try --workers 0..16."
                )
            ],
        ),
        (
            {"settings": policy("1..8"), "wait_s_max": 30.0},
            [
                (
                    "in the fastest, your policy, which is 30 s more. Try --workers 2..8, or more with "
                    "--always-on."
                )
            ],
        ),
    ],
)
def test_missed_limit_has_the_distance_and_options_to_try(changed, words):
    found = plan_of(**changed).recommendation
    assert not found.is_in_time
    assert all(each in found.reasons[2] for each in words), found.reasons


def test_options_to_try_stay_within_those_of_a_pool():
    found = plan_of(policy("0..600"), arrivals="burst", jobs_per_day=1000, days=1, wait_s_max=60.0)
    assert "try --workers 0..1000." in found.recommendation.reasons[2]


def test_scale_to_zero_without_gaps_is_pointless():
    found = plan_of(arrivals="even", jobs_per_day=500, run_s=120.0).recommendation
    assert found.mode == "always-on"
    assert found.commands == ("headrace up",)
    assert found.reasons[0].endswith("with a notification, and keep 1 worker.")
    assert found.reasons[3] == (
        "Scale to zero costs 0.2 % more than always-on: a job comes every 2 min 53 s, so the pool "
        "seldom has no "
        "machine, and it keeps the machines of each peak for 5 min."
    )


def test_scale_to_zero_with_long_starts_is_pointless():
    slow = Machine(price_per_h=PRICE, start_s=500.0)
    found = plan_of(machine=slow, arrivals="even", run_s=60.0)
    always_on, zero, _ = found.modes
    assert zero.outcome.cost_per_day < always_on.outcome.cost_per_day
    assert found.recommendation.mode == "always-on"
    assert found.recommendation.reasons[3] == (
        "Scale to zero saves 1.0 %: each of its 100 cold starts a day takes 8 min 20 s, and its "
        "machine stays "
        "for 5 min after its last job."
    )


def test_machines_without_a_price_have_no_savings():
    reasons = plan_of(machine=Machine(price_per_h=0.0)).recommendation.reasons
    assert reasons[1] == "It costs $0.00 a day and $0.00 a month."
    assert not any("Scale to zero" in reason for reason in reasons)


def test_interruptions_have_their_effect():
    found = plan_of(machine=SPOT)
    outcome = found.modes[1].outcome
    assert found.recommendation.mode == "scale-to-zero"
    assert found.recommendation.reasons[-1] == (
        f"{outcome.interruptions} interruptions of its machines in 2 days end {seconds(outcome.lost_s)} of "
        "work, which runs again; costs and times to a result include it."
    )
    assert not any("interruption" in reason for reason in plan_of().recommendation.reasons)


def test_too_few_workers_are_named():
    plan = plan_of(policy("0..3"), jobs_per_day=1000, days=1, always_on=2)
    assert plan.recommendation.reasons[3] == (
        "The jobs keep 3.5 machines busy, more than the workers of always-on (2), scale-to-zero (3) and "
        "nightly batch (3): the backlog grows from day to day. Permit more workers."
    )
    assert "less than always-on" not in plan.load_text
    assert "can save" not in plan.recommendation.reasons[1]
    enough = plan_of(policy("0..4"), jobs_per_day=1000, days=1)
    assert not any("Permit more workers" in reason for reason in enough.recommendation.reasons)


@for_each("wait_s_max", [-1.0, float("nan")])
def test_impossible_wait_is_refused(wait_s_max):
    plan = plan_of(days=1)
    with pytest.raises(ConfigError, match="must be 0 seconds or more"):
        recommend(plan.load, plan.machine, plan.modes, wait_s_max=wait_s_max)


@for_each(
    ("amount", "currency", "text"),
    [
        (17.664, "", "17.66"),
        (17.664, "$", "$17.66"),
        (1234.5, "EUR", "EUR 1,234.50"),
        (-1.5, "$", "-$1.50"),
        (-0.001, "$", "$0.00"),
    ],
)
def test_money_has_two_decimals(amount, currency, text):
    assert money(amount, currency) == text


def test_percent_has_one_decimal():
    assert [percent(share) for share in (0.65278, 0, 1, -0.05)] == ["65.3 %", "0.0 %", "100.0 %", "-5.0 %"]


@for_each(
    ("time_s", "text"),
    [
        (0, "0 s"),
        (0.0001, "0 s"),
        (0.35, "350 ms"),
        (12.34, "12.3 s"),
        (20, "20 s"),
        (60, "1 min"),
        (600, "10 min"),
        (245, "4 min 5 s"),
        (3600, "1 h"),
        (7380, "2 h 3 min"),
        (86_400, "24 h"),
        (172_800, "2 days"),
        (273_600, "3 days 4 h"),
    ],
)
def test_seconds_have_suitable_units(time_s, text):
    assert seconds(time_s) == text
