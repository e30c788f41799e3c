"""What every door asks: the operations of a served model, whatever the protocol.

Arrives: requests by model and version, in the server's event loop. Leaves: responses, streams of them, or an error of the one
tree.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import numpy as np

from headrace.core.errors import (
    DataError,
    ForbiddenError,
    ModelContractError,
    ModelError,
    ModelInputError,
    StoppedError,
    UnsupportedError,
)
from headrace.core.sequence import SequenceListing
from headrace.core.statistics import ModelIndexEntry, ModelStatistics, SequenceStatistics
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata, Tensor
from headrace.engine.engine import Engine
from headrace.engine.repository import ModelRepository
from headrace.engine.streams import AnswerStream
from headrace.engine.ticket import RequestTimes

AHEAD_MAX: Final = 32
"""Requests of one stream that are asked at once, of a model that does not stream itself."""
COLLECTED_MAX: Final = 65_536
"""Items of a stream that are gathered for a caller who wants one response."""

EXTENSIONS: Final = (
    "binary_tensor_data",
    "generate",
    "model_configuration",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "sequence",
    "statistics",
    "parameters",
)


class Dataplane:
    """Asks the models of a repository. All coroutines run in one event loop, and never block it.

    `load` and `unload` are refused with ForbiddenError unless `changeable`.
    """

    def __init__(self, repository: ModelRepository, *, version: str = "0", changeable: bool = False) -> None:
        self.name = "headrace"
        self.version = version
        self.extensions: tuple[str, ...] = EXTENSIONS
        self._repository = repository
        self._changeable = changeable
        self._changing = asyncio.Lock()
        """Held while models are loaded or unloaded: those who wait for it hold no thread."""
        self._draining = False

    # Health

    def live(self) -> bool:
        """Whether the server runs: it answers, so it does."""
        return True

    def ready(self) -> bool:
        """Whether it should be sent requests: models are loaded, every instance is alive, and it is not draining."""
        return not self._draining and self._repository.ready()

    def drain(self) -> None:
        """Say from now on that it is not ready; requests are answered all the same."""
        self._draining = True

    def model_ready(self, model: str, version: str = "") -> bool:
        """Whether a model can be asked. ModelNotFoundError for an unknown one."""
        return not self._draining and self._repository.model_ready(model, version)

    # What is there

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        """What a version says of itself. ModelNotFoundError, ModelNotReadyError."""
        return self._repository.engine(model, version).metadata

    def described(self) -> list[ModelMetadata]:
        """What every version that is ready says of itself, by name."""
        found: list[ModelMetadata] = []
        for entry in self._repository.index(ready=True):
            with suppress(ModelError):  # unloaded a moment ago
                found.append(self._repository.engine(entry.name, entry.version).metadata)
        return found

    def versions(self, model: str) -> tuple[str, ...]:
        """The versions that are ready, oldest first. ModelNotFoundError."""
        return self._repository.versions(model)

    def index(self, *, ready: bool = False) -> tuple[ModelIndexEntry, ...]:
        """Every version of every model; with `ready` those alone that can be asked."""
        return self._repository.index(ready=ready)

    def statistics(self, model: str = "", version: str = "") -> tuple[ModelStatistics, ...]:
        """Figures since loading; of one model, or one version, when named. ModelNotFoundError."""
        return self._repository.statistics(model, version)

    async def load(self, model: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Load a model of the models root, or load it again.

        ForbiddenError where this server was not started with a models root; UnsupportedError for parameters that would
        bring a configuration or files along; ModelNotFoundError, ConfigError, ModelLoadError.
        """
        self._check_changeable()
        unknown = set(parameters or ()) - {"unload_dependents"}
        if unknown:
            raise UnsupportedError(
                f"a model is loaded as it lies in the models root; {', '.join(map(repr, sorted(unknown)))} cannot be given"
            )
        await self._change(lambda: self._repository.load(model))

    async def unload(self, model: str) -> None:
        """Unload every version of a model, once it has answered what it had. ForbiddenError, ModelNotFoundError."""
        self._check_changeable()
        await self._change(lambda: self._repository.unload(model))

    async def _change(self, change: Callable[[], None]) -> None:
        async with self._changing:
            await asyncio.to_thread(change)

    def _check_changeable(self) -> None:
        if not self._changeable:
            raise ForbiddenError(
                "models cannot be loaded or unloaded here: the server was started without a models folder"
            )

    # Sequences

    def sequences(self, model: str, version: str = "", *, most: int) -> SequenceListing:
        """How the sequences of a model stand, at most so many of them. ModelNotFoundError, ModelNotReadyError."""
        engine = self._repository.engine(model, version)
        told = engine.model_statistics().sequences or SequenceStatistics()
        return SequenceListing(
            engine.name, engine.version or "", told.live, told.live_max, told.ends, engine.sequences(most)
        )

    def cancel_sequence(self, model: str, version: str, id: str) -> bool:
        """End a sequence, with all that waits for it; whether it lived. ModelNotFoundError, ModelNotReadyError."""
        return self._repository.engine(model, version).cancel_sequence(id)

    # Inference

    def infer_now(
        self, model: str, version: str, request: InferRequest, times: RequestTimes | None = None
    ) -> InferResponse | None:
        """What `infer` comes to, of a model that is called inline; None where it takes waiting: then `infer` it."""
        engine = self._repository.engine(model, version)
        try:
            return engine.ask_now(request, times)
        except StoppedError:
            # `infer` looks what there is instead.
            return None

    async def infer(
        self, model: str, version: str, request: InferRequest, times: RequestTimes | None = None
    ) -> InferResponse:
        """One response for one request; see `Engine.ask` for what it raises, and for `times`.

        A model that only streams is asked by its stream; what it yields is joined, row after row; nothing, where it yields
        nothing.
        """
        engine = self._repository.engine(model, version)
        try:
            return await self._infer(engine, request, times)
        except StoppedError:
            # It was replaced, or unloaded, between the look-up and the question.
            again = self._repository.engine(model, version)
            if again is engine:
                raise
            return await self._infer(again, request, times)

    async def _infer(
        self, engine: Engine, request: InferRequest, times: RequestTimes | None
    ) -> InferResponse:
        metadata = engine.metadata
        if metadata.predicts or not metadata.streams:
            return await engine.ask(request, times)
        return await _collected(engine, request)

    async def stream_some(
        self, model: str, version: str, requests: AsyncIterator[InferRequest]
    ) -> AsyncGenerator[list[InferResponse], None]:
        """Responses as they come, all that are there at once; none of the lists is empty. `aclose` it whatever happens.

        A model without a stream of its own is asked request by request, several at a time, and answers in order. No
        request at all is an end without a response.
        """
        engine = self._repository.engine(model, version)
        first = await anext(requests, None)
        if first is None:
            return
        if not engine.metadata.streams:
            async for response in _in_order(engine, first, requests):
                yield [response]
            return
        wanted = _wanted_outputs(engine.metadata, first)
        answers = self._opened(model, version, first, requests)
        try:
            while some := await answers.some():
                yield wanted(some)
        finally:
            await answers.aclose()

    def _opened(
        self, model: str, version: str, first: InferRequest, more: AsyncIterator[InferRequest] | None = None
    ) -> AnswerStream:
        engine = self._repository.engine(model, version)
        try:
            return engine.stream(first, more)
        except StoppedError:
            # As in `infer`.
            again = self._repository.engine(model, version)
            if again is engine:
                raise
            return again.stream(first, more)

    async def stream_one(
        self, model: str, version: str, request: InferRequest
    ) -> AsyncGenerator[list[InferResponse], None]:
        """What `stream_some` does, for one request."""
        engine = self._repository.engine(model, version)
        if not engine.metadata.streams:
            yield [await self.infer(model, version, request)]
            return
        wanted = _wanted_outputs(engine.metadata, request)
        answers = self._opened(model, version, request)
        try:
            while some := await answers.some():
                yield wanted(some)
        finally:
            await answers.aclose()


