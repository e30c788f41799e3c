"""The simulation of a pool: invariants, known examples, queueing theory, and the real controller."""

from math import factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.scaling.planner.arrivals import LoadOptions, generated_load
from headrace.scaling.planner.load import DAY_S, Load
from headrace.scaling.planner.machine import Machine
from headrace.scaling.planner.outcome import busy_cost_per_day
from headrace.scaling.planner.simulation import GAP_S, simulate
from headrace.scaling.policy import Decision
from headrace.scaling.settings import PoolSettings, ScheduledLimits, WorkerRange
from levels import examples
from scaling.planner.pools import WatchedPool, always, load_of, loads, machines, policies, policy_of
from scaling.simulation.cluster import Cluster
from scaling.simulation.control import ControllerRun
from scaling.simulation.loads import HOUR_S, bursts, exponential, poisson

EXAMPLE = LoadOptions(100.0, "even", 1, 300.0)
"""100 jobs of five minutes in a day."""
PRICE = 0.736
EPSILON_S = 1e-6


def same(one, other):
    """Return True if two outcomes are equal in all figures."""
    arrays = ("began_s", "ended_s", "requested_s", "ready_s", "gone_s")
    figures = ("cold_starts", "interruptions", "lost_s", "end_s")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays) and all(
        getattr(one, name) == getattr(other, name) for name in figures
    )


# Invariants


@settings(max_examples=examples(4))
@given(load=loads(), machine=machines(), policy=policies(), drains=st.booleans())
def test_each_job_ends_once_after_its_run_time_in_a_slot_of_a_ready_worker(load, machine, policy, drains):
    pool = WatchedPool(load, machine, policy, drains=drains)
    found = pool.watch()
    jobs = len(load.run_s)
    assert dict(pool.ends) == dict.fromkeys(range(jobs), 1)
    assert (found.began_s >= load.due).all()
    assert (found.waits_s >= 0).all()
    took_s = found.ended_s - found.began_s
    assert (took_s >= load.run_s - EPSILON_S).all()
    slowest = 1 + (1 - machine.batch_gain) * (machine.concurrency - 1)
    assert (took_s <= load.run_s * slowest + EPSILON_S).all()
    # One attempt for each job, in the order of the queue.
    assert [job for job, _, _ in pool.begun] == list(range(jobs))
    assert [at_s for _, _, at_s in pool.begun] == found.began_s.tolist()
    for worker in range(len(found.ready_s)):
        own = [job for job, number, _ in pool.begun if number == worker]
        for job in own:
            at_s = found.began_s[job]
            beside = sum(found.began_s[each] <= at_s < found.ended_s[each] for each in own)
            assert beside <= machine.concurrency
            assert found.ready_s[worker] <= at_s <= found.ended_s[job] <= found.gone_s[worker]
    assert (found.interruptions, found.lost_s) == (0, 0)
    assert found.end_s == max(load.span_s, found.ended_s.max())
    assert 0 <= found.utilisation <= 1
    assert same(found, simulate(load, machine, policy, drains=drains, seed=5))


@settings(max_examples=examples(2))
@given(load=loads(), machine=machines(interruptions=True), policy=policies(), drains=st.booleans())
def test_interrupted_jobs_begin_anew_and_end_once(load, machine, policy, drains):
    pool = WatchedPool(load, machine, policy, drains=drains, seed=3)
    found = pool.watch()
    assert dict(pool.ends) == dict.fromkeys(range(len(load.run_s)), 1)
    last_s = {job: at_s for job, _, at_s in pool.begun}
    first_s = {job: at_s for job, _, at_s in reversed(pool.begun)}
    assert [first_s[job] for job in range(len(load.run_s))] == found.began_s.tolist()
    # First attempts keep the order of the queue.
    assert (np.diff(found.began_s) >= 0).all()
    assert all(found.ended_s[job] - at_s >= load.run_s[job] - EPSILON_S for job, at_s in last_s.items())
    ended = [(found.gone_s[worker], at_s) for job, worker, at_s in pool.begun if at_s != last_s[job]]
    assert found.lost_s == pytest.approx(sum(gone_s - at_s for gone_s, at_s in ended))
    assert same(found, simulate(load, machine, policy, drains=drains, seed=3))


