"""A loaded model, wherever it runs: what an instance calls.

`LocalBackend` is the model in this process. A backend elsewhere (`engine.process`) has the same face.
"""

import asyncio
import contextvars
import inspect
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError as FutureCancelledError
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import CoroutineType
from typing import Any, Protocol

import numpy as np

from headrace.core.call import CALL, Call
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import (
    CancelledRequestError,
    ConfigError,
    ModelContractError,
    ModelLoadError,
    PredictError,
    StoppedError,
)
from headrace.core.model import Model, predicts, steps, streams
from headrace.core.record import record
from headrace.core.sequence import SequenceEnd, SequenceLimits, States
from headrace.core.tensor import Array, InferRequest, InferResponse, ModelMetadata, dtype_of
from headrace.engine.inputs import ModelInputs
from headrace.engine.loop_thread import LoopThread
from headrace.engine.outputs import OutputCheck, Outputs, together
from headrace.engine.reason import reason
from headrace.engine.settings import ServeSettings
from headrace.engine.stepper import Deliver, Ending, StepOrder, Stepped, Stepper
from headrace.engine.streams import StreamCall, StreamModel

_log = logging.getLogger("headrace.engine")
_DEFAULTS = ServeSettings()
_FIRST_STEP = StepOrder(0, "", 0, again=False, end=True, parameters={}, restore=None, save=False)
"""The warm-up's."""

Parts = Sequence[Mapping[str, Array]]
"""Tensors by input name, request after request: to be joined along the first axis."""


@record
class Called:
    """What one call of the model returned, checked, and how long its three steps took."""

    outputs: Outputs
    input_s: float = 0.0
    infer_s: float = 0.0
    output_s: float = 0.0


class Backend(Protocol):
    """One loaded copy of a model. `call` is called by one thread at a time; the rest by any."""

    inputs: ModelInputs
    check: OutputCheck
    rows_max: int
    metadata: ModelMetadata
    sequences: SequenceLimits
    """Of a model with a `step`."""

    def call(self, parts: Parts, rows: int, request: str, call: Call, *, fresh: bool) -> Called:
        """Call `predict` once on `rows` rows in all, for the request that is called `request`.

        `fresh` arrays are nobody else's. Raises what the model raised, ModelContractError for what it returned,
        InstanceLostError when it died.
        """
        ...

    def call_request(self, request: InferRequest, call: Call) -> InferResponse:
        """Call `predict_request`, of a model that has one. Raises what `call` does."""
        ...

    def step(self, parts: Parts, orders: Sequence[StepOrder], call: Call, *, fresh: bool = False) -> Stepped:
        """Call `step` once, of a model that has one: on a row of `parts` for each order, all of different sequences.

        `fresh` arrays are nobody else's. Raises what `call` does, and SequenceLostError for a sequence whose state is not here.
        Then no state has changed, and what was to be restored is to be given again.
        """
        ...

    def end_sequences(self, endings: Sequence[Ending]) -> None:
        """These sequences are over: drop their states, and tell the model. Raises InstanceLostError."""
        ...

    def cancel(self) -> None:
        """Nobody waits for the call in progress, if there is one: end it early if that can be done."""
        ...

    def open_stream(self, stream: StreamCall) -> None:
        """Begin a stream; its pipes tell the rest. Raises StoppedError when the backend is closed."""
        ...

    @property
    def lost(self) -> bool:
        """Whether what ran the model is gone, so that it must be started again before it is called."""
        ...

    def on_lost(self, hook: Callable[[], None]) -> None:
        """What to call, from any thread and at any time, when it is found dead; at once, when it is so already."""
        ...

    def restart(self) -> None:
        """When it is lost: one attempt to load the model again. Raises what keeps it from being ready."""
        ...

    def close(self) -> None:
        """Cancel the streams, let the model free what it holds, and end what runs; errors are logged."""
        ...