def _wanted_outputs(
    metadata: ModelMetadata, request: InferRequest
) -> Callable[[list[InferResponse]], list[InferResponse]]:
    """Leaves of responses the outputs that were asked for. What yields one of them has none of the others, maybe."""
    names = request.outputs
    if not names:
        return lambda responses: responses
    known = [s.name for s in metadata.outputs]
    if known and (unknown := [n for n in names if n not in known]):
        why = f"it has no output {', '.join(map(repr, unknown))} (it has {', '.join(map(repr, known))})"
        raise ModelInputError(metadata.name, why)

    def chosen(responses: list[InferResponse]) -> list[InferResponse]:
        return [replace(r, outputs=tuple(t for t in r.outputs if t.name in names)) for r in responses]

    return chosen


async def _in_order(
    engine: Engine, first: InferRequest, requests: AsyncIterator[InferRequest]
) -> AsyncGenerator[InferResponse, None]:
    """Answers in the requests' order, with several requests under way."""
    asked: deque[asyncio.Task[InferResponse]] = deque()
    reading = asyncio.ensure_future(_next(requests))
    asked.append(asyncio.ensure_future(engine.ask(first)))
    over = False
    try:
        while asked or not over:
            waits: set[asyncio.Future[Any]] = {asked[0]} if asked else set()
            if not over and len(asked) < AHEAD_MAX:
                waits.add(reading)
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if reading in waits and reading.done():
                request = reading.result()
                over = request is None
                if request is not None:
                    asked.append(asyncio.ensure_future(engine.ask(request)))
                    reading = asyncio.ensure_future(_next(requests))
            while asked and asked[0].done():
                yield asked.popleft().result()
    finally:
        for task in (reading, *asked):
            task.cancel()
        await asyncio.gather(reading, *asked, return_exceptions=True)


async def _next(requests: AsyncIterator[InferRequest]) -> InferRequest | None:
    return await anext(requests, None)


async def _collected(engine: Engine, request: InferRequest) -> InferResponse:
    """All that a stream yields, as one response."""
    wanted = _wanted_outputs(engine.metadata, request)
    answers = engine.stream(request)
    items: list[InferResponse] = []
    try:
        while some := await answers.some():
            items += wanted(some)
            if len(items) > COLLECTED_MAX:
                raise DataError(
                    f"model {engine.name} yields more than {COLLECTED_MAX} responses, which are too many for one: "
                    "ask for them as a stream"
                )
    finally:
        await answers.aclose()
    if not items:
        return InferResponse((), engine.name, engine.version, request.id)
    if len(items) == 1:
        return items[0]
    names = [t.name for t in items[0].outputs]
    if any([t.name for t in item.outputs] != names for item in items):
        raise ModelContractError(
            engine.name,
            "its stream yields different outputs, which cannot be joined: ask for them as a stream",
        )
    try:
        outputs = tuple(Tensor(name, np.concatenate([item[name] for item in items])) for name in names)
    except ValueError as error:
        raise ModelContractError(engine.name, f"the items of its stream cannot be joined: {error}") from error
    return InferResponse(
        outputs, items[0].model_name, items[0].model_version, items[0].id, items[0].parameters
    )
