"""The scaler of served models: the load that counts, decisions in time, and changes that fail."""

import logging
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import levels
from cases import for_each
from engine.support import request
from headrace.core.errors import ConfigError, ModelLoadError, ModelNotReadyError
from headrace.core.statistics import Duration, InstanceStatus, ModelStatistics
from headrace.engine.repository import ModelDefinition, ModelRepository
from headrace.engine.settings import ServeSettings
from headrace.scaling.instances import (
    DECISION_S,
    InstanceLoad,
    InstanceScaler,
    LoadSamples,
    RepositoryModels,
    load_of,
    observe_instances,
)
from headrace.scaling.settings import InstanceScalingSettings
from headrace.testing import EchoModel, HeldModel, ManualClock, check_service
from scaling.model_bench import SAMPLE_S, WAIT_S, FiguredModels, ScalerBench

WINDOW_S = InstanceScalingSettings().scale_in_window_s
BURST_S = InstanceScalingSettings().scale_out_window_s


@pytest.fixture
def bench():
    made = ScalerBench()
    yield made
    made.scaler.stop()


def lines(caplog, level=logging.INFO):
    return [r.getMessage() for r in caplog.records if r.name == "headrace.scaling" and r.levelno == level]


# Load


def statistics(**figures) -> ModelStatistics:
    return ModelStatistics("m", "1", **{"instances": 4, **figures})


def test_idle_model_has_no_load():
    assert load_of(statistics(), 8) == InstanceLoad(0, 0, 8, 0.0, None)


def test_rows_count_and_not_requests():
    found = load_of(statistics(waiting_requests=2, waiting_rows=12, in_flight=2, oldest_waiting_s=0.5), 8)
    assert (found.waiting, found.running, found.oldest_s) == (12, 0, 0.5)


def test_large_request_counts_as_one_full_call():
    assert load_of(statistics(waiting_requests=1, waiting_rows=1000, in_flight=1), 8).waiting == 8


def test_request_without_rows_counts_as_one():
    assert load_of(statistics(waiting_requests=3, in_flight=3), 8).waiting == 3


@for_each(
    ("rows", "failed", "errors", "running"), [(30, 0, 0, 6), (10, 10, 10, 6), (900, 0, 0, 16), (0, 0, 0, 2)]
)
def test_running_requests_have_the_mean_rows_of_all(rows, failed, errors, running):
    ended = statistics(
        rows=rows, failed_rows=failed, error_rows=errors, success=Duration(7), fail=Duration(3), in_flight=2
    )
    assert load_of(ended, 8).running == running


def test_running_rows_are_those_of_full_calls_at_most():
    ended = statistics(instances=2, rows=90, success=Duration(10), in_flight=30)
    assert load_of(ended, 8).running == 16


def test_running_requests_before_the_first_end_have_one_row():
    assert load_of(statistics(waiting_requests=1, waiting_rows=4, in_flight=3), 8).running == 2


def test_open_stream_counts_as_one_row():
    assert load_of(statistics(open_streams=3, in_flight=1), 8).running == 4


def test_run_time_is_the_mean_of_the_calls():
    assert load_of(statistics(compute_infer=Duration(4, 2_000_000_000)), 8).run_s == 0.5


def test_samples_are_averaged_and_forgotten():
    samples = LoadSamples()
    assert samples.take() is None
    for rows in (0, 9, 0):
        samples.add(InstanceLoad(rows, rows / 3, 4, oldest_s=rows))
    assert samples.take() == InstanceLoad(3, 1, 4)
    assert samples.take() is None
    samples.add(InstanceLoad(5, 1, 4))
    assert samples.take() == InstanceLoad(5, 1, 4)


STATUS = InstanceStatus("m", "1", instances=4, ready=3, draining=2, instances_min=1, instances_max=8)


def test_observation_has_the_instances_as_workers():
    found = observe_instances(7, InstanceLoad(5, 9, 8, 0.25, 0.5), STATUS)
    assert (found.at_ms, found.due, found.running, found.slots) == (7, 5, 9, 8)
    assert (found.workers, found.starting, found.draining, found.busy) == (3, 1, 2, 2)
    assert (found.oldest_s, found.run_s, found.drains) == (0.25, 0.5, True)


