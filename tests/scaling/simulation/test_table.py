"""Statements about the table that compares autoscalers, and its copy in the documentation."""

from pathlib import Path

import pytest

from scaling.simulation import table

DOCS = Path(__file__).parent.parent.parent.parent / "docs"
STARTUP_S = 30.0
IDLE_WINDOW_S = 300.0
LONG, SHORT, MIXED = table.LONG.name, table.SHORT.name, table.MIXED.name
BOTH = "queued + running"


@pytest.fixture(scope="module")
def results():
    return table.run_all()


@pytest.fixture
def find(results):
    def found(load, autoscaler, metric=BOTH, target=1):
        (result,) = [
            each
            for each in results
            if (each.load, each.metric, each.target) == (load, metric, target)
            and each.autoscaler.startswith(autoscaler)
        ]
        return result

    return found


@pytest.mark.parametrize(("load", "factor"), [(LONG, 5), (SHORT, 3)])
def test_usual_recipe_takes_several_times_longer(find, load, factor):
    recipe, counted = find(load, "HPA", "queued", 5), find(load, "HPA")
    assert recipe.makespan_s > factor * counted.makespan_s
    assert recipe.killed > 0


def test_queued_jobs_alone_with_a_target_of_one_kill_very_many_pods(find):
    result = find(LONG, "HPA", "queued", 1)
    assert result.killed > 2 * table.JOBS
    assert result.wasted_s > 6 * 3600
    assert result.makespan_s > 4 * find(LONG, "HPA").makespan_s


def test_target_of_five_jobs_is_slow_also_with_running_jobs(find):
    result = find(LONG, "HPA", BOTH, 5)
    assert result.makespan_s > 5 * find(LONG, "HPA").makespan_s
    assert result.killed > 0


@pytest.mark.parametrize("autoscaler", ["HPA", "KEDA"])
def test_queued_and_running_jobs_with_a_target_of_one_kill_no_pod(find, autoscaler):
    result = find(LONG, autoscaler)
    assert (result.killed, result.wasted_s) == (0, 0.0)
    assert 2 * 20 * 60 < result.makespan_s < 43 * 60


@pytest.mark.parametrize(("load", "minutes"), [(LONG, 20), (SHORT, 2)])
def test_headrace_is_as_fast_as_its_workers_start_and_kills_none(find, results, load, minutes):
    result = find(load, "headrace")
    assert (result.killed, result.wasted_s, result.left) == (0, 0.0, 0)
    assert result.makespan_s <= 2 * minutes * 60 + STARTUP_S + 5.0
    assert result.makespan_s == min(each.makespan_s for each in results if each.load == load)


def test_headrace_costs_no_more_than_the_cheapest_run_and_its_idle_window(find, results):
    cheapest = min(each.worker_hours for each in results if each.load == LONG)
    window_hours = table.WORKERS_MAX * IDLE_WINDOW_S / 3600
    assert find(LONG, "headrace").worker_hours <= cheapest + window_hours


def test_workers_with_several_jobs_are_killed_by_keda_and_not_by_headrace(find):
    keda, headrace = (find(MIXED, each, target=4) for each in ("KEDA", "headrace"))
    assert keda.killed > 5
    assert (headrace.killed, headrace.wasted_s, headrace.left) == (0, 0.0, 0)
    assert headrace.worker_hours <= 1.1 * keda.worker_hours
    assert headrace.makespan_s <= keda.makespan_s + 60.0


@pytest.mark.parametrize("load", [LONG, SHORT, MIXED])
def test_keda_by_the_decision_of_headrace_kills_none_and_costs_the_same(find, load):
    follower = find(load, "KEDA", "workers wanted")
    headrace = find(load, "headrace", target=4 if load == MIXED else 1)
    assert (follower.killed, follower.wasted_s, follower.left) == (0, 0.0, 0)
    assert follower.makespan_s <= headrace.makespan_s + 60.0
    assert follower.worker_hours <= 1.05 * headrace.worker_hours


def test_window_of_keda_is_added_to_that_of_headrace(find):
    follower = find(LONG, "KEDA", "workers wanted")
    with_windows = table.run_with_follower(table.LONG, window_s=IDLE_WINDOW_S)
    added_hours = with_windows.worker_hours - follower.worker_hours
    assert added_hours == pytest.approx(table.WORKERS_MAX * IDLE_WINDOW_S / 3600, rel=0.05)
    assert with_windows.makespan_s == follower.makespan_s


def test_documentation_has_the_printed_table(results):
    copied = table.markdown(results) in (DOCS / "scaling.md").read_text()
    assert copied, "copy the output of `python tests/scaling/simulation` into docs/scaling.md"
