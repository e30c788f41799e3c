"""A plan in pages has the objects and tasks of a plan in memory, and keeps few pages."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runs import plan_pages
from headrace.runs.plan_pages import PlanPages, ReplacedObjects, TaskSelection, head_of, make_plan, numbers_of
from headrace.runs.records import PlannedObject
from headrace.storage.contract import ObjectInfo
from runs.support import allow_small_tasks, make_settings

SIZES = st.lists(st.none() | st.integers(0, 300), min_size=1, max_size=30)


def pages_of(sizes, page_objects):
    objects = [
        PlannedObject(ObjectInfo(f"memory://in/{number}.csv", size)) for number, size in enumerate(sizes)
    ]
    return [objects[at : at + page_objects] for at in range(0, len(objects), page_objects)]


@given(SIZES, st.integers(1, 9), st.randoms(use_true_random=False))
def test_paged_plan_equals_the_plan_in_memory(sizes, page_objects, order):
    with pytest.MonkeyPatch.context() as patch:
        allow_small_tasks(patch)
        patch.setattr(plan_pages, "LOADED_OBJECTS_MAX", page_objects)
        settings = make_settings(tasks={"task_bytes": 50, "task_objects_max": 3})
        in_pages = pages_of(sizes, page_objects)
        pages = PlanPages(in_pages.__getitem__, settings)
        for page in in_pages:
            pages.add(head_of(page, settings))
        paged, whole = pages.plan(), make_plan(in_pages, settings)
        assert (tuple(paged.objects), tuple(paged.tasks)) == (whole.objects, whole.tasks)
        assert [task.number for task in paged.tasks] == list(range(len(whole.tasks)))
        for place in order.sample(range(len(sizes)), len(sizes)):
            assert paged.objects[place] == whole.objects[place]
        assert paged.objects[-1] == whole.objects[-1]
        assert paged.objects[1:4] == list(whole.objects[1:4])
        assert list(paged.range_tasks()) == list(whole.range_tasks())
        assert [paged.bytes_before(at) for at in range(len(sizes))] == [
            sum(size or 0 for size in sizes[:at]) for at in range(len(sizes))
        ]
        assert paged.nbytes == whole.nbytes == sum(size or 0 for size in sizes)


def test_few_pages_are_in_memory(monkeypatch):
    monkeypatch.setattr(plan_pages, "LOADED_OBJECTS_MAX", 6)
    in_pages, reads, settings = pages_of([1] * 40, 2), [], make_settings()

    def read(number):
        reads.append(number)
        return in_pages[number]

    pages = PlanPages(read, settings)
    for page in in_pages:
        pages.add(head_of(page, settings))
    plan = pages.plan()
    assert (reads, len(plan.objects), len(plan.tasks)) == ([], 40, 20)
    assert len(list(plan.objects)) == 40
    assert reads == list(range(20))
    assert [plan.objects[place] for place in (38, 36, 39, 34)]
    assert [plan.tasks[number].number for number in (19, 18, 17)] == [19, 18, 17]
    assert reads == list(range(20))
    assert plan.objects[0]
    assert plan.objects[34]
    assert reads == [*range(20), 0]
    with pytest.raises(IndexError):
        plan.objects[40]


def test_selected_tasks_are_read_when_they_are_used():
    settings = make_settings()
    plan = make_plan(pages_of([1] * 6, 1), settings)
    selection = TaskSelection(plan, [5, 2])
    assert [task.number for task in selection] == [5, 2]
    assert (numbers_of(selection), numbers_of(plan.tasks[:2]), len(selection)) == ([5, 2], [0, 1], 2)


def test_replaced_objects_have_their_new_version():
    (page,) = pages_of([1, 2, 3], 3)
    new = ObjectInfo("memory://in/1.csv", 20)
    assert [one.info.size_bytes for one in ReplacedObjects(page, {1: new})] == [1, 20, 3]
    assert random.choice(ReplacedObjects(page, {})) in page