@settings(max_examples=examples(3))
@given(load=loads(), machine=machines(), policy=policies(), drains=st.booleans())
def test_pool_stays_within_its_limits(load, machine, policy, drains):
    """A shortage ends drains before machines start. So draining ones do not exceed the maximum, either."""
    pool = WatchedPool(load, machine, policy, drains=drains)
    found = pool.watch()
    limits = policy.workers
    assert all(limits.least <= current <= limits.most for _, current, _ in pool.decisions)
    assert all(limits.least <= wanted <= limits.most for _, _, wanted in pool.decisions)
    assert found.workers_max <= limits.most
    assert found.cold_starts == len(found.requested_s) - limits.least
    assert (found.requested_s[: limits.least] == 0).all()
    assert (found.ready_s[: limits.least] == 0).all()
    starts_s = (found.ready_s - found.requested_s)[limits.least :]
    assert np.isin(np.round(starts_s, 6), (machine.start_s, np.inf)).all()
    times_s = np.array([at_s for at_s, _, _ in pool.decisions])
    assert (np.diff(times_s) >= GAP_S - EPSILON_S).all()


@settings(max_examples=examples(1))
@given(load=loads(), machine=machines(interruptions=True), policy=policies(), steps=st.integers(1, 50))
def test_figures_equal_those_counted_one_by_one(load, machine, policy, steps):
    found = simulate(load, machine, policy, seed=1)
    timeline = found.timeline(steps)
    assert timeline.step_s * steps == pytest.approx(found.end_s)
    machines_of = list(zip(found.requested_s, found.ready_s, found.gone_s, strict=True))
    for step in range(steps):
        from_s, until_s = found.end_s * step / steps, found.end_s * (step + 1) / steps
        # The end of a step may be rounded to just before or after an event.
        least, most = (
            sum(due_s <= at_s < ended_s for due_s, ended_s in zip(load.due, found.ended_s, strict=True))
            for at_s in sorted((until_s * (1 - 1e-12), until_s * (1 + 1e-12)))
        )
        assert timeline.backlog[step] in (least, most)
        present_s = sum(max(0.0, min(until_s, gone_s) - max(from_s, at_s)) for at_s, _, gone_s in machines_of)
        assert timeline.workers[step] == pytest.approx(present_s / (until_s - from_s), abs=1e-6)
    billed_s = sum(
        max(0.0, gone_s - (at_s if machine.start_billed else ready_s))
        for at_s, ready_s, gone_s in machines_of
    )
    if found.end_s == load.span_s or not policy.workers.least:
        assert found.billed_s == pytest.approx(billed_s)
        assert found.cost_per_day == pytest.approx(billed_s / 3600 / load.days)
    times_s = [*found.requested_s]
    most = max(sum(at_s <= time_s < gone_s for at_s, _, gone_s in machines_of) for time_s in times_s or [0])
    assert found.workers_max == most


# Known examples


def test_one_machine_that_is_always_on():
    machine = Machine(price_per_h=PRICE)
    found = simulate(generated_load(EXAMPLE), machine, policy_of("1"))
    assert found.cost_per_day == pytest.approx(17.664)
    assert found.cost_per_month == pytest.approx(529.92)
    busy = busy_cost_per_day(found.load, machine)
    assert busy == pytest.approx(6.13333, abs=1e-5)
    assert busy * 30 == pytest.approx(184)
    assert 1 - busy / found.cost_per_day == pytest.approx(0.6528, abs=5e-5)
    assert found.utilisation == pytest.approx(30_000 / 86_400)
    assert (found.waits_s.max(), found.cold_starts, found.workers_max) == (0, 0, 1)


