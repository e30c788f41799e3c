import pytest

from cases import for_each
from headrace.core.errors import InstanceLostError
from headrace.runners.scheduler import EXCLUDED_TASKS_MAX, WorkerDeaths
from headrace.runs.plan import Plan, Shard, Task
from headrace.runs.records import Counts, ShardRecord, TaskCheckpoint
from runners.scheduling import work_of


@pytest.fixture
def work():
    return work_of([None] * EXCLUDED_TASKS_MAX)


def test_first_death_makes_a_suspect_and_second_excludes(work):
    deaths = WorkerDeaths("double")
    assert not deaths.is_suspect(1)
    assert not deaths.record_death(1, work, "with status 9")
    assert deaths.is_suspect(1)
    assert not deaths.is_suspect(0)
    deaths.check()
    assert deaths.record_death(1, work, "with status 9")
    with pytest.raises(InstanceLostError, match=r"at the first records of memory://in/1\.csv.*--resume"):
        deaths.check()


def test_model_that_dies_at_many_tasks_is_an_error(work):
    deaths = WorkerDeaths("double")
    for task in range(EXCLUDED_TASKS_MAX - 1):
        assert [deaths.record_death(task, work, "so") for _ in range(2)] == [False, True]
    deaths.record_death(EXCLUDED_TASKS_MAX - 1, work, "so")
    with pytest.raises(InstanceLostError) as caught:
        deaths.record_death(EXCLUDED_TASKS_MAX - 1, work, "so")
    assert all(f"{n}.csv" in str(caught.value) for n in range(EXCLUDED_TASKS_MAX))


@for_each(
    ("checkpoint", "message"),
    [
        (TaskCheckpoint(0, (), is_inside=True, record=41), r"at record 41 of memory://in/0\.csv"),
        (
            TaskCheckpoint(0, (ShardRecord(0, 0, Counts(), 0),)),
            r"the first records of memory://in/1\.csv \(from about byte 50",
        ),
        (
            TaskCheckpoint(0, (ShardRecord(0, 0, Counts(), 0),), is_inside=True, record=7, relative=True),
            r"at record 7 of its range from about byte 50 on of memory://in/1\.csv",
        ),
    ],
)
def test_error_names_the_position_of_the_checkpoint(work, checkpoint, message):
    plan = Plan(work.plan.objects, (Task(0, (Shard(0), Shard(1, 1, 2, 50))),))
    object.__setattr__(work, "plan", plan)
    work.ledger.checkpoint(checkpoint)
    deaths = WorkerDeaths("double")
    deaths.record_death(0, work, "with status 9")
    deaths.record_death(0, work, "with status 9")
    with pytest.raises(InstanceLostError, match=message):
        deaths.check()
