"""The decision how many workers a load needs: each policy, each setting, and the reasons."""

from cases import for_each
from headrace.scaling.policy import Observation, ScalingMemory, decide, limits_at
from headrace.scaling.settings import ScalingSettings, ScheduledLimits, WorkerRange
from scaling.policy_support import FollowingPool, first_decision, observed, settings_of, wall_ms

BERLIN = "Europe/Berlin"
OFFICE_HOURS = (
    ScheduledLimits("0 8 * * 1-5", WorkerRange(2, 6), BERLIN),
    ScheduledLimits("0 20 * * *", WorkerRange(0, 1), BERLIN),
)


def wanted(settings, due=0, **figures):
    return first_decision(settings, due, **figures).wanted


def reason(settings, due=0, **figures):
    return first_decision(settings, due, **figures).reason


# Backlog


@for_each(
    ("due", "running", "workers"),
    [(0, 0, 0), (1, 0, 1), (0, 1, 1), (4, 0, 1), (5, 0, 2), (3, 2, 2), (30, 2, 8)],
)
def test_every_due_and_running_job_gets_a_slot(due, running, workers):
    assert wanted(settings_of(), due, running=running, slots=4) == workers


@for_each(
    ("target", "due", "workers"),
    [(2.5, 5, 2), (2.5, 6, 3), (0.5, 3, 6), (100, 1, 1), (0.7, 21, 30), (0.1, 3, 30), (1.1, 33, 30)],
)
def test_target_of_backlog_replaces_the_slots(target, due, workers):
    assert wanted(settings_of(backlog_per_worker=target), due, slots=8) == workers


@for_each(("due", "workers"), [(89, 9), (90, 10), (100, 10), (110, 10), (111, 12)])
def test_backlog_within_the_tolerance_changes_nothing(due, workers):
    settings = settings_of(backlog_per_worker=10, tolerance=0.1)
    assert wanted(settings, due, workers=8, starting=2) == workers


def test_tolerance_keeps_no_pool_without_workers():
    assert wanted(settings_of(backlog_per_worker=10, tolerance=0.9), 1) == 1


def test_reason_names_the_backlog_and_its_target():
    settings = settings_of(backlog_per_worker=10, tolerance=0.1)
    assert reason(settings, 2_000, running=5) == (
        "2,000 due and 5 running jobs, 10 for each worker; limited to the maximum of 100"
    )
    assert reason(settings, 100, running=5, workers=10) == (
        "100 due and 5 running jobs, 10 for each worker within the tolerance of 0.1"
    )


# Steps

STEPS = ((1, 1), (10, 3), (100, 8))


@for_each(("due", "workers"), [(0, 0), (1, 1), (9, 1), (10, 3), (99, 3), (100, 8), (10_000, 8)])
def test_last_reached_step_counts(due, workers):
    assert wanted(settings_of(steps=STEPS), due) == workers


def test_steps_count_running_jobs():
    assert wanted(settings_of(steps=STEPS), 5, running=5) == 3


def test_steps_wake_a_pool_only_from_their_first_backlog():
    settings = settings_of(steps=((5, 2),))
    assert [wanted(settings, due) for due in (4, 5)] == [0, 2]
    assert reason(settings, 4) == "4 due and 0 running jobs, less than the first step"
    assert reason(settings, 6) == "6 due and 0 running jobs: step from 5"


def test_steps_alone_replace_the_backlog_of_a_slot():
    assert wanted(settings_of(steps=((1, 2),)), 50) == 2


# Waiting time


@for_each(
    ("figures", "workers"),
    [
        ({"run_s": 10.0}, 10),
        ({"run_s": 10.0, "slots": 4}, 3),
        ({"run_s": 10.0, "oldest_s": 50.0}, 20),
        ({"run_s": 10.0, "oldest_s": 90.0}, 100),
        ({"run_s": 10.0, "oldest_s": 5_000.0}, 100),
        ({"run_s": None}, 100),
        ({"run_s": None, "slots": 4}, 25),
        ({"run_s": 0.001}, 1),
        ({"run_s": 0.0}, 1),
        ({"run_s": 0.0, "oldest_s": 90.0}, 100),
    ],
)
def test_due_jobs_begin_within_the_target_wait(figures, workers):
    assert wanted(settings_of(target_wait_s=90), 60, running=40, **figures) == workers


