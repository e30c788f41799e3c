"""Sample the first records of a source: for its schema, and to try a model before a run.

Several objects of each format are read: the first, the middle and the last, and more if these are short.
Objects that cannot be read are left out; the run reports them.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from headrace.core.block import Block, Failure
from headrace.core.errors import (
    ConfigError,
    CorruptError,
    DataError,
    ModelInputError,
    ResumeRefusedError,
    StorageError,
)
from headrace.core.tensor import Array, InferRequest, ModelMetadata
from headrace.formats.contract import DecodedBlock
from headrace.formats.read import format_name, is_random_access, unreadable_reason
from headrace.formats.read_options import TABLE_FORMATS, V2
from headrace.reports.markup import pluralize
from headrace.runs.infer import FRAMED_KINDS, JSON_KINDS
from headrace.runs.ledger import Ledger
from headrace.runs.mapping import SAMPLE_RECORDS, Mapper
from headrace.runs.schema import Schema, parse_schema
from headrace.runs.settings import SAMPLED, MappingOptions, RunSettings
from headrace.runs.table_source import object_blocks
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores

_OBJECTS_MIN: Final = 3
"""The number of objects of one format that are sampled even if the first one has enough records."""
_OBJECTS_MAX: Final = 20
"""The limit of sampled objects of one format."""
_THREADS: Final = 4
_FIRST_BYTES: Final = 256 << 10
_MORE_BYTES: Final = 4 << 20
_OBJECT_BYTES_MAX: Final = 1 << 20
"""The size of records of one object after which no more of them are sampled."""
_WITH_COLUMNS: Final = frozenset({"csv", V2, *TABLE_FORMATS, *JSON_KINDS, *FRAMED_KINDS})
_UNREADABLE: Final = (CorruptError, StorageError, DataError)


@dataclass(frozen=True, slots=True)
class TriedRecord:
    """A sampled record: its bytes and the model inputs made from it, or its failure."""

    position: str
    record: bytes
    inputs: Mapping[str, Array]
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """The sampled records of a source, decoded for a model.

    Attributes:
        schema: The schema by which the records were decoded.
        objects: The number of sampled objects.
        records: The number of sampled records.
        decoded: The number of them that became inputs of the model.
        first: The first records.
        first_failure: The first record that did not decode, if any.
    """

    schema: Schema
    objects: int
    records: int
    decoded: int
    first: tuple[TriedRecord, ...]
    first_failure: TriedRecord | None = None

    def text(self) -> str:
        """Return the share of decoded records in one line, with the first failure in another."""
        if not self.records:
            return "no records in the sampled objects"
        of, objects = pluralize(self.records, "sampled record"), pluralize(self.objects, "object")
        if self.first_failure is None:
            return f"all {of} of {objects} decode"
        failed = self.first_failure
        why = failed.failure.why if failed.failure else ""
        # Round down: 99.96 % of the records are not all of them.
        share = int(1000 * self.decoded / self.records) / 10
        return (
            f"{share:g} % of {of} of {objects} decode; the first that does not is\n{failed.position}: {why}"
        )


def schema_of(
    infos: Sequence[ObjectInfo],
    stores: Stores,
    settings: RunSettings,
    metadata: ModelMetadata | None,
    *,
    known: Schema | None = None,
) -> Schema:
    """Return the schema of a source: that of `known` or of a file, and of a sample of all other formats.

    Without a model (`metadata` None), nothing is checked against its inputs.

    Raises:
        StorageError: The schema file cannot be read.
        ConfigError: The schema file is invalid, a chosen column does not exist, or with the setting
            `schema` "strict", a sampled record does not decode.
        ModelInputError: The sampled records of a format can never fit the model.
    """
    schema = known if known is not None and known.formats else _given_schema(stores, settings)
    groups = _by_format(infos, settings)
    if known is not None and known.formats:
        # A format that the names of objects do not show is inferred from its first block.
        groups = {name: some for name, some in groups.items() if name and schema.find(name) is None}
    mapper = Mapper(metadata or ModelMetadata(""), settings.mapping, settings.read, schema)
    for kind, some in groups.items():
        blocks = read_sample(kind, some, stores, settings)
        by_kind: dict[str, list[Block]] = {}
        for block in filter(len, blocks):
            by_kind.setdefault(mapper.layout_of(block)[0], []).append(block)
        for alike in by_kind.values():
            mapper.learn(alike, finds_header=True)
            if metadata is not None:
                _check_fit(mapper, alike)
    if settings.schema == "strict" and groups:
        _require_all(try_records(infos, stores, settings, metadata, mapper.schema))
    return mapper.schema


def _given_schema(stores: Stores, settings: RunSettings) -> Schema:
    """Return the schema of the file that the settings name, or an empty one."""
    return Schema() if settings.schema in SAMPLED else _read_schema(settings.schema, stores)


def _read_schema(file: str, stores: Stores) -> Schema:
    return parse_schema(stores.for_uri(file).get(file), file)


def accept_schema(file: str, stores: Stores, ledger: Ledger) -> Schema:
    """Return the schema of a file, and make it that of the run, for all records that are not yet predicted.

    Raises ResumeRefusedError if the finished output would not fit it.
    """
    before, given = ledger.schema(), _read_schema(file, stores)
    if given.column_names != before.column_names:
        raise ResumeRefusedError(
            f"{file}: the columns of CSV have other names than when the run began, but its output has the "
            "names of then: begin again with --overwrite"
        )
    if given != before:
        ledger.write_schema(given)
    return given


def _require_all(trial: Trial) -> None:
    if trial.first_failure is not None:
        raise ConfigError(
            f"the schema is strict, but {trial.text()}. Mend the source, choose other options, or remove "
            "--schema strict: then only such records fail"
        )


def _check_fit(mapper: Mapper, blocks: Sequence[Block]) -> None:
    """Raise ModelInputError if no block fits the model."""
    refused: ModelInputError | None = None
    names = mapper.input_names
    for block in blocks:
        try:
            # The header of a block may still be one of its records.
            mapper.decode(replace(block, column_names=block.column_names or names))
        except ModelInputError as error:
            refused = refused or error
        else:
            return
    if refused is not None:
        raise refused


def try_records(
    infos: Sequence[ObjectInfo],
    stores: Stores,
    settings: RunSettings,
    metadata: ModelMetadata | None,
    schema: Schema,
    *,
    count: int = 0,
) -> Trial:
    """Return what a sample of the source shows, with its first `count` records.

    Without a model (`metadata` None), a record decodes if its values have the types of the schema.
    """
    settings = schema.apply_to(settings)
    mapper = Mapper(metadata or ModelMetadata(""), settings.mapping, settings.read, schema)
    tried: list[TriedRecord] = []
    records = decoded = 0
    objects = set[str]()
    first_failure: TriedRecord | None = None
    for kind, some in _by_format(infos, settings).items():
        for block in read_sample(kind, some, stores, settings):
            objects.add(block.first.object)
            used = mapper if metadata is not None or not len(block) else _without_model(mapper, block)
            for record in _try_block(used, block):
                records += 1
                decoded += record.failure is None
                if record.failure is not None and first_failure is None:
                    first_failure = record
                if len(tried) < count:
                    tried.append(record)
    return Trial(mapper.schema, len(objects), records, decoded, tuple(tried), first_failure)


def _without_model(mapper: Mapper, block: Block) -> Mapper | None:
    """Return the mapper of a model that takes the types of the schema, or None without any column.

    A V2 request has types of its own.
    """
    records = mapper.learn([block])
    if records.format == V2:
        return mapper
    inputs = records.as_inputs()
    if not inputs:
        return None
    # Names may be there twice, and a filter concerns a model. The schema of JSON is of the filtered part.
    is_csv = records.format == "csv"
    options = mapper.options if not is_csv else MappingOptions(columns=tuple(inputs))
    metadata = ModelMetadata("", inputs=tuple(inputs.values()))
    return Mapper(metadata, options, mapper.read, mapper.schema)


def _by_format(infos: Sequence[ObjectInfo], settings: RunSettings) -> dict[str, list[ObjectInfo]]:
    found: dict[str, list[ObjectInfo]] = {}
    for info in infos:
        found.setdefault(format_name(info.uri, settings.read) or "", []).append(info)
    return found


def read_sample(kind: str, infos: Sequence[ObjectInfo], stores: Stores, settings: RunSettings) -> list[Block]:
    """Return blocks of the first records of several objects of one format, in the order of the objects.

    `kind` is empty for a format that the names of the objects do not show.
    """
    if kind and kind not in _WITH_COLUMNS:
        return _few_records(infos, stores, settings)
    per_object = -(-SAMPLE_RECORDS // min(_OBJECTS_MIN, len(infos)))
    found: dict[int, list[Block]] = {}
    with ThreadPoolExecutor(_THREADS, "headrace-sample") as threads:
        for wanted in (_OBJECTS_MIN, _OBJECTS_MAX):
            places = [place for place in _spread(len(infos), wanted) if place not in found]
            places = places[: wanted - len(found)]
            sample = partial(_object_sample, stores=stores, settings=settings, count=per_object)
            found.update(zip(places, threads.map(sample, [infos[p] for p in places]), strict=True))
            if sum(len(block) for blocks in found.values() for block in blocks) >= SAMPLE_RECORDS:
                break
    return [block for place in sorted(found) for block in found[place]]


def _few_records(infos: Sequence[ObjectInfo], stores: Stores, settings: RunSettings) -> list[Block]:
    """Return blocks of a few records: media are expensive, and formats without columns have no schema."""
    found: list[Block] = []
    for info in infos[:_OBJECTS_MAX]:
        found += _object_sample(info, stores, settings, _OBJECTS_MIN)
        if sum(map(len, found)) >= _OBJECTS_MIN:
            break
    return found


def _spread(count: int, wanted: int) -> list[int]:
    """Return `wanted` places of `count`, evenly spread from the first to the last."""
    if count <= wanted:
        return list(range(count))
    return [step * (count - 1) // (wanted - 1) for step in range(wanted)]


def _object_sample(info: ObjectInfo, stores: Stores, settings: RunSettings, count: int) -> list[Block]:
    """Return blocks of the first `count` records of an object; those before the damage if it is broken."""
    found: list[Block] = []
    size = 0
    if not is_random_access(info.uri, settings.read) and unreadable_reason(info.uri, settings.read):
        return found
    try:
        for block in object_blocks(info, stores, settings.read, _chunks(info, stores)):
            found.append(block.slice(0, count))
            count -= block.records
            size += block.nbytes
            if count <= 0 or size >= _OBJECT_BYTES_MAX:
                break
    except _UNREADABLE:
        pass
    return found


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


def _try_block(mapper: Mapper | None, block: Block) -> Iterator[TriedRecord]:
    """Yield the records of a block as the mapper decodes them; without a mapper, all of them decode."""
    decoded = DecodedBlock({}) if mapper is None else mapper.decode(block)
    rows = np.arange(len(block)) if decoded.rows is None else decoded.rows
    failures = {f.position.record: f for f in (*decoded.failures, *block.failures)}
    at = {int(row): position for position, row in enumerate(rows)}
    for index in range(len(block)):
        position = str(block.position(index))
        failure = failures.get(block.number(index))
        row = at.get(index)
        inputs = {} if row is None else _inputs_of(decoded, row)
        yield TriedRecord(position, block.record(index), inputs, failure)
    for failure in block.failures:
        yield TriedRecord(str(failure.position), failure.raw, {}, failure)


def _inputs_of(decoded: DecodedBlock, row: int) -> dict[str, Array]:
    """Return the model inputs of one decoded record, by name."""
    inputs = {name: data[row] for name, data in decoded.tensors.items()}
    requests = [value for value in inputs.values() if isinstance(value, InferRequest)]
    return {t.name: t.data for t in requests[0].inputs} if requests else inputs
