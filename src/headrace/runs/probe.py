"""Read the source's first records before any work, for the properties that all workers must share.

The first readable object of each format is probed. All workers judge records by its properties.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from headrace.core.block import Block, Failure
from headrace.core.errors import CorruptError, DataError, ModelInputError, StorageError
from headrace.core.tensor import Array, ModelMetadata
from headrace.formats.read import format_name
from headrace.runs.mapping import Mapper
from headrace.runs.records import PlannedObject
from headrace.runs.settings import RunSettings
from headrace.runs.source import object_blocks
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores

_FIRST_BYTES: Final = 256 << 10
_MORE_BYTES: Final = 4 << 20
_OBJECTS_MAX: Final = 20
"""The maximal number of objects of one format that are read until a record decodes."""


@dataclass(frozen=True, slots=True)
class ProbedRecord:
    """A first record: its bytes and the model inputs made from it, or its failure."""

    position: str
    record: bytes
    inputs: Mapping[str, Array]
    failure: Failure | None = None


def learn(
    objects: Sequence[PlannedObject],
    stores: Stores,
    settings: RunSettings,
    metadata: ModelMetadata,
    *,
    known: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the properties of the first records, as `Mapper.learned` has them.

    `known` are those of earlier objects. Raises the mapper's errors if no record fits the model.
    """
    mapper = Mapper(metadata, settings.mapping, settings.read, known)
    for infos in _by_format(objects, settings).values():
        _learn_format(mapper, infos[:_OBJECTS_MAX], stores, settings)
    return mapper.learned


def _learn_format(mapper: Mapper, infos: Sequence[ObjectInfo], stores: Stores, settings: RunSettings) -> None:
    """Read objects of one format until a record decodes.

    Records of one object that do not fit are an error only if those of no other object fit.
    """
    refused: ModelInputError | None = None
    for info in infos:
        try:
            for block in _first_blocks(info, stores, settings):
                if not len(block):
                    continue
                rows, refused = mapper.decode(block).rows, None
                if rows is None or len(rows):
                    return
        except ModelInputError as error:
            refused = refused or error
    if refused is not None:
        raise refused


def first_records(
    objects: Sequence[PlannedObject],
    stores: Stores,
    settings: RunSettings,
    metadata: ModelMetadata,
    *,
    count: int,
) -> list[ProbedRecord]:
    """Return the first records of the source, with the model inputs made from them."""
    mapper = Mapper(metadata, settings.mapping, settings.read)
    seen: list[ProbedRecord] = []
    for planned in objects[:_OBJECTS_MAX]:
        for block in _first_blocks(planned.info, stores, settings):
            seen += _probe_block(mapper, block)
            if len(seen) >= count:
                return seen[:count]
    return seen


def _by_format(objects: Sequence[PlannedObject], settings: RunSettings) -> dict[str, list[ObjectInfo]]:
    found: dict[str, list[ObjectInfo]] = {}
    for planned in objects:
        name = format_name(planned.info.uri, settings.read) or ""
        found.setdefault(name, []).append(planned.info)
    return found


def _first_blocks(info: ObjectInfo, stores: Stores, settings: RunSettings) -> Iterator[Block]:
    """Yield an object's blocks; none if it breaks before the first.

    The run reports such an object.
    """
    try:
        yield from object_blocks(info, stores, settings.read, _chunks(info, stores))
    except (CorruptError, StorageError, DataError):
        return


def _chunks(info: ObjectInfo, stores: Stores) -> Iterator[bytes]:
    store = stores.for_uri(info.uri)
    if info.size_bytes is None:
        yield from store.stream(info.uri, etag=info.etag)
        return
    at, length = 0, _FIRST_BYTES
    while at < info.size_bytes:
        chunk = store.get_range(info.uri, at, min(length, info.size_bytes - at), etag=info.etag)
        if not chunk:
            return
        yield chunk
        at, length = at + len(chunk), _MORE_BYTES


def _probe_block(mapper: Mapper, block: Block) -> Iterator[ProbedRecord]:
    decoded = mapper.decode(block)
    rows = np.arange(len(block)) if decoded.rows is None else decoded.rows
    failures = {f.position.record: f for f in (*decoded.failures, *block.failures)}
    at = {int(row): position for position, row in enumerate(rows)}
    for index in range(len(block)):
        position = str(block.position(index))
        failure = failures.get(block.first.record + index)
        inputs = {n: data[at[index]] for n, data in decoded.tensors.items()} if index in at else {}
        yield ProbedRecord(position, block.record(index), inputs, failure)
    for failure in block.failures:
        yield ProbedRecord(str(failure.position), failure.raw, {}, failure)
