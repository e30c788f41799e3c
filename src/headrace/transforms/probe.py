"""The source's first records, looked at before any work: what they decide, and what a model would be given.

A look at the first object of each format: every worker judges records by what these say, whichever objects it reads.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from headrace.core.block import Block, Failure
from headrace.core.errors import CorruptError, DataError, ModelInputError, StorageError
from headrace.core.tensor import Array, ModelMetadata
from headrace.formats.read import by_row_groups, format_name, read_object
from headrace.pipeline.mapping import Mapper
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores
from headrace.transforms.parquet_source import parquet_blocks
from headrace.transforms.plan import TransformPlan
from headrace.transforms.settings import TransformSettings

_FIRST_BYTES: Final = 256 << 10
_MORE_BYTES: Final = 4 << 20
_OBJECTS_MAX: Final = 20
"""Objects of one format that are looked at until one has a record that decodes."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A first record: as it stands, and as the model would be given it; or why it would fail."""

    place: str
    record: bytes
    inputs: Mapping[str, Array]
    failure: Failure | None = None


def learn(
    plan: TransformPlan, stores: Stores, settings: TransformSettings, metadata: ModelMetadata
) -> dict[str, Any]:
    """What the first records decide, as `Mapper.learned` has it. Raises what a mapper does when nothing could fit."""
    mapper = Mapper(metadata, settings.mapping, settings.read)
    for infos in _by_format(plan, settings).values():
        _learn_format(mapper, infos[:_OBJECTS_MAX], stores, settings)
    return mapper.learned


def _learn_format(
    mapper: Mapper, infos: Sequence[ObjectInfo], stores: Stores, settings: TransformSettings
) -> None:
    """Look until a record decodes. An object in which none could fit costs itself alone where another one fits."""
    refused: ModelInputError | None = None
    for info in infos:
        try:
            for block in _first_blocks(info, stores, settings):
                if not len(block):
                    continue
                decoded, refused = _decoded(mapper, block), None
                if len(decoded):
                    return
        except ModelInputError as error:
            refused = refused or error
    if refused is not None:
        raise refused


def first_records(
    plan: TransformPlan, stores: Stores, settings: TransformSettings, metadata: ModelMetadata, *, count: int
) -> list[Seen]:
    """The source's first records, and what the model would see of each."""
    mapper = Mapper(metadata, settings.mapping, settings.read)
    seen: list[Seen] = []
    for planned in plan.objects[:_OBJECTS_MAX]:
        for block in _first_blocks(planned.info, stores, settings):
            seen += _seen(mapper, block)
            if len(seen) >= count:
                return seen[:count]
    return seen


def _by_format(plan: TransformPlan, settings: TransformSettings) -> dict[str, list[ObjectInfo]]:
    found: dict[str, list[ObjectInfo]] = {}
    for planned in plan.objects:
        name = format_name(planned.info.uri, settings.read) or ""
        found.setdefault(name, []).append(planned.info)
    return found


def _first_blocks(info: ObjectInfo, stores: Stores, settings: TransformSettings) -> Iterator[Block]:
    """An object's blocks; none, where it breaks before its first: that is told when it is transformed."""
    try:
        if by_row_groups(info.uri, settings.read):
            yield from parquet_blocks(info, stores, settings.read)
            return
        yield from read_object(info.uri, _chunks(info, stores), settings.read)
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


def _decoded(mapper: Mapper, block: Block) -> Array:
    """The indices of the records that decode."""
    rows = mapper.decode(block).rows
    return np.arange(len(block)) if rows is None else rows


def _seen(mapper: Mapper, block: Block) -> Iterator[Seen]:
    decoded = mapper.decode(block)
    rows = np.arange(len(block)) if decoded.rows is None else decoded.rows
    failures = {f.position.record: f for f in (*decoded.failures, *block.failures)}
    at = {int(row): place for place, row in enumerate(rows)}
    for index in range(len(block)):
        place = str(block.position(index))
        failure = failures.get(block.first.record + index)
        inputs = {n: data[at[index]] for n, data in decoded.tensors.items()} if index in at else {}
        yield Seen(place, block.record(index), inputs, failure)
    for failure in block.failures:
        yield Seen(str(failure.position), failure.raw, {}, failure)