@for_each(("waiting", "running", "due", "runs"), [(0.4, 0.4, 1, 0), (0.2, 0.2, 0, 0), (0.3, 1.4, 1, 1)])
def test_sum_of_the_means_is_rounded_once(waiting, running, due, runs):
    found = observe_instances(0, InstanceLoad(waiting, running, 8), STATUS)
    assert (found.due, found.running) == (due, runs)


def test_instances_to_be_removed_are_no_workers():
    found = observe_instances(0, InstanceLoad(0, 0, 1), replace(STATUS, instances=2, ready=3))
    assert (found.workers, found.starting) == (2, 0)


# Decisions in time


def test_instances_follow_the_load_up_and_after_the_window_down(bench, caplog):
    caplog.set_level(logging.INFO, "headrace.scaling")
    bench.add(slots=8)
    assert bench.run(2 * BURST_S) == 1
    assert bench.run(BURST_S - DECISION_S, rows=30) == 1
    assert bench.run(DECISION_S, rows=30) == 4
    assert bench.run(WINDOW_S - DECISION_S, rows=3) == 4
    assert bench.run(DECISION_S, rows=3) == 1
    bench.run(DECISION_S)
    assert lines(caplog) == [
        "model m: 1 -> 4 instances: 22 due and 8 running rows, 8 for each instance",
        "model m: 4 -> 1 instances: 0 due and 3 running rows, 8 for each instance",
    ]


def test_number_stays_within_the_range(bench):
    bench.add(most=3)
    assert bench.run(10, rows=100) == 3
    assert bench.run(WINDOW_S + 10, rows=0) == 1


def test_burst_shorter_than_the_window_adds_nothing(bench):
    bench.add()
    bench.run(BURST_S)
    for _ in range(10):
        assert bench.run(BURST_S - DECISION_S, rows=40) == 1
        assert bench.run(DECISION_S, rows=0) == 1


def test_momentary_spikes_are_averaged(bench):
    bench.add(slots=10)
    for _ in range(20):
        for rows in (30, 2, 2, 2):
            bench.set_load(rows)
            bench.tick()
    assert bench.models.attempts == []


def test_values_of_the_model_replace_the_defaults(bench):
    bench.add(slots=1024, backlog_per_worker=4, scale_in_window_s=10)
    assert bench.run(2 * BURST_S, rows=16) == 4
    assert bench.run(15, rows=1) == 1


def test_first_window_after_the_start_removes_nothing(bench):
    bench.add()
    bench.models.statuses["m"] = replace(bench.models.statuses["m"], instances=3, ready=3)
    assert bench.run(WINDOW_S - DECISION_S) == 3
    assert bench.run(3 * DECISION_S) == 1


def test_model_with_a_fixed_number_is_not_sampled(bench):
    bench.add(most=None)
    bench.run(5, rows=100)
    assert bench.models.samples == 0
    bench.models.statuses["m"] = replace(bench.models.statuses["m"], instances_max=4)
    assert bench.run(BURST_S + 3 * DECISION_S, rows=100) == 4
    bench.models.statuses["m"] = replace(bench.models.statuses["m"], instances_max=None)
    bench.run(DECISION_S)
    sampled = bench.models.samples
    bench.run(5)
    assert bench.models.samples == sampled


def test_unloaded_model_ends_nothing(bench):
    bench.add()
    bench.add("other")
    bench.run(2)
    del bench.models.statuses["other"]
    assert bench.run(5, rows=100) == 4
    assert list(bench.scaler._pasts) == [("m", "1")]


# Changes


def test_load_of_one_model_delays_no_other(bench):
    bench.models.gates["slow"] = threading.Event()
    bench.add("slow")
    bench.add()
    bench.set_load(100, "slow")
    assert bench.run(5, rows=100) == 4
    # A change that is under way is not begun again.
    assert bench.run(60, rows=100) == 4
    assert bench.models.attempts.count(("slow", 4)) == 1
    bench.models.gates.pop("slow").set()
    bench.run(2 * DECISION_S)
    assert bench.models.statuses["slow"].instances == 4


def test_lower_load_after_a_slow_change_is_noticed(bench):
    bench.models.gates["m"] = gate = threading.Event()
    bench.add(most=8)
    bench.run(5, rows=2)
    assert bench.models.attempts == [("m", 2)]
    bench.run(5, rows=5)
    assert bench.models.attempts == [("m", 2)]
    del bench.models.gates["m"]
    gate.set()
    assert bench.run(2 * DECISION_S, rows=5) == 5


