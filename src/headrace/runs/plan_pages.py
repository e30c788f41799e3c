"""The plan of a run in pages: objects and tasks that are read from the ledger when they are used.

A page is a plan file. Its head has what a reader needs to find an object or a task without reading the
other pages, so a plan of a million objects takes the memory of a few pages.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from typing_extensions import override

from headrace.runs.lazy_sequence import LazySequence
from headrace.runs.plan import Plan, Task, cut_tasks
from headrace.runs.records import PlanHead, PlannedObject
from headrace.runs.settings import RunSettings
from headrace.storage.contract import ObjectInfo

T_co = TypeVar("T_co", covariant=True)

PAGE_OBJECTS: Final = 10_000
"""The number of objects of a page; the last page, and pages of arriving objects, have fewer."""
LOADED_OBJECTS_MAX: Final = 3 * PAGE_OBJECTS
"""The number of objects of the pages in memory, unless a single page has more."""


def head_of(objects: Sequence[PlannedObject], settings: RunSettings) -> PlanHead:
    """Return the head of a page of these objects."""
    tasks = list(cut_tasks(objects, settings))
    nbytes = sum(planned.info.size_bytes or 0 for planned in objects)
    return PlanHead(len(objects), len(tasks), nbytes, any(task.is_range for task in tasks))


class PagedSequence(LazySequence[T_co]):
    """The items of all pages in order. Any thread may use it.

    Args:
        firsts: The index of the first item of each page, and the number of all items.
        load: A function that returns the items of a page, and keeps the last used pages.
    """

    def __init__(self, firsts: Iterable[int], load: Callable[[int], Sequence[T_co]]) -> None:
        self._firsts = list(firsts)
        self._load = load

    @override
    def __len__(self) -> int:
        return self._firsts[-1]

    @override
    def item(self, index: int) -> T_co:
        if index >= len(self):
            raise IndexError(index)
        page = bisect_right(self._firsts, index) - 1
        return self._load(page)[index - self._firsts[page]]

    @override
    def __iter__(self) -> Iterator[T_co]:
        for page in range(len(self._firsts) - 1):
            yield from self._load(page)


class PlanPages:
    """The pages of a plan, of which the last used ones are in memory. Any thread may use them.

    Args:
        read: A function that reads the objects of a page.
        settings: The settings of the run.
    """

    def __init__(self, read: Callable[[int], Sequence[PlannedObject]], settings: RunSettings) -> None:
        self._read = read
        self._settings = settings
        self._heads: list[PlanHead] = []
        self._first_objects, self._first_tasks = [0], [0]
        self._lock = threading.Lock()
        self._objects: OrderedDict[int, Sequence[PlannedObject]] = OrderedDict()
        self._tasks: dict[int, Sequence[Task]] = {}

    def __len__(self) -> int:
        """Return the number of pages."""
        return len(self._heads)

    @property
    def objects(self) -> int:
        """The number of objects."""
        return self._first_objects[-1]

    def add(self, head: PlanHead) -> None:
        """Add the next page."""
        with self._lock:
            self._heads.append(head)
            self._first_objects.append(self._first_objects[-1] + head.objects)
            self._first_tasks.append(self._first_tasks[-1] + head.tasks)

    def plan(self, *, by_tasks: bool = True) -> Plan:
        """Return the plan of the pages so far; without `by_tasks`, without tasks.

        The tasks of a later page continue the numbers of the earlier ones.
        """
        with self._lock:
            return Plan(
                PagedSequence(self._first_objects, self._objects_of),
                PagedSequence(self._first_tasks, self._tasks_of) if by_tasks else (),
                tuple(self._heads),
            )

    def _objects_of(self, page: int) -> Sequence[PlannedObject]:
        with self._lock:
            return self._loaded(page)

    def _tasks_of(self, page: int) -> Sequence[Task]:
        with self._lock:
            objects = self._loaded(page)
            if page not in self._tasks:
                first, offset = self._first_tasks[page], self._first_objects[page]
                self._tasks[page] = list(cut_tasks(objects, self._settings, first=first, offset=offset))
            return self._tasks[page]

    def _loaded(self, page: int) -> Sequence[PlannedObject]:
        if page in self._objects:
            self._objects.move_to_end(page)
            return self._objects[page]
        self._objects[page] = objects = self._read(page)
        loaded = sum(self._heads[number].objects for number in self._objects)
        while loaded > LOADED_OBJECTS_MAX and len(self._objects) > 1:
            oldest, _ = self._objects.popitem(last=False)
            self._tasks.pop(oldest, None)
            loaded -= self._heads[oldest].objects
        return objects


def open_plan(
    heads: Iterable[PlanHead],
    read: Callable[[int], Sequence[PlannedObject]],
    settings: RunSettings,
    *,
    by_tasks: bool = True,
) -> Plan:
    """Return the plan of some pages, which `read` returns by number."""
    pages = PlanPages(read, settings)
    for head in heads:
        pages.add(head)
    return pages.plan(by_tasks=by_tasks)


class TaskSelection(LazySequence[Task]):
    """Some tasks of a plan, by number; a task is read when it is used."""

    def __init__(self, plan: Plan, numbers: Sequence[int]) -> None:
        self._plan = plan
        self.numbers = numbers

    @override
    def __len__(self) -> int:
        return len(self.numbers)

    @override
    def item(self, index: int) -> Task:
        return self._plan.tasks[self.numbers[index]]


def numbers_of(tasks: Sequence[Task]) -> Sequence[int]:
    """Return the numbers of tasks; those of a selection without reading the tasks."""
    return tasks.numbers if isinstance(tasks, TaskSelection) else [task.number for task in tasks]


class ReplacedObjects(LazySequence[PlannedObject]):
    """The objects of a plan, some of them in another version, by index."""

    def __init__(self, objects: Sequence[PlannedObject], replaced: Mapping[int, ObjectInfo]) -> None:
        self._objects = objects
        self._replaced = replaced

    @override
    def __len__(self) -> int:
        return len(self._objects)

    @override
    def item(self, index: int) -> PlannedObject:
        found = self._objects[index]
        return replace(found, info=self._replaced[index]) if index in self._replaced else found


def make_plan(
    pages: Sequence[Sequence[PlannedObject]], settings: RunSettings, *, by_tasks: bool = True
) -> Plan:
    """Return the plan of pages in memory."""
    heads = [head_of(page, settings) for page in pages]
    plan = open_plan(heads, pages.__getitem__, settings, by_tasks=by_tasks)
    return Plan(tuple(plan.objects), tuple(plan.tasks))
