"""The plan files of a destination: written page by page while the source is listed.

A source is listed in a thread of its own while its first pages are scored, so a run over a million objects
begins at once.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice

from typing_extensions import override

from headrace.core.errors import ResumeRefusedError
from headrace.reports.page import PAGE_NAME
from headrace.reports.report import REPORT_NAME
from headrace.runs.lazy_sequence import LazySequence
from headrace.runs.ledger import Ledger
from headrace.runs.objects import OutputNames, check_separate, is_single_listing, output_names, plan_objects
from headrace.runs.parts import PART_NAME
from headrace.runs.plan import Plan
from headrace.runs.plan_pages import PAGE_OBJECTS, PlanPages, head_of
from headrace.runs.records import LEDGER_FOLDER, PlannedObject
from headrace.runs.settings import RunSettings
from headrace.storage.contract import ObjectInfo

_log = logging.getLogger("headrace.runs")


class RunPlan:
    """The pages of the plan of one destination. One thread adds pages; any thread may read them.

    Args:
        source: The source of the run.
        ledger: The ledger of the destination.
        settings: The settings of the run.
        region_of: A function from an object's URI to its region.
    """

    def __init__(
        self,
        source: str | Sequence[str],
        ledger: Ledger,
        settings: RunSettings,
        region_of: Callable[[str], str | None],
    ) -> None:
        self._source = source
        self._ledger = ledger
        self._settings = settings
        self._region_of = region_of
        self.pages = PlanPages(ledger.plan_page, settings)
        """All pages; none before the run is begun or loaded."""
        self.is_complete = False
        """True if the pages have all objects that the source had."""
        self._names: OutputNames | None = None
        self._known: dict[str, tuple[str, ...]] | None = None
        """The ETags of the planned objects by URI; for objects that arrive over time."""
        self._changed: dict[str, str] = {}
        """The objects that changed after they were scored, by URI, with their last ETag."""

    def plan(self, *, by_tasks: bool) -> Plan:
        """Return the plan of the pages that exist now."""
        return self.pages.plan(by_tasks=by_tasks)

    def prepare(self, infos: Iterable[ObjectInfo]) -> Iterator[list[PlannedObject]]:
        """Yield new objects with the names of their outputs, page by page; at least one page.

        Raises ConfigError for objects that the run would overwrite or that share an output.
        """
        if not is_single_listing(self._source, self._settings.data_type):
            # Their names depend on all objects, and several objects may share a name.
            infos = list(infos)
            self._check(self._with_names(infos))
        rest = iter(infos)
        page = list(islice(rest, PAGE_OBJECTS))
        while True:
            planned = self._with_names(page)
            self._check(planned)
            yield planned
            page = list(islice(rest, PAGE_OBJECTS))
            if not page:
                return

    def _with_names(self, infos: Sequence[ObjectInfo]) -> list[PlannedObject]:
        if self._settings.per_object and self._names is None:
            first = next(iter(self.plan(by_tasks=False).objects), None)
            names = output_names(self._source, infos, self._settings)
            self._names = names if first is None else names.like(first)
        return plan_objects(infos, self._names, region_of=self._region_of)

    def _check(self, planned: Sequence[PlannedObject]) -> None:
        check_separate(self._source, self._ledger.destination, planned, self._settings.data_type)

    def add(self, planned: Sequence[PlannedObject]) -> None:
        """Write prepared objects as a new page."""
        head = head_of(planned, self._settings)
        self._ledger.write_plan(len(self.pages), planned, head)
        self.pages.add(head)
        if self._known is not None:
            _add_etags(self._known, planned)

    def complete(self) -> None:
        """Record that the pages have all objects of the source."""
        self._ledger.complete_plan()
        self.is_complete = True

    def load(self) -> None:
        """Read the heads of the pages of an earlier process."""
        self.pages = PlanPages(self._ledger.plan_page, self._settings)
        for head in self._ledger.plan_heads():
            self.pages.add(head)
        self.is_complete = self._ledger.has_complete_plan()

    def unplanned_after(self, now: Iterable[ObjectInfo]) -> Iterator[ObjectInfo]:
        """Yield the objects of a listing after those that are planned, which must be unchanged.

        The files of a table are those of the version that the run began with. They do not change.

        Raises ResumeRefusedError, with the differences, for a changed source.
        """
        listed, last = iter(now), None
        planned = iter(self.plan(by_tasks=False).objects)
        for before in planned:
            if before.info.table is not None:
                return
            last = before
            info = next(listed, None)
            if info is None or not _is_same(before.info, info):
                rest = (one.info for one in chain([before], planned))
                self._refuse(rest, chain([] if info is None else [info], listed))
        if last is not None and last.bound is not None:
            return
        if self.is_complete:
            self._refuse((), listed)
        yield from listed

    def _refuse(self, planned: Iterable[ObjectInfo], now: Iterable[ObjectInfo]) -> None:
        """Raise ResumeRefusedError if two listings differ."""
        before, after = ({info.uri: info for info in infos} for infos in (planned, now))
        changed = [f"{uri} is new" for uri in after if uri not in before]
        changed += [f"{uri} is missing" for uri in before if uri not in after]
        changed += [
            f"{uri} has changed"
            for uri, info in before.items()
            if uri in after and not _is_same(info, after[uri])
        ]
        if changed:
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            raise ResumeRefusedError(
                f"{self._ledger.destination}: the source has changed since the run started: "
                f"{'; '.join(changed[:3])}{more}. Restore it, or start again with --overwrite"
            )

    def unplanned(self, objects: Iterable[ObjectInfo]) -> list[ObjectInfo]:
        """Return the objects that are not planned yet, each once.

        A new version of an object is new to a stream. A transform leaves its output unchanged,
        because an output has one owner.
        """
        if self._known is None:
            self._known = {}
            _add_etags(self._known, self.plan(by_tasks=False).objects)
        known = self._known
        fresh = {(i.uri, i.etag): i for i in objects if i.etag not in known.get(i.uri, ())}
        if not self._settings.per_object:
            return list(fresh.values())
        for uri, etag in fresh:
            if uri in known and self._changed.get(uri) != etag:
                self._changed[uri] = etag
                _log.warning("%s has changed since it was scored: its output is unchanged", uri)
        return list({info.uri: info for info in fresh.values() if info.uri not in known}.values())

    def without_own_output(self, infos: Iterable[ObjectInfo]) -> Iterator[ObjectInfo]:
        """Yield the objects that are not the output of such a run at the destination."""
        return (info for info in infos if not self._is_own(info.uri))

    def _is_own(self, uri: str) -> bool:
        destination = self._ledger.destination
        if not uri.startswith(destination):
            return False
        name = uri.removeprefix(destination)
        return name.startswith((f"{LEDGER_FOLDER}/", "_report.")) or bool(PART_NAME.fullmatch(name))

    def parts(self) -> Iterator[ObjectInfo]:
        """Yield the objects that have the name of a part, if the run writes parts."""
        if self._settings.per_object:
            return
        for info in self._ledger.store.list(f"{self._ledger.destination}part-"):
            if PART_NAME.fullmatch(info.uri.removeprefix(self._ledger.destination)):
                yield info

    def delete_output(self) -> None:
        """Delete the output of an earlier run, and nothing else."""
        store = self._ledger.store
        self._ledger.abandon()
        for planned in self._ledger.planned_objects():
            for name in (planned.output, planned.partial, planned.failed) if planned.output else ():
                store.delete(self._ledger.destination + name)
        for info in list(self.parts()):
            store.delete(info.uri)
        for name in self._ledger.claimed_files():
            store.delete(self._ledger.destination + name)
        for name in (REPORT_NAME, PAGE_NAME):
            store.delete(self._ledger.destination + name)
        self._ledger.delete()
        self.pages = PlanPages(self._ledger.plan_page, self._settings)
        self.is_complete, self._names, self._known = False, None, None


def _is_same(before: ObjectInfo, now: ObjectInfo) -> bool:
    return (before.uri, before.etag, before.size_bytes) == (now.uri, now.etag, now.size_bytes)


def _add_etags(known: dict[str, tuple[str, ...]], planned: Iterable[PlannedObject]) -> None:
    for one in planned:
        known[one.info.uri] = (*known.get(one.info.uri, ()), one.info.etag)


class Planning:
    """The addition of pages to a plan, in the calling thread (`run`) or in one of its own (`start`).

    Any thread may call the other methods.

    Args:
        pages: The pages to add; iterating lists the source.
        add: Called with each page.
        complete: Called after the last page.
    """

    def __init__(
        self,
        pages: Iterator[Sequence[PlannedObject]],
        add: Callable[[Sequence[PlannedObject]], None],
        complete: Callable[[], None],
    ) -> None:
        self._pages = pages
        self._add = add
        self._complete = complete
        self._changed = threading.Condition()
        self._ended = self._stopped = False
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Add all pages now. Raises the errors of the listing."""
        self._run()
        self.check()

    def start(self) -> None:
        """Add the pages in a thread."""
        self._thread = threading.Thread(target=self._run, name="headrace-planning", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for page in self._pages:
                if self._stopped:
                    return
                self._add(page)
                with self._changed:
                    self._changed.notify_all()
            self._complete()
        except Exception as error:  # noqa: BLE001 - raised again in the thread of the run
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    @property
    def is_listing(self) -> bool:
        """True if pages may still be added."""
        return self._thread is not None and not self._ended

    def check(self) -> None:
        """Raise the error of the listing, if it failed."""
        if self._error is not None:
            raise self._error

    def wait(self, has_more: Callable[[], bool]) -> bool:
        """Wait until `has_more` returns True after a page, and return True; False after the last page.

        Raises the error of the listing.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self.is_listing or has_more())
        self.check()
        return has_more()

    def stop(self) -> None:
        """Add no more pages, and wait for the page in progress."""
        self._stopped = True
        if self._thread is not None:
            self._thread.join()


class GrowingObjects(LazySequence[PlannedObject]):
    """The objects of a plan that grows. An index beyond the last page waits for the next page."""

    def __init__(self, plan: RunPlan, planning: Planning) -> None:
        self._plan = plan
        self._planning = planning
        self._objects = plan.plan(by_tasks=False).objects

    @override
    def __len__(self) -> int:
        """Return the number of objects that are planned now."""
        return self._plan.pages.objects

    @override
    def item(self, index: int) -> PlannedObject:
        if index >= len(self._objects):
            self._planning.wait(lambda: len(self) > index)
            self._objects = self._plan.plan(by_tasks=False).objects
        return self._objects[index]