def test_failed_load_keeps_the_number_and_is_repeated_with_growing_delays(bench, caplog):
    caplog.set_level(logging.INFO, "headrace.scaling")
    bench.models.errors["m"] = ModelLoadError("m", "out of memory")
    bench.add()
    bench.set_load(4)
    begun_s = []
    for _ in range(round(300 / SAMPLE_S)):
        count = len(bench.models.attempts)
        bench.tick()
        if len(bench.models.attempts) > count:
            begun_s.append(bench.clock.now())
    assert bench.models.statuses["m"].instances == 1
    # A second passes until the failure is seen.
    assert np.diff(begun_s).tolist() == [2, 3, 5, 9, 17, 33, 61, 61, 61]
    assert lines(caplog, logging.WARNING) == [
        "model m: 1 instances stay, 4 are wanted: " + str(bench.models.errors["m"])
    ]
    bench.models.errors["m"] = ModelLoadError("m", "no such file")
    bench.run(70)
    assert len(lines(caplog, logging.WARNING)) == 2
    del bench.models.errors["m"]
    assert bench.run(70) == 4
    assert lines(caplog) == ["model m: 1 -> 4 instances: 3 due and 1 running rows, 1 for each instance"]


def test_failed_load_begins_no_cooldown(bench):
    bench.models.errors["m"] = ModelLoadError("m", "out of memory")
    bench.add(scale_out_cooldown_s=600)
    bench.run(5, rows=4)
    assert bench.models.attempts
    del bench.models.errors["m"]
    assert bench.run(5, rows=4) == 4


def test_change_of_an_unloaded_model_is_no_failure_to_report(bench, caplog):
    bench.models.errors["m"] = ModelNotReadyError("m", "it is unavailable")
    bench.add()
    bench.run(10, rows=4)
    assert bench.models.attempts
    assert lines(caplog, logging.WARNING) == []


# Properties

loads = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 20)), max_size=12)
"""Seconds, and the rows in them."""


@settings(max_examples=levels.examples(1))
@given(loads, st.sampled_from([1, 3]), st.sampled_from([10.0, 30.0]))
def test_no_load_removes_instances_soon_after_an_addition(load, slots, window_s):
    bench = ScalerBench()
    bench.add(most=8, slots=slots, scale_in_window_s=window_s)
    added_s, number = -np.inf, 1
    for seconds, rows in load:
        for _ in range(round(seconds / SAMPLE_S)):
            now = bench.run(SAMPLE_S, rows=rows)
            assert now >= number or bench.clock.now() - added_s >= window_s
            added_s = bench.clock.now() if now > number else added_s
            number = now
    bench.scaler.stop()


@settings(max_examples=levels.examples(0.5))
@given(st.integers(1, 8), st.lists(st.floats(-0.9, 0.9), min_size=4, max_size=60))
def test_noise_around_a_load_changes_nothing(instances, noise):
    """The samples differ by up to 90 % of the load; their means in a second are those of the load."""
    bench = ScalerBench()
    bench.add(most=9, slots=10)
    rows = 10 * instances
    assert bench.run(BURST_S + 3 * DECISION_S, rows=rows) == instances
    begun = len(bench.models.attempts)
    for share in noise:
        for sign in (1, -1, -1, 1):
            bench.set_load(rows * (1 + sign * share))
            bench.tick()
    assert len(bench.models.attempts) == begun
    bench.scaler.stop()