def test_target_wait_needs_a_worker_for_the_first_job_and_none_without_jobs():
    settings = settings_of(target_wait_s=3600)
    assert wanted(settings, 1, run_s=0.01, slots=8) == 1
    assert wanted(settings_of(target_wait_s=1e9), 1, run_s=0.01, slots=8) == 1
    assert wanted(settings, 0, run_s=10.0, arrivals_per_s=5.0) == 0
    assert reason(settings, 0, run_s=10.0) == "no jobs"


def test_rate_of_arrivals_asks_for_no_workers():
    """The backlog that the arrivals leave asks for them: the rate alone asks for more than there are jobs."""
    settings = settings_of(target_wait_s=600)
    assert wanted(settings, 5, run_s=10.0, arrivals_per_s=2.0, slots=2) == 1


def test_reason_of_the_target_wait_names_the_run_time():
    settings = settings_of(target_wait_s=90)
    assert reason(settings, 100, run_s=10.0) == (
        "100 due and 0 running jobs (10 s each), to begin within 90 s"
    )
    assert "(run times unknown yet)" in reason(settings, 100)


def test_burst_keeps_a_constant_number_of_workers_while_it_drains():
    pool = FollowingPool(settings_of(target_wait_s=90))
    # Ten workers with jobs of 10 s end one job each second.
    drained = [
        pool.round(1.0, due=90 - ended, running=10, oldest_s=float(ended), run_s=10.0) for ended in range(89)
    ]
    assert set(drained) == {10}


# Several policies


@for_each(
    ("values", "workers"),
    [
        ({}, 30),
        ({"steps": ((1, 2),)}, 2),
        ({"steps": ((1, 2),), "backlog_per_worker": 10}, 3),
        ({"steps": ((1, 7),), "backlog_per_worker": 10}, 7),
        ({"target_wait_s": 10}, 15),
        ({"target_wait_s": 10, "backlog_per_worker": 1}, 30),
        ({"target_wait_s": 10, "steps": ((1, 20),), "backlog_per_worker": 10}, 20),
    ],
)
def test_largest_request_counts(values, workers):
    assert wanted(settings_of(**values), 30, run_s=10.0) == workers


def test_reason_is_that_of_the_largest_request():
    settings = settings_of(steps=((1, 2),), backlog_per_worker=10)
    assert reason(settings, 30) == "30 due and 0 running jobs, 10 for each worker"
    assert reason(settings, 11) == "11 due and 0 running jobs: step from 1"


# Limits and schedules


@for_each(
    ("workers", "due", "limited", "why"),
    [
        ("2..4", 0, 2, "raised to the minimum of 2"),
        ("2..4", 2, 2, None),
        ("2..4", 4, 4, None),
        ("2..4", 5, 4, "limited to the maximum of 4"),
        ("3", 0, 3, "raised to the minimum of 3"),
        ("3", 9, 3, "limited to the maximum of 3"),
        ("0", 9, 0, "limited to the maximum of 0"),
    ],
)
def test_request_is_limited(workers, due, limited, why):
    decision = first_decision(settings_of(workers), due)
    assert decision.wanted == limited
    load, *reasons = decision.reason.split("; ")
    assert load == f"{due} due and 0 running jobs, 1 for each worker"
    assert reasons == ([] if why is None else [why])


@for_each(
    ("at", "limits"),
    [
        ("2026-11-30T07:59:59", "0..1"),  # Monday
        ("2026-11-30T08:00:00", "2..6"),
        ("2026-11-30T19:59:59", "2..6"),
        ("2026-11-30T20:00:00", "0..1"),
        ("2026-12-05T12:00:00", "0..1"),  # Saturday
        ("2026-07-01T08:00:00", "2..6"),  # in summer time
    ],
)
def test_schedule_that_began_last_has_the_limits(at, limits):
    settings = settings_of("0..8", schedules=OFFICE_HOURS)
    found, cron = limits_at(settings, wall_ms(at, BERLIN))
    assert str(found) == limits
    assert cron == {"2..6": "0 8 * * 1-5", "0..1": "0 20 * * *"}[limits]