class LocalBackend:
    """A model that was made, loaded and warmed up in this process. Make it in the thread that calls it.

    `predict` is given arrays of its own (C-contiguous, and it may write into them unless its `writes_inputs` is
    false); the arrays that it returns are handed on without a copy, so they must not be written to by the next call.

    A model with an asynchronous `predict_stream` gets a thread of its own with an event loop, and all of its methods
    are called there: between two awaits of its streams nobody else runs. With `inline` its streams run in the event
    loops of those who open them.
    """

    def __init__(
        self,
        make_model: Callable[[], Model],
        name: str,
        *,
        clock: Clock | None = None,
        fingerprint: str = "",
        version: str | None = None,
        settings: ServeSettings = _DEFAULTS,
        inline: bool = False,
    ) -> None:
        self._name = name
        self._version = version
        self._clock = clock or SystemClock()
        self._runner: asyncio.Runner | None = None
        self._home: LoopThread | None = None
        self._model: Model | None = None
        self._stream_model: StreamModel | None = None
        self._stepper: Stepper | None = None
        self._cancel: Callable[[], object] | None = None
        self._streams: set[StreamCall] = set()
        self._changed = threading.Condition()
        self._closed = False
        self.turns = threading.Lock()
        """Held while the model's code runs in one of several threads."""
        try:
            self._load(make_model(), settings, inline=inline)
        except BaseException as error:
            self.close()
            if isinstance(error, (ModelLoadError, ConfigError)):
                raise
            raise ModelLoadError(name, f"it did not load: {reason(error)}") from error
        model = self._model
        assert model is not None
        delay_ms = settings.max_batch_delay_ms
        self.metadata = ModelMetadata(
            name=name,
            version=version,
            platform=type(model).__name__,
            inputs=self.inputs.specs,
            outputs=model.outputs,
            max_batch_rows=self.rows_max,
            max_batch_delay_ms=model.max_batch_delay_ms if delay_ms is None else delay_ms,
            fingerprint=fingerprint,
            predicts=predicts(model) or steps(model),
            streams=streams(model) or steps(model),
            steps=steps(model),
            sequences_live_max=model.sequences.live_max if steps(model) else None,
            whole_requests=model.predict_request is not None,
            bytes_as=model.bytes_as,
        )

    def _load(self, model: Model, settings: ServeSettings, *, inline: bool) -> None:
        if steps(model):
            self._check_alone(model, inline=inline)
            self._stepper = Stepper(model, self._name)
        if streams(model):
            self._stream_model = StreamModel(
                model, self._name, self._version, clock=self._clock, turns=self.turns
            )
            if self._stream_model.is_async and not inline:
                self._home = LoopThread(f"headrace-{self._name}-loop")
        self._do(model.load)
        # From here on it holds something to be closed.
        self._model = model
        self.predict = model.predict
        self.is_async = inspect.iscoroutinefunction(model.predict)
        self.inputs = ModelInputs.of(model, self._name)
        self.check = OutputCheck(self._name, model.outputs, "step" if steps(model) else "predict")
        self.sequences = model.sequences.changed(settings.sequences)
        self.rows_max = model.max_batch_rows if settings.max_batch_rows is None else settings.max_batch_rows
        self.writes_inputs = model.writes_inputs
        if self.rows_max < 1:
            raise ModelLoadError(self._name, f"max_batch_rows must be 1 or more, not {self.rows_max}")
        if settings.max_batch_delay_ms is None and model.max_batch_delay_ms < 0:
            raise ModelLoadError(
                self._name, f"max_batch_delay_ms must be 0 or more, not {model.max_batch_delay_ms}"
            )
        if not settings.warm_up:
            return
        self._do(model.warm_up)
        if type(model).warm_up is Model.warm_up and (predicts(model) or steps(model)):
            self._call_with_zeros()

    def _check_alone(self, model: Model, *, inline: bool) -> None:
        others = {
            "predict": predicts(model),
            "predict_stream": streams(model),
            "predict_request": model.predict_request is not None,
        }
        if has := ", ".join(name for name, there in others.items() if there):
            raise ModelLoadError(
                self._name, f"it has both step and {has}: a model with a step answers all requests by it"
            )
        if inline:
            raise ConfigError(
                f"model {self._name}: a model with a step cannot run inline, since its requests wait for each other; "
                "set isolation to thread"
            )

    def zeros(self, rows: int) -> dict[str, Array] | None:
        """Inputs of zeros, where the model's declared sizes are known."""
        made: dict[str, Array] = {}
        for spec in self.inputs.specs:
            if spec.shape is None or spec.datatype == "BYTES" or -1 in spec.shape[1:]:
                return None
            datatype = "FP32" if spec.datatype == "BF16" else spec.datatype
            made[spec.name] = np.zeros((rows, *spec.shape[1:]), dtype_of(datatype))
        return made or None

    def _call_with_zeros(self) -> None:
        """A model's first call is often slow: make it here, where the model left that to us and sizes are known."""
        zeros = self.zeros(1)
        if zeros is None:
            return
        try:
            if self._stepper is None:
                self._do(lambda: self._predicted(zeros))
            else:
                self._step_with_zeros(zeros)
        except Exception:  # noqa: BLE001 - zeros need not be an input that the model takes
            _log.debug("warm-up with zeros failed", extra={"model": self._name}, exc_info=True)

    def _step_with_zeros(self, zeros: Mapping[str, Array]) -> None:
        """The only step of a sequence whose end the model is told, as of any other."""
        try:
            self.step((zeros,), [_FIRST_STEP], CALL.get())
        finally:
            self.end_sequences([Ending(_FIRST_STEP.number, _FIRST_STEP.id, 1, SequenceEnd.ENDED)])

    def call(self, parts: Parts, rows: int, request: str, call: Call, *, fresh: bool) -> Called:
        """See `Backend`."""
        token = CALL.set(call)
        try:
            return self._called(parts, rows, request, fresh=fresh)
        finally:
            CALL.reset(token)

    def call_request(self, request: InferRequest, call: Call) -> InferResponse:
        """See `Backend`."""
        model = self._model
        assert model is not None
        token = CALL.set(call)
        try:
            returned = self._in_turn(lambda: model.predict_request(request))
        finally:
            CALL.reset(token)
        if not isinstance(returned, InferResponse):
            kind = type(returned).__name__
            raise ModelContractError(self._name, f"predict_request returned a {kind}, not an InferResponse")
        return replace(
            returned, model_name=self._name, model_version=self.metadata.version, id=returned.id or request.id
        )

    def step(
        self,
        parts: Parts,
        orders: Sequence[StepOrder],
        call: Call,
        *,
        fresh: bool = False,
        deliver: Deliver | None = None,
    ) -> Stepped:
        """See `Backend`; the step counts only when `deliver` has returned."""
        stepper = self._stepper
        assert stepper is not None, "only asked of models that step"
        token = CALL.set(call)
        try:
            began_s = self._clock.now()
            tensors = self._joined(parts, fresh=fresh)
            joined_s = inferred_s = self._clock.now()

            def called(states: States) -> Outputs:
                nonlocal inferred_s
                rows = len(states)
                returned = self.awaited(self._call_step(states, tensors))
                inferred_s = self._clock.now()
                return self.check(returned, rows, "")

            outputs, said, saved = stepper.step(orders, called, deliver)
        finally:
            CALL.reset(token)
        took_s = (joined_s - began_s, inferred_s - joined_s, self._clock.now() - inferred_s)
        return Stepped(outputs, said, saved, *took_s)

    def _call_step(self, states: States, tensors: Mapping[str, Array]) -> Any:
        assert self._model is not None
        return self.inputs.call(partial(self._model.step, states), tensors)

    def end_sequences(self, endings: Sequence[Ending]) -> None:
        """See `Backend`."""
        assert self._stepper is not None, "only asked of models that step"
        self._stepper.end(endings, self._do)

    def _called(self, parts: Parts, rows: int, request: str, *, fresh: bool) -> Called:
        began_s = self._clock.now()
        tensors = self._joined(parts, fresh=fresh)
        joined_s = self._clock.now()
        returned = self._returned(tensors)
        inferred_s = self._clock.now()
        outputs = self.check(returned, rows, request)
        return Called(outputs, joined_s - began_s, inferred_s - joined_s, self._clock.now() - inferred_s)

    def _returned(self, tensors: Mapping[str, Array]) -> Any:
        if self._stream_model is not None:
            return self._in_turn(lambda: self._predicted(tensors))
        # Nothing but a call: there is neither a thread to be changed nor a turn to be waited for.
        return self.awaited(self.inputs.call(self.predict, tensors))

    def awaited(self, returned: Any) -> Any:
        """What `predict` returned, once it is there: also what wraps an ``async def`` returns a coroutine."""
        if not isinstance(returned, CoroutineType):
            return returned
        self.is_async = True
        return self._wait_for(returned)

    def _predicted(self, tensors: Mapping[str, Array]) -> Any:
        returned = self.inputs.call(self.predict, tensors)
        # Known of an ``async def`` before; what wraps one shows only here.
        self.is_async = self.is_async or inspect.iscoroutine(returned)
        return returned

    def _joined(self, parts: Parts, *, fresh: bool) -> Mapping[str, Array]:
        """All rows, for the model to do with as it likes: writing there must not spoil the rows of the next try."""
        if len(parts) > 1:
            return together(parts)
        if fresh:
            return parts[0]
        if self.writes_inputs:
            return {n: d.copy() for n, d in parts[0].items()}
        return {n: d if d.flags.c_contiguous else np.ascontiguousarray(d) for n, d in parts[0].items()}

    def cancel(self) -> None:
        """See `Backend`: an asynchronous `predict` is cancelled; a plain one can ask `current_call`."""
        cancel = self._cancel
        if cancel is not None:
            cancel()

    lost = False
    """See `Backend`: this one lives as long as its process."""

    def on_lost(self, hook: Callable[[], None]) -> None:
        """See `Backend`."""

    def restart(self) -> None:
        """See `Backend`."""

    # Streams

    def open_stream(self, stream: StreamCall) -> None:
        """See `Backend`."""
        model = self._stream_model
        assert model is not None, "only asked of models that stream"
        stream.on_end(lambda: self._ended(stream))
        with self._changed:
            if self._closed:
                raise StoppedError(f"model {self._name} is stopping")
            # Begun under the lock, so that `close` comes after it.
            if not model.is_async:
                model.run_in_thread(stream)
            elif self._home is None:
                self._begin(model, stream)
            else:
                self._home.loop.call_soon_threadsafe(self._begin, model, stream)
            self._streams.add(stream)

    def _ended(self, stream: StreamCall) -> None:
        with self._changed:
            self._streams.discard(stream)
            self._changed.notify_all()

    def _begin(self, model: StreamModel, stream: StreamCall) -> None:
        """In the model's event loop."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(model.run(stream))
        # A task that is cancelled before its first step runs nothing at all.
        task.add_done_callback(lambda _: stream.end(model.cancelled()))

        def stop() -> None:
            with suppress(RuntimeError):  # a caller's loop is closed, and took the task with it
                loop.call_soon_threadsafe(task.cancel)

        stream.on_cancel(stop)

    # Life

    def close(self) -> None:
        """See `Backend`."""
        with self._changed:
            self._closed = True
            open_streams = list(self._streams)
        for stream in open_streams:
            stream.cancel(StoppedError(f"model {self._name} is stopping"))
        if self._stream_model is not None and (self._home is not None or not self._stream_model.is_async):
            # What inline streams still do is up to the event loop of whoever opened them, which may be the one that stops.
            with self._changed:
                self._changed.wait_for(lambda: not self._streams)
        model, self._model = self._model, None
        try:
            if model is not None:
                self._do(model.close)
        except BaseException:  # noqa: BLE001 - nothing that a model raises may keep its thread from ending
            _log.exception("model failed to close", extra={"model": self._name})
        finally:
            if self._home is not None:
                self._home.stop()
            if self._runner is not None:
                self._runner.close()

    def _do(self, method: Callable[[], Any]) -> Any:
        """Call one of the model's methods where it lives, and wait for it where it is asynchronous."""
        if self._home is not None:
            return self._in_home(method, self._home)
        result = method()
        return self._wait_for(result) if inspect.iscoroutine(result) else result

    def _wait_for(self, coroutine: Any) -> Any:
        if self._runner is None:
            self._runner = asyncio.Runner()
        # The context of this call, not of the first one.
        return self._runner.run(self._awaited(coroutine), context=contextvars.copy_context())

    def _in_turn(self, method: Callable[[], Any]) -> Any:
        """What `_do` does, while no plain generator's code runs."""
        if self._stream_model is None or self._home is not None:
            return self._do(method)
        with self.turns:
            return self._do(method)

    def _in_home(self, method: Callable[[], Any], home: LoopThread) -> Any:
        def begin() -> Any:
            result = method()
            return self._awaited(result) if inspect.iscoroutine(result) else result

        try:
            return home.submit(begin).result()
        except (asyncio.CancelledError, FutureCancelledError):
            raise self._cancelled_itself() from None

    async def _awaited(self, coroutine: Any) -> Any:
        """What a method of the model comes to; CancelledRequestError when `cancel` was called."""
        task, loop, call = asyncio.current_task(), asyncio.get_running_loop(), CALL.get()
        assert task is not None
        cancelled = False

        def cancel() -> None:
            # Once: a second time would break into the model's own cleaning up.
            nonlocal cancelled
            if not cancelled:
                cancelled = True
                loop.call_soon_threadsafe(task.cancel)

        self._cancel = cancel
        if call.cancelled:
            cancel()
        try:
            return await coroutine
        except asyncio.CancelledError:
            if not cancelled:
                raise self._cancelled_itself() from None
            raise CancelledRequestError(f"model {self._name}: the call was cancelled") from None
        finally:
            self._cancel = None

    def _cancelled_itself(self) -> PredictError:
        return PredictError(self._name, "it raised CancelledError, but nobody had cancelled the call")