@settings(max_examples=levels.examples(0.5))
@given(st.integers(0, 60), st.sampled_from([1, 4]), st.integers(1, 12))
def test_constant_load_leads_to_its_number_in_one_step(rows, slots, most):
    bench = ScalerBench()
    bench.add(most=most, slots=slots, tolerance=0)
    assert bench.run(10, rows=rows) == min(max(-(-rows // slots), 1), most)
    assert len(bench.models.attempts) <= 1
    bench.scaler.stop()


# The service


def test_scaler_is_a_service():
    check_service(lambda: InstanceScaler(FiguredModels()))


def test_thread_samples_scaled_models_only():
    bench = ScalerBench()
    bench.scaler.start()
    bench.clock.wait_for_sleepers()
    assert bench.clock.slept_s == (DECISION_S,)
    bench.add()
    bench.clock.advance(DECISION_S)
    while len(bench.clock.slept_s) < 2:
        bench.clock.wait_for_sleepers()
    assert bench.clock.slept_s[1] < DECISION_S
    assert bench.models.samples == 0
    bench.scaler.stop()


def test_failed_tick_does_not_end_the_thread(caplog):
    class Failing(FiguredModels):
        calls = 0

        def scaled(self):
            self.calls += 1
            if self.calls == 1:
                raise RuntimeError("defect")
            seen.set()
            return []

    seen = threading.Event()
    clock = ManualClock(auto=True)
    scaler = InstanceScaler(Failing(), clock=clock)
    scaler.start()
    assert seen.wait(WAIT_S)
    scaler.stop()
    assert [r.getMessage() for r in caplog.records] == ["the instances of models could not be scaled"]


def test_stop_does_not_wait_for_a_load(bench):
    bench.models.gates["m"] = gate = threading.Event()
    bench.add()
    bench.run(5, rows=4)
    (past,) = bench.scaler._pasts.values()
    assert not past.change.done.done()
    bench.scaler.stop()
    assert not past.change.done.done()
    gate.set()
    past.change.done.result(WAIT_S)


# A repository


def definition(make=EchoModel, name="m", **values) -> ModelDefinition:
    serve = ServeSettings(**{"isolation": "thread", "max_batch_rows": 1, "max_batch_delay_ms": 0, **values})
    return ModelDefinition(name, "1", make, settings=serve)


@pytest.fixture
def opened():
    made: list[ModelRepository] = []

    def make(*definitions):
        repository = ModelRepository(definitions)
        made.append(repository)
        repository.start()
        return repository

    yield make
    for repository in made:
        repository.stop(drain=False)


@for_each(
    ("values", "why"),
    [
        ({"tolerance": 2}, "model m: scaling: tolerance must be a number from 0 to 1, not 2"),
        ({"workers": "0..3"}, "model m: scaling: unknown key 'workers'; the keys are backlog_per_worker"),
        ({"schedules": ()}, "unknown key 'schedules'"),
    ],
)
def test_invalid_settings_are_refused_before_the_start(values, why):
    with pytest.raises(ConfigError, match=why):
        RepositoryModels(ModelRepository([definition(scaling=values)]))


def test_only_loaded_models_with_a_range_are_scaled(opened):
    repository = opened(
        definition(name="fixed"), definition(name="gone", instances_max=2), definition(instances_max=3)
    )
    repository.unload("gone")
    models = RepositoryModels(repository)
    (found,) = models.scaled()
    assert (found.status.name, str(found.settings.workers)) == ("m", "1..3")
    assert models.load("m", "1") == InstanceLoad(0, 0, 1)
    repository.set_instances("fixed", "1", 1, 2)
    repository.set_instances("m", "1", 2)
    assert [each.status.name for each in models.scaled()] == ["fixed"]


def test_change_keeps_the_range(opened):
    models = RepositoryModels(opened(definition(instances_max=4)))
    for number in (4, 2, 1):
        models.resize("m", "1", number)
        (found,) = models.scaled()
        assert (found.status.instances, str(found.settings.workers)) == (number, "1..4")


def test_load_adds_instances_and_its_end_removes_them(opened):
    model = HeldModel()
    repository = opened(definition(lambda: model, instances_max=4, warm_up=False))
    clock = ManualClock(1000.0)
    scaler = InstanceScaler(RepositoryModels(repository), clock=clock)

    def pass_time(seconds, *, settled=True):
        for _ in range(round(seconds / SAMPLE_S)):
            clock.advance(SAMPLE_S)
            scaler.tick()
            if settled:
                wait_for_change()

    def wait_for_change():
        for past in scaler._pasts.values():
            if past.change is not None:
                past.change.done.result(WAIT_S)

    # `submit` blocks while three requests are open.
    requests = [repository.engine("m").submit(request()) for _ in range(3)]
    model.wait_for_calls(1)
    # A change may wait for the requests, which wait for this test.
    pass_time(BURST_S + 3 * DECISION_S, settled=False)
    model.release(3)
    assert [len(r.result(WAIT_S)["output"]) for r in requests] == [1, 1, 1]
    wait_for_change()
    assert repository.instance_status("m").instances == 3
    pass_time(WINDOW_S + 3 * DECISION_S)
    assert repository.instance_status("m").instances == 1
    scaler.stop()