@for_each(("start_billed", "cost"), [(True, 7.36), (False, 30_000 / 3600 * PRICE)])
def test_machine_for_each_job_costs_its_start_and_its_run_time(start_billed, cost):
    machine = Machine(price_per_h=PRICE, start_s=60.0, start_billed=start_billed)
    found = simulate(generated_load(EXAMPLE), machine, policy_of(scale_in_window_s=0.0))
    assert found.cost_per_day == pytest.approx(cost)
    assert set(found.waits_s) == {60.0}
    assert (found.wait.p50_s, found.wait.p99_s, found.result.p95_s) == (60, 60, 360)
    assert (found.cold_starts, found.workers_max) == (100, 1)


def test_wait_counts_from_the_submission():
    found = simulate(load_of([0.0], 10.0, due_s=np.array([100.0])), Machine(start_s=5.0), policy_of())
    assert (found.waits_s.tolist(), found.result.p50_s) == ([105], 115)


@for_each("jobs", range(1, 6))
def test_concurrent_jobs_share_a_worker_by_its_batch_gain(jobs):
    for gain, factor in ((1.0, 1), (0.0, jobs), (0.5, (jobs + 1) / 2)):
        machine = Machine(concurrency=5, batch_gain=gain, start_s=0.0)
        found = simulate(load_of([0.0] * jobs, 100.0), machine, policy_of("1"))
        assert found.ended_s == pytest.approx(np.full(jobs, 100.0 * factor))
        assert found.began_s.tolist() == [0] * jobs


def test_job_that_ends_leaves_its_share_to_the_others():
    machine = Machine(concurrency=2, batch_gain=0.0)
    found = simulate(load_of([0.0, 0.0, 25.0], [10.0, 30.0, 4.0]), machine, policy_of("1"))
    # Both run at half speed to 20. The second one is alone to 25, and then shares the worker for 8 seconds.
    assert found.ended_s == pytest.approx([20, 44, 33])


def test_jobs_go_to_the_least_busy_worker():
    machine = Machine(concurrency=2, batch_gain=0.0)
    found = simulate(load_of([0.0, 0.0, 1.0, 1.0], 10.0), machine, policy_of("2"))
    assert found.ended_s == pytest.approx([19, 19, 20, 20])


def test_backlog_starts_a_worker_for_each_slot():
    machine = Machine(concurrency=4, start_s=30.0)
    found = simulate(load_of([0.0] * 10, 100.0), machine, policy_of())
    assert (found.workers_max, found.cold_starts) == (3, 3)
    assert set(found.ended_s) == {130.0}


def test_decision_comes_at_once_after_a_gap_and_else_by_the_interval():
    times_s = []

    def note(settings, observed, memory):
        times_s.append((observed.at_ms - load.began_at_ms) / 1000)
        return Decision(1, "", memory)

    load = load_of([7.0, 7.1, 21.0], 1.0, 22.0)
    simulate(load, Machine(), policy_of("1"), interval_s=5.0, decide=note)
    assert times_s == [0, 5, 7, 7.2, 12.2, 17.2, 21]


def test_pool_without_work_makes_no_decision_and_wakes_with_the_next_job():
    times_s = []

    def note(settings, observed, memory):
        times_s.append((observed.at_ms - load.began_at_ms) / 1000)
        return Decision(int(observed.backlog > 0), "", memory)

    load = load_of([1000.0], 1.0, 5000.0)
    found = simulate(load, Machine(start_s=2.0), policy_of(), decide=note)
    assert times_s == [0, 1000, 1005]
    assert found.gone_s.tolist() == [1005]


def test_surplus_drains_the_least_busy_youngest_workers_and_a_shortage_undrains():
    policy = policy_of("0..4", backlog_per_worker=2.0, scale_in_window_s=0.0)
    # At 0, four jobs for two workers. At 5, a third worker is wanted for six jobs.
    load = load_of([0.0, 0.0, 0.0, 0.0, 5.0, 5.0, 300.0, 300.0], [50, 500, 50, 500, 500, 500, 500, 500])
    machine = Machine(start_s=0.0, concurrency=2)
    found = simulate(load, machine, policy)
    assert (found.workers_max, found.cold_starts) == (3, 3)
    # At 50, four jobs are left for two workers: one drains, and returns at 300 for six jobs.
    assert found.waits_s.max() == 0
    without = simulate(load, machine, policy, drains=False)
    assert without.workers_max == 3


