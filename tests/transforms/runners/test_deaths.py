import pytest

from headrace.core.errors import InstanceLostError
from headrace.pipeline.ledger import Counts
from headrace.transforms.plan import Shard, Task, TransformPlan
from headrace.transforms.records import Checkpoint, ShardRecord
from headrace.transforms.runners.deaths import LEFT_OUT_MAX, Deaths
from transforms.runners.dispatching import work_of


@pytest.fixture
def work():
    return work_of([None] * LEFT_OUT_MAX)


def test_one_death_makes_a_suspect_and_two_leave_it_out(work):
    deaths = Deaths("double")
    assert not deaths.suspect(1)
    assert not deaths.kills(1, work, "with status 9")
    assert deaths.suspect(1)
    assert not deaths.suspect(0)
    deaths.check()
    assert deaths.kills(1, work, "with status 9")
    with pytest.raises(InstanceLostError, match=r"at the first records of memory://in/1\.csv.*--resume"):
        deaths.check()


def test_a_model_that_dies_at_anything_is_given_up(work):
    deaths = Deaths("double")
    for task in range(LEFT_OUT_MAX - 1):
        assert [deaths.kills(task, work, "so") for _ in range(2)] == [False, True]
    deaths.kills(LEFT_OUT_MAX - 1, work, "so")
    with pytest.raises(InstanceLostError) as caught:
        deaths.kills(LEFT_OUT_MAX - 1, work, "so")
    assert all(f"{n}.csv" in str(caught.value) for n in range(LEFT_OUT_MAX))


@pytest.mark.parametrize(
    ("checkpoint", "said"),
    [
        (Checkpoint(0, (), entries=40, record=41), r"at record 41 of memory://in/0\.csv"),
        (Checkpoint(0, (ShardRecord(0, 0, Counts(), 0),)), r"the first records of memory://in/1\.csv \(from about byte 50"),
        (
            Checkpoint(0, (ShardRecord(0, 0, Counts(), 0),), entries=7, record=7, relative=True),
            r"at record 7 of its range from about byte 50 on of memory://in/1\.csv",
        ),
    ],
)  # fmt: skip
def test_the_place_is_told_by_what_was_kept(work, checkpoint, said):
    plan = TransformPlan(work.plan.objects, (Task(0, (Shard(0), Shard(1, 1, 2, 50))),))
    object.__setattr__(work, "plan", plan)
    work.ledger.checkpoint(checkpoint)
    deaths = Deaths("double")
    deaths.kills(0, work, "with status 9")
    deaths.kills(0, work, "with status 9")
    with pytest.raises(InstanceLostError, match=said):
        deaths.check()