def test_later_one_of_two_schedules_with_one_time_counts():
    all_days = ScheduledLimits("0 8 * * *", WorkerRange(1, 2), BERLIN)
    mondays = ScheduledLimits("0 8 * * 1", WorkerRange(5, 9), BERLIN)
    at_ms = wall_ms("2026-11-30T09:00", BERLIN)
    for schedules in ((all_days, mondays), (mondays, all_days)):
        found, _ = limits_at(settings_of(schedules=schedules), at_ms)
        assert found == schedules[-1].workers


def test_equal_times_of_two_time_zones_are_compared_as_moments():
    tokyo = ScheduledLimits("0 8 * * *", WorkerRange(1, 1), "Asia/Tokyo")
    berlin = ScheduledLimits("0 8 * * *", WorkerRange(2, 2), BERLIN)
    settings = settings_of(schedules=(tokyo, berlin))
    found = [
        limits_at(settings, wall_ms(at))[0].least
        for at in ("2026-11-29T22:59", "2026-11-29T23:00", "2026-11-30T06:59", "2026-11-30T07:00")
    ]
    assert found == [2, 1, 1, 2]


def test_limits_of_the_pool_apply_before_the_first_time_of_a_schedule():
    never = ScheduledLimits("0 0 */30 2 MON#5", WorkerRange(5, 5))
    assert limits_at(settings_of("1..2", schedules=(never,)), 0) == (WorkerRange(1, 2), "")
    assert limits_at(settings_of("1..2"), 0) == (WorkerRange(1, 2), "")


def at_time(text, **figures):
    return Observation(wall_ms(text, BERLIN), **{"due": 0, "running": 0, "slots": 1, **figures})


def test_reason_names_the_schedule_of_the_limit():
    settings = settings_of("0..8", schedules=OFFICE_HOURS)
    morning = decide(settings, at_time("2026-11-30T08:00"), ScalingMemory())
    assert (morning.wanted, morning.reason.split("; ")[1]) == (
        2,
        "raised to the minimum of 2 of the schedule 0 8 * * 1-5",
    )
    night = decide(settings, at_time("2026-11-30T20:00", due=9), ScalingMemory())
    assert (night.wanted, night.reason.split("; ")[1]) == (
        1,
        "limited to the maximum of 1 of the schedule 0 20 * * *",
    )


SLOW = {
    "scale_out_window_s": 600.0,
    "scale_in_window_s": 600.0,
    "scale_out_cooldown_s": 600.0,
    "scale_in_cooldown_s": 600.0,
    "scale_out_step": 1,
    "scale_in_step": 1,
}


def test_pool_returns_to_new_limits_at_once():
    settings = settings_of("0..8", schedules=OFFICE_HOURS, **SLOW)
    first = at_time("2026-11-30T07:59", due=1)
    memory = decide(settings, first, ScalingMemory.resume(first)).memory
    morning = decide(settings, at_time("2026-11-30T08:00", due=1, workers=1), memory)
    assert (morning.wanted, morning.reason.split("; ")[1:]) == (
        2,
        ["raised to the minimum of 2 of the schedule 0 8 * * 1-5"],
    )
    before = at_time("2026-11-30T19:59", due=9, workers=6)
    memory = decide(settings, before, ScalingMemory.resume(before)).memory
    evening = decide(settings, at_time("2026-11-30T20:00", due=9, workers=6), memory)
    assert (evening.wanted, evening.reason.split("; ")[1:]) == (
        1,
        ["limited to the maximum of 1 of the schedule 0 20 * * *"],
    )


def test_last_worker_leaves_at_once_when_none_is_permitted():
    figures = {"due": 5, "workers": 1}
    assert wanted(settings_of("0", idle_s=600), **figures) == 0
    assert wanted(settings_of("0", idle_s=600), **figures, running=1, busy=1) == 1


# Windows


def test_workers_leave_after_the_window_without_a_larger_request():
    pool = FollowingPool(settings_of(scale_in_window_s=300))
    assert pool.round(0, due=5) == 5
    assert pool.round(100, due=3) == 5
    assert pool.round(199.999, due=1) == 5
    assert (
        pool.reason == "1 due and 0 running jobs, 1 for each worker; 5 workers were needed in the last 300 s"
    )
    assert pool.round(0.001, due=1) == 3
    assert pool.round(99.999, due=1) == 3
    assert pool.round(0.001, due=1) == 1