def test_worker_that_drains_takes_no_jobs():
    def shrink(settings, observed, memory):
        return Decision(2 if observed.at_ms - load.began_at_ms < 10_000 else 1, "", memory)

    load = load_of([0.0, 0.0, 20.0, 21.0], [100, 30, 10, 10])
    found = simulate(load, Machine(start_s=0.0), policy_of("0..2"), decide=shrink)
    # The younger worker drains until 30. The other one is busy to 100.
    assert found.gone_s.tolist() == [1000, 30]
    assert found.began_s.tolist() == [0, 0, 100, 110]


# Queueing theory


def erlang_c(workers, offered):
    """Return the share of jobs that wait in a queue M/M/c."""
    last = offered**workers / factorial(workers) * workers / (workers - offered)
    return last / (sum(offered**each / factorial(each) for each in range(workers)) + last)


def random_load(jobs, per_s, run_s, seed=1):
    """Return a Poisson process of jobs with exponential run times."""
    draw = np.random.default_rng(seed)
    arrived_s = draw.exponential(1 / per_s, jobs).cumsum()
    return Load(arrived_s, draw.exponential(run_s, jobs), arrived_s[-1] + 1)


def always_on(load, machine, workers):
    return simulate(load, machine, policy_of(str(workers)), interval_s=DAY_S, decide=always)


@for_each(
    ("workers", "slots", "share"),
    [(1, 1, 0.5), (1, 1, 0.7), (3, 1, 0.8), (1, 3, 0.8), (2, 4, 0.7), (8, 1, 0.6)],
)
def test_waits_are_those_of_erlang(workers, slots, share):
    """Workers with full gain are a queue M/M/c, with a server for each slot."""
    servers, run_s = workers * slots, 30.0
    load = random_load(20_000, servers * share / run_s, run_s)
    found = always_on(load, Machine(concurrency=slots), workers)
    waiting = erlang_c(servers, servers * share)
    assert found.waits_s.mean() == pytest.approx(waiting * run_s / servers / (1 - share), rel=0.08)
    assert (found.waits_s > 0).mean() == pytest.approx(waiting, rel=0.04)
    assert (found.ended_s - found.began_s).mean() == pytest.approx(run_s, rel=0.02)


def test_shared_worker_without_gain_has_the_results_of_one_server():
    """Without gain, work is neither lost nor won: results take as long as in the queue M/M/1."""
    load = random_load(20_000, 0.6 / 30, 30.0)
    found = always_on(load, Machine(concurrency=50, batch_gain=0.0), 1)
    assert (found.ended_s - load.arrived_s).mean() == pytest.approx(30 / 0.4, rel=0.08)
    assert found.waits_s.mean() < 0.01


@pytest.mark.parametrize("p95_s", [None, 60.0, 90.0])
def test_waits_of_generated_loads_are_those_of_pollaczek_and_khinchine(p95_s):
    """Jobs at random times with any law of run times, for one worker, are a queue M/G/1."""
    load = generated_load(LoadOptions(0.6 * DAY_S / 30, "random", 12, 30.0, p95_s))
    found = always_on(load, Machine(), 1)
    per_s = len(load.run_s) / load.span_s
    expected_s = per_s * (load.run_s**2).mean() / 2 / (1 - per_s * load.run_s.mean())
    assert found.waits_s.mean() == pytest.approx(expected_s, rel=0.06)


# Interruptions


