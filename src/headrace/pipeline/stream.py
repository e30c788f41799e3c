"""Predictions to the caller: ``async for outcome in stream`` or ``for outcome in stream``, in source order."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Self

from headrace.core.outcome import Outcome
from headrace.core.predictor import Predictor
from headrace.pipeline.flow import Flow
from headrace.pipeline.items import ScoredBatch


class Stream:
    """Outcomes of a source, one a record, in source order.

    Iterate once, with ``async for`` or ``for``. Nothing is read before the first is asked for, and no more than the
    settings' bounds ahead of what was taken: a caller that stops asking stops the source. Leaving the loop, by
    ``break`` or an error too, closes everything; ``with`` and ``async with`` do so for certain. A broken source
    raises after the outcomes of everything before it.

    `batches` gives whole batches with arrays instead of a value per record: hundreds of times cheaper.
    """

    def __init__(self, make_flow: Callable[[], Flow], predictor: Predictor) -> None:
        self._make_flow = make_flow
        self._predictor = predictor
        self._flow: Flow | None = None
        self._closed = False

    def _next(self) -> ScoredBatch | None:
        if self._closed:
            return None
        if self._flow is None:
            self._predictor.start()
            self._flow = self._make_flow()
            if self._closed:  # by another thread, while this one was waiting for the predictor
                self._flow.close()
                self._predictor.stop(drain=False)
                return None
        return self._flow.next_batch()

    def batches(self) -> Iterator[ScoredBatch]:
        """Batches in source order: `pieces` (raw records), `outputs` (arrays) and `failures`."""
        try:
            while (batch := self._next()) is not None:
                yield batch
        finally:
            self.close()

    def __iter__(self) -> Iterator[Outcome]:
        """Outcomes, for callers without an event loop."""
        for batch in self.batches():
            yield from batch.outcomes()

    async def __aiter__(self) -> AsyncIterator[Outcome]:
        """Outcomes; the loop is never blocked."""
        try:
            while (batch := await asyncio.to_thread(self._next)) is not None:
                for outcome in batch.outcomes():
                    yield outcome
        finally:
            # Shielded, so that a cancelled caller still leaves no thread behind.
            await asyncio.shield(asyncio.to_thread(self.close))

    def close(self) -> None:
        """Stop reading and stop the predictor; waits for their threads. Closing twice does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._flow is not None:
            self._flow.cancel()
        self._predictor.stop(drain=False)
        if self._flow is not None:
            self._flow.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)