def test_larger_request_starts_the_window_again():
    pool = FollowingPool(settings_of(scale_in_window_s=300))
    for _ in range(5):
        pool.round(200, due=5)
        assert pool.round(200, due=0) == 5


def test_window_never_adds_workers():
    pool = FollowingPool(settings_of(scale_in_window_s=300))
    pool.round(0, due=9)
    assert pool.round(10, due=2, workers=4) == 4


def test_workers_are_added_once_they_were_needed_for_the_window():
    pool = FollowingPool(settings_of(scale_out_window_s=60))
    assert pool.round(0, due=0) == 0
    assert pool.round(10, due=5) == 0
    assert (
        pool.reason == "5 due and 0 running jobs, 1 for each worker; 0 workers were enough in the last 60 s"
    )
    assert pool.round(20, due=2) == 0
    assert pool.round(29.999, due=5) == 0
    assert pool.round(0.001, due=5) == 2
    assert pool.round(29.999, due=5) == 2
    assert pool.round(0.001, due=5) == 5


def test_resumed_controller_adds_at_once_and_removes_after_its_window():
    settings = settings_of(scale_out_window_s=60, scale_in_window_s=300)
    pool = FollowingPool(settings, workers=4)
    assert pool.round(0, due=6) == 6
    pool = FollowingPool(settings, workers=4)
    assert [pool.round(after_s) for after_s in (0, 100, 199.999, 0.001)] == [4, 4, 4, 0]


# Cooldowns


def test_additions_are_a_cooldown_apart():
    pool = FollowingPool(settings_of(scale_out_cooldown_s=60))
    assert pool.round(0, due=2) == 2
    assert pool.round(59.999, due=9) == 2
    assert pool.reason.endswith("; the last addition was less than 60 s ago")
    assert pool.round(0.001, due=9) == 9


def test_removals_are_a_cooldown_apart():
    pool = FollowingPool(settings_of(scale_in_cooldown_s=60), workers=9)
    pool.round(0, due=9)
    assert pool.round(10, due=5) == 5
    assert pool.round(59.999, due=1) == 5
    assert pool.reason.endswith("; the last removal was less than 60 s ago")
    assert pool.round(0.001, due=1) == 1


def test_cooldowns_of_the_two_directions_are_independent():
    pool = FollowingPool(settings_of(scale_out_cooldown_s=600, scale_in_cooldown_s=600))
    assert pool.round(1, due=5) == 5
    assert pool.round(1, due=2) == 2
    assert pool.round(1, due=9) == 2
    assert pool.round(1, due=1) == 2


def test_cooldown_hides_the_step():
    pool = FollowingPool(settings_of(scale_out_cooldown_s=60, scale_out_step=2))
    assert [pool.round(after_s, due=9) for after_s in (0, 30, 30)] == [2, 2, 4]
    pool.round(1, due=9)
    assert pool.reason.split("; ")[1:] == ["the last addition was less than 60 s ago"]


# Steps of a change


@for_each(
    ("values", "current", "after"),
    [
        ({"scale_out_step": 3}, 0, 3),
        ({"scale_out_step": 3}, 10, 13),
        ({"scale_out_percent": 50}, 10, 15),
        ({"scale_out_percent": 50}, 11, 17),
        ({"scale_out_percent": 50}, 0, 1),
        ({"scale_out_percent": 10}, 30, 33),
        ({"scale_out_step": 3, "scale_out_percent": 50}, 2, 5),
        ({"scale_out_step": 3, "scale_out_percent": 50}, 10, 15),
        ({"scale_out_step": 100}, 10, 60),
        ({"scale_in_step": 3, "scale_in_percent": 50}, 10, 60),
    ],
)
def test_addition_is_limited_to_the_larger_step(values, current, after):
    assert wanted(settings_of(**values), 60, workers=current) == after