def test_interruptions_come_at_their_rate_and_machines_are_replaced():
    load = generated_load(LoadOptions(500.0, "random", 4, 600.0))
    machine = Machine(interruptions_per_h=1.0, start_s=60.0)
    one, again, other = (
        simulate(load, machine, policy_of("5"), interval_s=30.0, seed=seed) for seed in (1, 1, 2)
    )
    assert same(one, again)
    assert not same(one, other)
    # Five machines for 96 hours.
    assert one.interruptions == pytest.approx(480, rel=0.15)
    assert one.cold_starts == one.interruptions
    assert one.workers_max == 5
    # About 70 % of the machines are busy, with 300 s of a job that is done on average.
    assert one.lost_s == pytest.approx(480 * 0.7 * 300, rel=0.2)
    assert not np.isnan(one.ended_s).any()
    assert one.billed_s == pytest.approx(5 * 4 * DAY_S, rel=0.01)


@for_each("slots", [1, 3])
def test_interrupted_jobs_return_to_the_front_of_the_queue_in_their_order(slots):
    load = load_of([0.0] * 30, np.arange(30, 0, -1) * 40.0)
    machine = Machine(interruptions_per_h=2.0, start_s=10.0, concurrency=slots)
    pool = WatchedPool(load, machine, policy_of("1"), seed=4)
    found = pool.watch()
    assert found.interruptions > 3
    assert len(pool.begun) > 30
    for worker in range(len(found.ready_s)):
        own = [job for job, number, _ in pool.begun if number == worker]
        assert own == sorted(own)


def test_starting_machine_can_be_interrupted():
    machine = Machine(interruptions_per_h=20.0, start_s=300.0)
    found = simulate(load_of([0.0], 10.0), machine, policy_of("0..1"), seed=1)
    never = found.ready_s == np.inf
    assert never.any()
    assert (found.gone_s[never] - found.requested_s[never] < 300).all()
    assert found.lost_s == 0 or found.interruptions > never.sum()


def test_utilisation_counts_no_time_between_two_attempts():
    """One machine is interrupted now and then, and takes an hour to return."""
    load = load_of(np.arange(200) * 700.0, 600.0, 2 * DAY_S)
    pool = WatchedPool(load, Machine(interruptions_per_h=0.5, start_s=HOUR_S), policy_of("1"), seed=2)
    found = pool.watch()
    assert found.interruptions > 10
    running_s = load.busy_s + found.lost_s
    assert found.utilisation == pytest.approx(running_s / found.billed_s)


# Schedules, targets, and loads without an end


