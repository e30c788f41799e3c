"""Plans as text, rows and JSON."""

import json

import pytest

from headrace.scaling.planner.machine import Machine
from headrace.scaling.planner.plan import COLUMNS
from scaling.planner.plans import plan_of, policy


def test_load_has_one_line_with_its_busy_time_and_the_cost_of_it_alone():
    assert plan_of(arrivals="even").load_text == (
        "200 jobs in 2 days (100 a day), 5 min on average: the busy time of 8 h 20 min a day alone "
        "costs $6.13 "
        "a day and $184.00 a month, 65.3 % less than always-on"
    )
    assert plan_of(jobs_per_day=1234, days=1, run_s=0.5, currency="").load_text.startswith(
        "1,234 jobs in 1 day (1,234 a day), 500 ms on average: "
    )


def test_busy_time_alone_has_full_slots():
    four = plan_of(machine=Machine(concurrency=4), arrivals="even").document()["busy_time_alone"]
    assert four["cost_per_day"] == pytest.approx(100 * 300 / 3600 / 4, abs=1e-6)


def test_rows_have_a_cell_for_each_column():
    rows = plan_of(policy("1..8"), arrivals="even").rows()
    assert {len(row) for row in rows} == {len(COLUMNS)}
    always_on, zero, night, given = rows
    assert always_on == (
        *("always-on", "1", "$17.66", "$529.92"),
        *("0 s", "0 s", "0 s", "5 min", "34.7 %", "0"),
    )
    assert zero == (
        *("scale-to-zero", "0..8", "$13.39", "$401.73"),
        *("1 min", "1 min", "1 min", "6 min", "45.8 %", "200"),
    )
    assert night[:2] == ("nightly batch", "0..8")
    assert given[:3] == ("your policy", "1..8", "$17.66")


def test_document_has_all_figures_of_the_plan():
    plan = plan_of(policy("1..8"), arrivals="even")
    document = json.loads(json.dumps(plan.document()))
    assert document["load"] == {
        "jobs": 200,
        "days": 2,
        "jobs_per_day": 100,
        "busy_seconds_per_day": 30_000,
        "mean_run_seconds": 300,
    }
    assert document["machine"]["price_per_h"] == 0.736
    assert document["currency"] == "$"
    assert document["busy_time_alone"] == {
        "cost_per_day": 6.133333,
        "cost_per_month": 184,
        "saving": 0.652778,
    }
    assert [mode["mode"] for mode in document["modes"]] == [mode.name for mode in plan.modes]
    assert document["modes"][0] == {
        "mode": "always-on",
        "workers": "1..1",
        "cost_per_day": 17.664,
        "cost_per_month": 529.92,
        "saving": 0,
        "wait_seconds": {"p50": 0, "p95": 0, "p99": 0},
        "result_seconds": {"p50": 300, "p95": 300, "p99": 300},
        "utilisation": 0.347222,
        "workers_max": 1,
        "cold_starts": 0,
        "interruptions": 0,
        "lost_seconds": 0,
    }
    zero = document["modes"][1]
    assert (zero["saving"], zero["cold_starts"], zero["wait_seconds"]["p95"]) == (0.241898, 200, 60)
    assert document["recommendation"] == {
        "mode": "scale-to-zero",
        "kind": "asynchronous",
        "wait_seconds_max": 600,
        "in_time": True,
        "commands": ["headrace up", "headrace scale --workers 0..8"],
        "reasons": list(plan.recommendation.reasons),
    }


def test_interruptions_are_in_the_document():
    machine = Machine(interruptions_per_h=0.5)
    plan = plan_of(machine=machine)
    zero = plan.document()["modes"][1]
    assert zero["interruptions"] == plan.modes[1].outcome.interruptions > 0
    assert zero["lost_seconds"] == pytest.approx(plan.modes[1].outcome.lost_s, abs=1e-6)
    assert zero["lost_seconds"] > 0
