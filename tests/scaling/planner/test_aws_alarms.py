"""Statements about the simulated autoscaling of a cloud's asynchronous endpoints."""

import numpy as np
import pytest

from headrace.core.errors import ConfigError
from headrace.scaling.planner.load import Load
from headrace.scaling.planner.machine import Machine
from headrace.scaling.planner.simulation import simulate
from headrace.scaling.settings import ScalingSettings, WorkerRange
from scaling.planner.aws_alarms import AlarmScaling

HOUR_S = 3600.0
SETTINGS = ScalingSettings(WorkerRange(0, 10))
MACHINE = Machine(start_s=300)


def run(alarms: AlarmScaling, *arrived_s: float, run_s: float = 300.0):
    arrived = np.array(arrived_s)
    return simulate(
        Load(arrived, np.full(len(arrived), run_s), 24 * HOUR_S), MACHINE, SETTINGS, decide=alarms.decide
    )


def test_target_tracking_alone_starts_nothing_for_five_jobs():
    with pytest.raises(ConfigError, match="5 jobs have not ended"):
        run(AlarmScaling(), *[60.0] * 5)


def test_sixth_job_starts_instances_after_three_points():
    outcome = run(AlarmScaling(), *[30.0] * 5, HOUR_S)
    assert HOUR_S + 120 <= outcome.requested_s.min() <= HOUR_S + 190
    assert len(outcome.requested_s) == 2


@pytest.mark.parametrize("second_of_minute", [1.0, 30.0, 59.0])
def test_wake_policy_starts_an_instance_for_one_job_after_two_points(second_of_minute):
    outcome = run(AlarmScaling(wakes=True), HOUR_S + second_of_minute)
    (requested_s,) = outcome.requested_s - outcome.load.arrived_s
    assert 60 <= requested_s <= 130


def test_low_alarm_needs_fifteen_points_unless_it_outlasts_the_time_without_instances():
    jobs = (HOUR_S, 2 * HOUR_S)
    anew, stays = (run(AlarmScaling(wakes=True, low_stays=each), *jobs) for each in (False, True))
    lived_s = anew.gone_s - anew.ready_s
    assert ((lived_s >= 14 * 60) & (lived_s <= 16 * 60)).all()
    assert (stays.gone_s - stays.ready_s)[1] <= 6 * 60 < lived_s.min()


def test_instances_are_removed_ten_minutes_after_the_last_change_at_the_earliest():
    outcome = run(AlarmScaling(wakes=True, low_stays=True), HOUR_S, 2 * HOUR_S, run_s=10)
    assert (outcome.gone_s - outcome.requested_s).min() >= 600


def test_removed_instance_with_a_job_drains():
    outcome = run(AlarmScaling(), *[0.5] * 6, run_s=1200)
    assert len(outcome.requested_s) == 2
    assert outcome.ended_s - outcome.began_s == pytest.approx(np.full(6, 1200.0))