def test_workers_of_schedules_exist_only_in_their_hours():
    policy = policy_of(
        "0",
        schedules=(
            ScheduledLimits("0 9 * * mon-fri", WorkerRange(1, 4)),
            ScheduledLimits("0 17 * * mon-fri", WorkerRange(0, 0)),
        ),
    )
    load = generated_load(LoadOptions(50.0, "random", 8, 120.0))
    found = simulate(load, Machine(start_s=60.0), policy, interval_s=60.0)
    hours = found.requested_s % DAY_S / HOUR_S
    assert ((hours >= 9) & (hours < 17)).all()
    assert set(found.requested_s // DAY_S % 7) == {0, 1, 2, 3, 4}
    # Draining workers end their jobs.
    assert (found.gone_s % DAY_S <= 17 * HOUR_S + 125).all()
    assert (found.began_s % DAY_S >= 9 * HOUR_S + 60).all()
    first_s = [
        found.requested_s[found.requested_s // DAY_S == day].min() % DAY_S for day in (0, 1, 2, 3, 4, 7)
    ]
    assert first_s == pytest.approx([9 * HOUR_S] * 6, abs=60)
    assert found.workers_max <= 4


def test_smallest_number_of_a_schedule_is_there_from_the_begin():
    policy = policy_of("0", schedules=(ScheduledLimits("0 0 * * *", WorkerRange(2, 2)),))
    found = simulate(load_of([0.0, 0.0], 10.0), Machine(start_s=60.0), policy)
    assert (found.waits_s.tolist(), found.cold_starts) == ([0, 0], 0)


@for_each(("target_s", "slots"), [(120.0, 1), (600.0, 1), (600.0, 4), (1800.0, 1)])
def test_jobs_begin_within_a_target_of_waiting_times(target_s, slots):
    load = load_of(np.repeat(np.arange(3) * HOUR_S, 60), 200.0, 3 * HOUR_S)
    machine = Machine(start_s=30.0, concurrency=slots)
    found = simulate(load, machine, policy_of("0..60", target_wait_s=target_s))
    known = load.arrived_s > 0  # Run times are unknown until the first job has ended.
    # The last machines are wanted when the oldest job has waited for the target.
    assert found.waits_s[known].max() <= target_s + machine.start_s + 5
    every_slot = simulate(load, machine, policy_of("0..60"))
    assert found.billed_s < (1.0 if target_s < 200 else 0.86) * every_slot.billed_s


@for_each(
    ("policy", "machine"),
    [
        (policy_of("0"), Machine()),
        (policy_of("0..3", steps=((5, 1),)), Machine()),
        (policy_of("1"), Machine(interruptions_per_h=20.0)),
        (policy_of("0..1", scale_out_step=0), Machine()),
    ],
)
def test_load_that_never_ends_is_refused(policy, machine):
    load = load_of([0.0, 100.0], 4 * HOUR_S)
    with pytest.raises(
        ConfigError, match=r"^[12] jobs have not ended 30 days after the last day: permit more workers, or"
    ):
        simulate(load, machine, policy, interval_s=600.0)


def test_load_of_more_than_its_span_ends():
    found = simulate(load_of([0.0] * 4, 600.0), Machine(), policy_of("1"))
    assert (found.end_s, found.ended_s.max(), found.gone_s.tolist()) == (2400, 2400, [2400])
    to_zero = simulate(load_of([0.0] * 4, 600.0), Machine(price_per_h=2.0), policy_of("0..1"))
    assert (to_zero.end_s, to_zero.billed_s) == (2460, 2460)
    assert to_zero.cost_per_day == pytest.approx(2460 / 3600 * 2 / (1000 / DAY_S))


# The real controller


@pytest.mark.parametrize(
    ("slots", "times_s", "values"),
    [
        (1, poisson(1 / 60, 0.0, 2 * HOUR_S), {}),
        (4, bursts(12, 1200.0, 2 * HOUR_S), {}),
        (4, poisson(1 / 20, 0.0, 2 * HOUR_S), {"backlog_per_worker": 8.0, "idle_s": 60.0}),
        (1, poisson(1 / 40, 0.0, 2 * HOUR_S), {"target_wait_s": 600.0}),
        (1, [0.0] * 70, {"scale_out_step": 4, "scale_out_cooldown_s": 30.0}),
    ],
    ids=["steady", "bursts", "two jobs a slot", "target", "slow start"],
)
def test_makespan_and_worker_hours_are_those_of_the_real_controller(slots, times_s, values):
    """The real controller decides over a real ledger, for workers in virtual time."""
    draw = exponential(300.0)
    run_s = [draw() for _ in times_s]
    settings = {"workers": WorkerRange(0, 20), "scale_in_window_s": 300.0, **values}
    cluster = Cluster(slots=slots)
    cluster.submit_at(times_s, iter(run_s).__next__)
    ControllerRun(cluster, PoolSettings(slots=slots, **settings))
    cluster.run_until_done(30 * HOUR_S)
    cluster.run_until(cluster.now_s + 700.0)
    assert cluster.replicas == 0
    load = load_of(times_s, run_s, cluster.now_s)
    found = simulate(load, Machine(concurrency=slots, start_s=30.0), PoolSettings(slots=slots, **settings))
    assert found.ended_s.max() - load.arrived_s[0] == pytest.approx(cluster.makespan_s, rel=0.01)
    assert found.billed_s / 3600 == pytest.approx(cluster.worker_hours, rel=0.015)
    assert found.waits_s.mean() == pytest.approx(np.mean(cluster.waits_s()), rel=0.1, abs=2)
    assert found.workers_max == pytest.approx(cluster.largest, abs=1)
