"""Blocks to requests: decodes, batches by size or delay, and cuts tensors. Pure but for the decoder it holds.

Arrives: `ReadBlock`s. Leaves: `Batch`es, each with the request that asks for its predictions.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.batching.dynamic import Closed, CloseReason, DynamicBatcher
from headrace.core.block import Block
from headrace.core.errors import ModelInputError
from headrace.core.tensor import Array, InferRequest, ModelMetadata, Tensor
from headrace.pipeline.items import Cursor, FedBlock, ReadBlock, Span
from headrace.pipeline.mapping import Mapper
from headrace.pipeline.settings import FlowSettings


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive entries, ready to be asked about; `request` is None when none of them decoded."""

    number: int
    spans: tuple[Span, ...]
    entries: int
    nbytes: int
    reason: CloseReason
    end: Cursor
    request: InferRequest | None


class Feed:
    """Makes batches of blocks. Passive: `now` is handed in; one thread."""

    def __init__(self, mapper: Mapper, metadata: ModelMetadata, settings: FlowSettings) -> None:
        delay_ms = settings.batch_delay_ms
        self._mapper = mapper
        self._batcher: DynamicBatcher[FedBlock] = DynamicBatcher(
            rows_max=settings.batch_rows_max or metadata.max_batch_rows,
            bytes_max=settings.batch_bytes_max,
            delay_s=None if delay_ms is None else delay_ms / 1000,
        )
        self._model = metadata.name
        self._number = 0

    def add(self, read: ReadBlock, now: float) -> list[Batch]:
        """The batches that this block closes."""
        block = read.block
        fed = FedBlock(read, self._mapper.decode(block))
        closed = self._batcher.add(fed, block.records, _entry_bytes(block), now)
        return [self._batch(c) for c in closed]

    def due(self) -> float | None:
        """When `poll` will close a batch by delay, or None."""
        return self._batcher.due()

    def poll(self, now: float) -> Batch | None:
        """The batch whose delay has passed, if any."""
        closed = self._batcher.poll(now)
        return self._batch(closed) if closed else None

    def flush(self, now: float) -> Batch | None:
        """What is left, at the end of the source."""
        closed = self._batcher.flush(now)
        return self._batch(closed) if closed else None

    def _batch(self, closed: Closed[FedBlock]) -> Batch:
        spans = tuple(s.item.span(s.start, s.stop) for s in closed.slices)
        last = closed.slices[-1]
        number = self._number
        self._number += 1
        return Batch(
            number=number,
            spans=spans,
            entries=closed.rows,
            nbytes=closed.nbytes,
            reason=closed.reason,
            end=last.item.cursor_after(last.stop),
            request=_request(self._model, number, spans),
        )


def _request(model: str, number: int, spans: tuple[Span, ...]) -> InferRequest | None:
    with_rows = [s.tensors for s in spans if len(s.piece)]
    if not with_rows:
        return None
    return InferRequest(
        inputs=tuple(Tensor(name, _joined(model, name, with_rows)) for name in with_rows[0]),
        id=f"batch-{number}",
    )


def _joined(model: str, name: str, tensors: list[Mapping[str, Array]]) -> Array:
    if len(tensors) == 1:
        return tensors[0][name]
    arrays = [t[name] for t in tensors]
    shapes = dict.fromkeys(a.shape[1:] for a in arrays)
    if len(shapes) > 1:
        one, other = [list(shape) for shape in shapes][:2]
        raise ModelInputError(
            model,
            f"records of one batch differ in shape, {one} and {other}, so they make no array for input {name!r}: "
            "bring images to one size with --image-size, or predict record by record with --batch-rows 1",
        )
    return np.concatenate(arrays)


def _entry_bytes(block: Block) -> int | NDArray[np.int64]:
    """Bytes of each entry: text by its length, media by what was decoded; failures weigh what they keep."""
    if block.columns:
        sizes = sum(c.nbytes for c in block.columns.values()) // max(len(block), 1)
        return sizes if not block.failures else np.full(block.records, sizes, np.int64)
    sizes = block.ends - block.starts
    if not block.failures:
        return sizes
    return np.concatenate([sizes, np.array([len(f.raw) for f in block.failures], np.int64)])
