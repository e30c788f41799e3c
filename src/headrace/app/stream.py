"""Predictions of a source for a caller: ``async for`` or ``for outcome in stream``, in source order."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

from headrace.app.models import ModelLike, PredictorOptions, open_run_predictor
from headrace.core.block import Outcome
from headrace.core.predictor import Predictor
from headrace.runs.flow import Flow, open_flow
from headrace.runs.items import ScoredBatch
from headrace.runs.limit import limit_objects
from headrace.runs.objects import plan_objects, select_infos
from headrace.runs.sample import schema_of
from headrace.runs.settings import StreamSettings
from headrace.storage.resolve import Stores


class Stream:
    """The outcomes of a source, one per record, in source order.

    Iterate once, with ``async for`` or ``for``. Nothing is read before the first request for an
    outcome, and then only as far ahead as the settings allow: a caller that pauses stops the
    source. Leaving the loop, also by ``break`` or an error, closes everything; ``with`` and ``async
    with`` guarantee it. A broken source raises after the outcomes of all earlier records.

    `batches` yields whole batches of arrays instead of one value per record, which is hundreds of
    times cheaper.
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
            if self._closed:  # another thread closed it during the start of the predictor
                self._flow.close()
                self._predictor.stop(drain=False)
                return None
        return self._flow.next_batch()

    def batches(self) -> Iterator[ScoredBatch]:
        """Yield batches in source order.

        A batch has `selections` (raw records), `outputs` (arrays) and `failures`.
        """
        try:
            while (batch := self._next()) is not None:
                yield batch
        finally:
            self.close()

    def __iter__(self) -> Iterator[Outcome]:
        """Yield outcomes, for callers without an event loop."""
        for batch in self.batches():
            yield from batch.outcomes()

    async def __aiter__(self) -> AsyncIterator[Outcome]:
        """Yield outcomes. The event loop is never blocked."""
        try:
            while (batch := await asyncio.to_thread(self._next)) is not None:
                for outcome in batch.outcomes():
                    yield outcome
        finally:
            # The shield makes sure that a cancelled task leaves no thread behind.
            await asyncio.shield(asyncio.to_thread(self.close))

    def close(self) -> None:
        """Stop the source and the predictor, and wait for their threads.

        A second call does nothing.
        """
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


def stream(
    source: str | Sequence[str],
    *,
    model: ModelLike | None = None,
    endpoint: str | None = None,
    settings: StreamSettings | None = None,
    options: PredictorOptions | None = None,
    stores: Stores | None = None,
) -> Stream:
    """Return the predictions for a source as a stream, to be iterated once.

    ::

        async for outcome in headrace.stream("s3://bucket/day.tar.gz", model="churn.onnx"):
            if outcome.ok:
                ...  # outcome.outputs by name, outcome.record (raw bytes), outcome.position
            else:
                ...  # outcome.position, outcome.why, outcome.raw

    Iterate with ``async for`` or ``for``. Each record yields one outcome (`Prediction` or
    `Failure`), in source order. The source is read from the first iteration on, and only as far
    ahead as the settings allow: a consumer that stops iterating stops the source. `Stream.batches`
    yields whole batches with arrays, without an object for each record.

    Args:
        source: An object, a prefix that ends in ``/``, a glob or ``manifest:URI``, or several of them.
        model: A file (``model.onnx``, ``file.py:Class``, …), a folder, ``module:Class``, a URI or archive
            of a model, a Model class or object, a function that makes models, or a Predictor.
        endpoint: The URL of a served model, instead of `model`.
        settings: Reading, mapping and batching of records; `StreamSettings.output` is ignored.
        options: Model instances, or the protocol and limits of an endpoint.
        stores: The object stores. By default all URI schemes, with credentials from the environment.

    Raises:
        ConfigError: At once, for invalid arguments; MissingExtraError names the extra to install.
        BrokenModelError: In place of the first outcomes, if the model raises the same exception for
            every row of its first batches, unless `StreamSettings.failures` sets `on_error`.
        HeadraceError: While iterating, after all earlier outcomes: the model does not load or breaks its
            contract, or the source is empty or no longer reachable.
    """
    chosen_settings, chosen_stores = settings or StreamSettings(), stores or Stores()
    opened = open_run_predictor(model, endpoint, options, chosen_settings, chosen_stores)

    def make_flow() -> Flow:
        objects = plan_objects(select_infos(source, chosen_stores, chosen_settings), None)
        objects = limit_objects(objects, chosen_stores, chosen_settings)
        infos = [planned.info for planned in objects]
        return open_flow(
            objects,
            chosen_stores,
            opened.predictor,
            chosen_settings,
            schema=schema_of(infos, chosen_stores, chosen_settings, opened.predictor.metadata),
        )

    return Stream(make_flow, opened.predictor)
