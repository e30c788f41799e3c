"""The objects of a run and their outputs, as its ledger records them."""

import logging
from collections.abc import Callable, Iterable, Sequence

from headrace.core.errors import ResumeRefusedError
from headrace.reports.page import PAGE_NAME
from headrace.reports.report import REPORT_NAME
from headrace.runs.ledger import Ledger
from headrace.runs.parts import PART_NAME
from headrace.runs.plan import PlannedObject, check_separate, output_names, plan_objects
from headrace.runs.settings import RunSettings
from headrace.storage.contract import ObjectInfo

_log = logging.getLogger("headrace.runs")


class RunPlan:
    """The plan files of one destination. Used by one thread.

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
        self.files: list[list[PlannedObject]] = []
        """The objects of all plan files; none before the run is begun or loaded."""
        self._changed: dict[str, str] = {}
        """The objects that changed after they were scored, by URI, with their last ETag."""

    @property
    def objects(self) -> list[PlannedObject]:
        """All objects, in order."""
        return [planned for some in self.files for planned in some]

    def prepare(self, infos: Sequence[ObjectInfo]) -> list[PlannedObject]:
        """Return new objects with the names of their outputs.

        Raises ConfigError for objects that the run would overwrite or that share an output.
        """
        names, before = None, list[PlannedObject]()
        if self._settings.per_object:
            first = next((some for some in self.files if some), None)
            names = output_names(self._source, [o.info for o in first] if first else infos, self._settings)
            before = self.objects
        planned = plan_objects(infos, names, region_of=self._region_of)
        check_separate(self._source, self._ledger.destination, [*before, *planned], self._settings.data_type)
        return planned

    def add(self, planned: list[PlannedObject]) -> None:
        """Write prepared objects as a new plan file."""
        self._ledger.write_plan(len(self.files), planned)
        self.files.append(planned)

    def load(self) -> None:
        """Read the plan files of an earlier process."""
        self.files = self._ledger.plans()

    def check_unchanged(self, now: Sequence[ObjectInfo]) -> None:
        """Raise ResumeRefusedError, with the differences, unless the source is unchanged."""
        before = {planned.info.uri: planned.info for planned in self.objects}
        after = {info.uri: info for info in now}
        changed = [f"{uri} is new" for uri in after if uri not in before]
        changed += [f"{uri} is missing" for uri in before if uri not in after]
        changed += [
            f"{uri} has changed"
            for uri, info in before.items()
            if uri in after and (after[uri].etag, after[uri].size_bytes) != (info.etag, info.size_bytes)
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
        known = {(planned.info.uri, planned.info.etag) for planned in self.objects}
        fresh = {(i.uri, i.etag): i for i in objects if (i.uri, i.etag) not in known}
        if not self._settings.per_object:
            return list(fresh.values())
        uris = {uri for uri, _ in known}
        for uri, etag in fresh:
            if uri in uris and self._changed.get(uri) != etag:
                self._changed[uri] = etag
                _log.warning("%s has changed since it was scored: its output is unchanged", uri)
        return list({info.uri: info for info in fresh.values() if info.uri not in uris}.values())

    def without_own_output(self, infos: list[ObjectInfo]) -> list[ObjectInfo]:
        """Return the objects without the output that is about to be deleted."""
        own = {info.uri for info in self._own_objects()}
        return [info for info in infos if info.uri not in own]

    def _own_objects(self) -> list[ObjectInfo]:
        store = self._ledger.store
        return [
            *self.parts(),
            *store.list(self._ledger.uri("")),
            *store.list(self._ledger.destination + "_report."),
        ]

    def parts(self) -> Iterable[ObjectInfo]:
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
        for planned in (one for some in self._ledger.plans() for one in some if one.output):
            store.delete(self._ledger.destination + planned.output)
            store.delete(self._ledger.destination + planned.failed)
        for info in list(self.parts()):
            store.delete(info.uri)
        for name in (REPORT_NAME, PAGE_NAME):
            store.delete(self._ledger.destination + name)
        self._ledger.delete()
