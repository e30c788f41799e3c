"""Find the objects of the first records of a source, for a run with a limit.

The plan of a run has these objects only, so every worker, resumption and retry sees the same records.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from headrace.core.block import Block, FailureKind
from headrace.core.errors import ConfigError
from headrace.runs.items import Cursor
from headrace.runs.plan import ObjectShards
from headrace.runs.records import PlannedObject, ReadBound
from headrace.runs.settings import RunSettings
from headrace.runs.source import ShardSource
from headrace.storage.resolve import Stores


def limit_objects(
    objects: Sequence[PlannedObject], stores: Stores, settings: RunSettings
) -> list[PlannedObject]:
    """Return the objects up to the last record of the limit, as `limit_pages` does."""
    return [planned for page in limit_pages([objects], stores, settings) for planned in page]


def limit_pages(
    pages: Iterable[Sequence[PlannedObject]], stores: Stores, settings: RunSettings
) -> Iterator[Sequence[PlannedObject]]:
    """Yield pages of objects up to the last record of the limit; that record's object has a bound.

    Reads the objects up to that record. Without a limit, or with fewer records, all objects are yielded
    as they are. A record that fails counts; the rest of a broken object does not.

    Raises the errors that stop the reading of a run.
    """
    left = settings.subset.limit
    if left is None:
        yield from pages
        return
    for page in pages:
        kept, left = _limit_page(page, left, stores, settings)
        yield kept
        if not left:
            return


def _limit_page(
    objects: Sequence[PlannedObject], limit: int, stores: Stores, settings: RunSettings
) -> tuple[Sequence[PlannedObject], int]:
    """Return the objects up to the last record of the limit, and the number of records that are missing."""
    source = ShardSource(stores, objects, ObjectShards(objects, Cursor()), settings)
    records = 0
    try:
        for read in source.blocks():
            found = _records(read.block)
            if records + found >= limit:
                bound = _bound_after(read.block, limit - records)
                return [*objects[: read.index], replace(objects[read.index], bound=bound)], 0
            records += found
    finally:
        source.close()
    return objects, limit - records


def _records(block: Block) -> int:
    """Return the number of records and failed records of a block."""
    return block.records - sum(failure.kind is FailureKind.OBJECT for failure in block.failures)


def _bound_after(block: Block, records: int) -> ReadBound:
    """Return the bound after some records of a block."""
    return ReadBound(block.number(records - 1) + 1, block.first.member_byte)


def refuse_limit(settings: RunSettings) -> None:
    """Raise ConfigError for a limit of a run whose objects arrive while it goes on."""
    if settings.subset.limit is not None:
        raise ConfigError(
            "limit selects the first records of a complete source, but the objects of this run arrive over "
            "time: use sample, or run without --watch and without event notices"
        )
