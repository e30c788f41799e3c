"""The settings of pools: values from files, and the errors that name their keys."""

import pytest

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.core.settings_reader import read_settings
from headrace.scaling.settings import PoolSettings, ScalingSettings, ScheduledLimits, WorkerRange

WHERE = "pools.gpu"
MORNING = {"cron": "0 8 * * *", "workers": "2..4"}


def read(**table):
    return read_settings(PoolSettings, table, WHERE)


def refused(**table) -> str:
    with pytest.raises(ConfigError) as caught:
        read(**table)
    return str(caught.value)


@for_each(
    ("text", "least", "most"),
    [("0..8", 0, 8), ("4", 4, 4), ("0", 0, 0), ("3..3", 3, 3), ("0..1000", 0, 1000), ("007..8", 7, 8)],
)
def test_range_is_read_from_its_text(text, least, most):
    found = WorkerRange.parse(text)
    assert (found.least, found.most) == (least, most)
    assert WorkerRange.parse(str(found)) == found


@for_each("text", ["", "..", "1..", "..8", "1...2", "-1..2", "a..b", "1.5", " 1", "1..2..3", "0..10000", "²"])
def test_text_that_is_no_range_is_refused(text):
    with pytest.raises(ConfigError, match=r"is no range of workers: write 0\.\.8, or 4 for always four"):
        WorkerRange.parse(text)


def test_long_text_is_cut_in_the_error():
    with pytest.raises(ConfigError) as caught:
        WorkerRange.parse("8" * 10_000)
    assert len(str(caught.value)) < 120


@for_each(("least", "most"), [(8, 1), (0, 1001), (1001, 1001), (-1, 3)])
def test_impossible_range_is_refused(least, most):
    with pytest.raises(
        ConfigError, match=rf"^{least}\.\.{most}: must be a smallest number and a largest one"
    ):
        WorkerRange(least, most)


def test_settings_of_a_pool_are_read_from_a_table():
    pool = read(
        workers="1..16",
        queues=["gpu", "night"],
        slots=4,
        interval_s=2,
        backlog_per_worker=2.5,
        target_wait_s=60,
        idle_s=0,
        scale_in_step=2,
        scale_in_percent=50,
    )
    assert (pool.workers, pool.queues, pool.slots) == (WorkerRange(1, 16), ("gpu", "night"), 4)
    assert (pool.interval_s, pool.backlog_per_worker, pool.target_wait_s) == (2.0, 2.5, 60.0)
    assert (pool.idle_s, pool.scale_in_step, pool.scale_in_percent) == (0.0, 2, 50.0)


def test_empty_table_has_the_defaults():
    pool = read()
    assert (pool.workers, pool.queues, pool.pool) == (WorkerRange(0, 8), ("default",), "default")
    assert (pool.steps, pool.schedules, pool.scale_in_window_s) == ((), (), 300.0)
    assert pool == PoolSettings()


def test_steps_are_sorted_by_backlog():
    assert read(steps={"100": 4, "1": 1, "20": 2}).steps == ((1, 1), (20, 2), (100, 4))


@for_each(
    ("steps", "message"),
    [
        ({"0": 1}, "steps: '0' = 1 must be a backlog of 1 or more"),
        ({"-1": 1}, "steps: '-1' = 1 must be a backlog"),
        ({"many": 1}, "steps: 'many' = 1 must be a backlog"),
        ({"": 1}, "steps: '' = 1 must be a backlog"),
        ({"1": 0}, "steps: '1' = 0 must be a backlog of 1 or more and its number of workers"),
        ({"1": 1001}, "steps: '1' = 1001 must be a backlog"),
        ({"9" * 5000: 1}, "steps: '9999"),
        ({"1": "2"}, "steps must be a table of backlogs and numbers of workers"),
        ({"1": True}, "steps must be a table of backlogs and numbers of workers"),
        ([1], "steps must be a table of backlogs and numbers of workers"),
    ],
)
def test_invalid_steps_are_refused(steps, message):
    assert refused(steps=steps).startswith(f"{WHERE}.{message}")