@for_each(
    ("values", "current", "after"),
    [
        ({"scale_in_step": 3}, 10, 7),
        ({"scale_in_step": 3}, 2, 0),
        ({"scale_in_percent": 50}, 11, 5),
        ({"scale_in_percent": 50}, 1, 0),
        ({"scale_in_percent": 1}, 10, 9),
        ({"scale_in_step": 3, "scale_in_percent": 50}, 4, 1),
        ({"scale_in_step": 3, "scale_in_percent": 50}, 10, 5),
        ({"scale_out_step": 3, "scale_out_percent": 50}, 10, 0),
    ],
)
def test_removal_is_limited_to_the_larger_step(values, current, after):
    assert wanted(settings_of(**values), 0, workers=current) == after


def test_reason_names_the_step():
    assert reason(settings_of(scale_out_step=3), 60, workers=10).endswith("; limited to 3 at once")
    assert reason(settings_of(scale_in_step=3), 0, workers=10).endswith("; limited to 3 at once")


# The last worker, and busy workers


def test_last_worker_stays_until_the_pool_was_idle():
    pool = FollowingPool(settings_of(idle_s=60))
    assert pool.round(0, due=5) == 5
    assert pool.round(1) == 1
    assert pool.reason.endswith("; the last worker stays for 60 s without a job")
    assert pool.round(58.999) == 1
    assert pool.round(0.001) == 0
    assert pool.round(1) == 0


def test_job_ends_the_idleness():
    pool = FollowingPool(settings_of(idle_s=60))
    pool.round(0, due=1)
    assert pool.round(59, running=1, busy=1) == 1
    assert pool.round(59) == 1
    assert pool.round(1) == 0


def test_idleness_of_a_resumed_pool_begins_with_its_controller():
    pool = FollowingPool(settings_of(idle_s=60), workers=1)
    assert [pool.round(after_s) for after_s in (0, 59.999, 0.001)] == [1, 1, 0]


def test_idle_pool_without_workers_gets_none():
    assert FollowingPool(settings_of(idle_s=60)).round(0) == 0


def test_busy_workers_stay_if_they_cannot_drain():
    settings = settings_of(backlog_per_worker=10)
    figures = {"running": 5, "workers": 8, "busy": 5}
    assert wanted(settings, 0, **figures, drains=False) == 5
    assert reason(settings, 0, **figures, drains=False).endswith("; 5 workers are busy")
    assert wanted(settings, 0, **figures, drains=True) == 1
    assert "busy" not in reason(settings, 0, **figures, drains=True)


def test_busy_workers_that_cannot_drain_stay_beyond_the_maximum():
    figures = {"running": 5, "workers": 8, "busy": 5}
    assert wanted(settings_of("0..2"), 0, **figures, drains=False) == 5
    assert wanted(settings_of("0..2"), 0, **figures, drains=True) == 2


def test_draining_workers_do_not_count():
    assert wanted(settings_of(), 3, running=2, draining=2) == 5


# Observations


def test_observation_derives_its_figures():
    now = observed(
        due=3, running=5, slots=4, workers=2, starting=1, busy=2, oldest_s=1.23456, run_s=0.5,
        arrivals_per_s=0.123456, draining=1,
    )  # fmt: skip
    assert (now.backlog, now.current, now.busy_share, now.service_per_s) == (8, 3, 0.625, 8.0)
    assert now.document() == {
        "due": 3,
        "running": 5,
        "oldest_seconds": 1.235,
        "run_seconds": 0.5,
        "arrivals_per_second": 0.1235,
        "service_per_second": 8.0,
        "slots": 4,
        "workers": 2,
        "starting": 1,
        "draining": 1,
        "busy": 2,
        "busy_share": 0.625,
    }


@for_each(
    ("figures", "share", "service"),
    [({}, 0.0, None), ({"run_s": 0.0}, 0.0, None), ({"running": 9, "workers": 2}, 1.0, None)],
)
def test_figures_of_an_observation_may_be_unknown(figures, share, service):
    now = observed(**figures)
    assert (now.busy_share, now.service_per_s) == (share, service)
    assert now.document()["service_per_second"] is None


def test_default_settings_wake_at_once_and_scale_in_after_five_minutes():
    pool = FollowingPool(ScalingSettings())
    assert [pool.round(0, due=17, slots=8), pool.round(299.999), pool.round(0.001)] == [3, 3, 0]