def test_schedules_keep_their_order():
    evening = {"cron": "0 20 * * 1-5", "workers": "0", "time_zone": "Europe/Berlin"}
    assert read(schedules=[MORNING, evening]).schedules == (
        ScheduledLimits("0 8 * * *", WorkerRange(2, 4)),
        ScheduledLimits("0 20 * * 1-5", WorkerRange(0, 0), "Europe/Berlin"),
    )


@for_each(
    ("changes", "message"),
    [
        ({"cron": "0 8 * *"}, "schedule 2: cron: must be five fields"),
        ({"cron": "61 8 * * *"}, "schedule 2: cron: the field minute of"),
        ({"cron": 8}, "schedule 2.cron must be text"),
        ({"workers": "4..2"}, "schedule 2.workers: 4..2: must be a smallest number"),
        ({"workers": 4}, "schedule 2.workers must be a range of workers such as 0..8, not 4"),
        ({"time_zone": "Europe/Berln"}, "schedule 2: time_zone: 'Europe/Berln' is not a name"),
        ({"workers_min": 1}, "schedule 2: unknown key 'workers_min'; did you mean 'workers'?"),
    ],
)
def test_error_in_a_schedule_names_its_number_and_key(changes, message):
    assert refused(schedules=[MORNING, MORNING | changes]).startswith(f"{WHERE}.schedules: {message}")


def test_schedule_without_workers_is_refused():
    expected = "schedule 1: 'workers' is missing: it must be a range of workers such as 0..8"
    assert refused(schedules=[{"cron": "0 8 * * *"}]) == f"{WHERE}.schedules: {expected}"


def test_schedules_in_another_form_are_refused_with_their_form():
    expected = f"{WHERE}.schedules must be a list of tables with cron and workers, not "
    assert refused(schedules=MORNING).startswith(expected)


@for_each(
    ("key", "value"),
    [
        ("workers", 4),
        ("backlog_per_worker", 0),
        ("target_wait_s", 0),
        ("tolerance", 1.5),
        ("tolerance", -0.1),
        ("tolerance", float("nan")),
        ("scale_out_window_s", -1),
        ("scale_in_window_s", 86_401),
        ("idle_s", -1),
        ("scale_out_cooldown_s", float("inf")),
        ("scale_in_cooldown_s", "60"),
        ("scale_out_step", -1),
        ("scale_in_step", 1.5),
        ("scale_out_percent", 0),
        ("scale_in_percent", -5),
        ("slots", 0),
        ("interval_s", 0),
        ("interval_s", 61),
        ("queues", "default"),
    ],
)
def test_value_out_of_range_is_refused_with_its_key(key, value):
    assert refused(**{key: value}).startswith(f"{WHERE}.{key} must be ")


@for_each(
    ("key", "message"),
    [
        ("worker", "unknown key 'worker'; did you mean 'workers'?"),
        ("queue", "unknown key 'queue'; did you mean 'queues'?"),
        ("pool", "unknown key 'pool'; the keys are workers, "),
    ],
)
def test_unknown_key_is_refused(key, message):
    assert refused(**{key: "x"}).startswith(f"{WHERE}: {message}")


@for_each(
    ("values", "message"),
    [
        ({"pool": ""}, "'' is no name of a pool"),
        ({"pool": "a/b"}, "'a/b' is no name of a pool"),
        ({"pool": "x" * 129}, "is no name of a pool"),
        ({"queues": ()}, "queues must have names"),
        ({"queues": ("a", "")}, "queues must have names"),
    ],
)
def test_pool_without_names_is_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        PoolSettings(**values)


def test_values_in_python_are_checked_too():
    with pytest.raises(ConfigError, match="scale_in_step must be a whole number of 0 or more, not -1"):
        ScalingSettings(scale_in_step=-1)
    with pytest.raises(ConfigError, match="cron: must be five fields"):
        ScheduledLimits("daily", WorkerRange(0, 1))
