"""A model that is loaded and called in this process."""

import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import CoroutineType
from typing import Any, Final

import numpy as np
from typing_extensions import override

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import (
    ConfigError,
    HeadraceError,
    InstanceLostError,
    ModelContractError,
    ModelLoadError,
    StoppedError,
)
from headrace.core.model import (
    CALL,
    Call,
    HandleRequest,
    HandleResponse,
    Model,
    is_device_broken,
    overrides,
)
from headrace.core.model_traceback import ModelTraceback
from headrace.core.sequence import SequenceEnd, States
from headrace.core.tensor import Array, ModelMetadata
from headrace.engine.backend import Backend, CallInputs, CallResult
from headrace.engine.inputs import ModelInputs
from headrace.engine.model_methods import MethodRunner, ProcessFault, check_methods, describe_error
from headrace.engine.outputs import (
    ChunkedResponse,
    OutputCheck,
    Outputs,
    check_response,
    check_responses,
    concatenate,
)
from headrace.engine.settings import ServeSettings
from headrace.engine.stepper import Deliver, SequenceEnding, StepOrder, Stepper
from headrace.engine.streams import StreamCall, StreamModel
from headrace.engine.tracebacks import TracebackMaker, model_files

_log = logging.getLogger("headrace.engine")
_DEFAULTS: Final = ServeSettings()
_FIRST_STEP: Final = StepOrder(0, "", 0, again=False, end=True, parameters={}, restore=None, save=False)
"""The order of the warm-up step."""


class LocalBackend(Backend):
    """A model that is loaded and warmed up in this process. Make it in the thread that calls it.

    `predict` gets C-contiguous arrays of its own, and may write into them unless the model's
    `writes_inputs` is false. The arrays that it returns are not copied, so the next call must not
    write into them.

    A model with an asynchronous `predict_stream` gets a thread with an event loop, in which all of
    its methods are called: between two awaits of its streams no other code of the model runs. With
    `inline` its streams run in the event loops of their clients.

    After an error that the model calls unrecoverable, the backend is lost: this call, all later ones
    and the streams end with InstanceLostError. So are all backends with the same `fault`.
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
        fault: ProcessFault | None = None,
    ) -> None:
        self._name = name
        self._fault = fault or ProcessFault(name)
        self._is_unrecoverable: Callable[[BaseException], bool] = is_device_broken
        self._on_lost: Callable[[], None] | None = None
        self._tracebacks = TracebackMaker()
        self._version = version
        self._clock = clock or SystemClock()
        self._methods = MethodRunner(name)
        self._model: Model | None = None
        self._stream_model: StreamModel | None = None
        self._stepper: Stepper | None = None
        self._is_inline = inline
        self.model_lock = threading.Lock()
        """Held while code of the model runs, where several threads run it."""
        self._fault.add_callback(self._lose)
        try:
            self._load(make_model(), settings, inline=inline)
            if self._fault.reason is not None:
                # Such as by `sequence_ended`, after the step of the warm-up.
                self._fault.raise_error()
        except BaseException as error:
            self.lost_error(error)
            self.close()
            if isinstance(error, (ModelLoadError, ConfigError)):
                raise
            raise ModelLoadError(name, f"it did not load: {describe_error(error)}") from error
        model = self._model
        assert model is not None
        self.metadata = _metadata(
            model, self.inputs, name, version, fingerprint, rows_max=self.rows_max, delay_ms=self._delay_ms
        )

    def _load(self, model: Model, settings: ServeSettings, *, inline: bool) -> None:
        check_methods(model, self._name, inline=inline)
        self._is_unrecoverable = model.is_unrecoverable
        self._tracebacks = TracebackMaker(model_files(model))
        if overrides(model, "step"):
            self._stepper = Stepper(model, self._name, self._run_hook)
        if overrides(model, "predict_stream") or overrides(model, "handle"):
            self._stream_model = StreamModel(
                model,
                self._name,
                self._version,
                clock=self._clock,
                model_lock=self.model_lock,
                lost_error=self.lost_error,
                traceback_of=self.traceback_of,
            )
            is_async = self._stream_model.is_async or inspect.iscoroutinefunction(model.handle)
            if is_async and not inline:
                self._methods.start_loop()
        self._methods.run(model.load)
        # From here on, the model holds resources that `close` must free.
        self._model = model
        self.predict = model.predict
        self.is_async = inspect.iscoroutinefunction(model.predict)
        self.inputs = ModelInputs.of(model, self._name)
        self.check = OutputCheck(self._name, model.outputs, "step" if overrides(model, "step") else "predict")
        self.sequences = model.sequences.with_values(settings.sequences)
        self.rows_max, self._delay_ms = _batch_limits(model, self._name, settings)
        self.writes_inputs = model.writes_inputs
        if not settings.warm_up:
            return
        self._methods.run(model.warm_up)
        if type(model).warm_up is Model.warm_up and (overrides(model, "predict") or overrides(model, "step")):
            self._call_with_zeros()

    def _call_with_zeros(self) -> None:
        """Make the slow first call, if the model has no warm-up and declares its row shapes."""
        zeros = self.inputs.zeros(1)
        if zeros is None:
            return
        try:
            if self._stepper is None:
                self._methods.run(lambda: self._predict(zeros))
            else:
                self._step_with_zeros(zeros)
        except Exception as error:
            # Zeros may be an input that the model does not accept.
            if self.lost_error(error) is not None:
                raise
            _log.debug("warm-up with zeros failed", extra={"model": self._name}, exc_info=True)

    def _step_with_zeros(self, zeros: Mapping[str, Array]) -> None:
        """Do the only step of a sequence, and report its end to the model as usual."""
        try:
            self.call(CallInputs((zeros,), 1, orders=(_FIRST_STEP,)), CALL.get())
        finally:
            self.end_sequences([SequenceEnding(_FIRST_STEP.number, _FIRST_STEP.id, 1, SequenceEnd.ENDED)])

    @override
    def call(self, inputs: CallInputs, call: Call, deliver: Deliver | None = None) -> CallResult:
        """Call the model. A step counts only when `deliver` has returned."""
        if self._fault.reason is not None:
            self._fault.raise_error()
        token = CALL.set(call)
        try:
            if inputs.requests:
                return self._call_opaque(inputs)
            began_s = self._clock.now()
            tensors = _joined(inputs, writes_inputs=self.writes_inputs)
            joined_s = self._clock.now()
            if self._stepper is not None:
                return self._step(self._stepper, tensors, inputs, joined_s - began_s, deliver)
            if self._stream_model is not None:
                returned = self._run_locked(lambda: self._predict(tensors))
            else:
                # A direct call: there is neither an event loop nor a lock to wait for.
                returned = self.resolve(self.inputs.call(self.predict, tensors))
            inferred_s = self._clock.now()
            outputs = self.check(returned, inputs.rows, inputs.request_id)
            if deliver is not None:
                deliver(outputs, ())
            return CallResult(
                outputs, joined_s - began_s, inferred_s - joined_s, self._clock.now() - inferred_s
            )
        except BaseException as error:
            if (lost := self.lost_error(error)) is not None:
                raise lost from error
            raise
        finally:
            CALL.reset(token)

    def lost_error(self, error: BaseException) -> InstanceLostError | None:
        """Return the error to report instead of an unrecoverable one of the model, else None.

        The backend is lost then.
        """
        return self._fault.check(error, self._is_unrecoverable)

    @override
    def traceback_of(self, error: BaseException) -> ModelTraceback | None:
        return self._tracebacks(error)

    def _call_opaque(self, inputs: CallInputs) -> CallResult:
        model = self._model
        assert model is not None
        if isinstance(inputs.requests[0], HandleRequest):
            return self._handle(model, inputs.requests)
        (request,) = inputs.requests
        began_s = self._clock.now()
        returned = self._run_locked(lambda: model.predict_request(request))
        response = check_response(self.metadata, returned, request)
        return CallResult({}, infer_s=self._clock.now() - began_s, responses=(response,))

    def _handle(self, model: Model, requests: Sequence[HandleRequest]) -> CallResult:
        began_s = self._clock.now()
        # A list of its own, since the model may change it.
        returned = self._run_locked(lambda: model.handle(list(requests)))
        inferred_s = self._clock.now()
        runs_async = self._methods.loop is not None or self._is_inline
        responses = [
            r
            if isinstance(r.body, bytes)
            else _chunked(r, self._name, self.open_stream, runs_async=runs_async)
            for r in check_responses(self._name, returned, len(requests))
        ]
        output_s = self._clock.now() - inferred_s
        return CallResult({}, infer_s=inferred_s - began_s, output_s=output_s, responses=responses)

    def _step(
        self,
        stepper: Stepper,
        tensors: Mapping[str, Array],
        inputs: CallInputs,
        input_s: float,
        deliver: Deliver | None,
    ) -> CallResult:
        model = self._model
        assert model is not None
        began_s = inferred_s = self._clock.now()

        def call(states: States) -> Outputs:
            nonlocal inferred_s
            rows = len(states)
            returned = self.resolve(self.inputs.call(partial(model.step, states), tensors))
            inferred_s = self._clock.now()
            return self.check(returned, rows, "")

        outputs, flags, checkpoints = stepper.step(inputs.orders, call, deliver)
        ended_s = self._clock.now()
        return CallResult(outputs, input_s, inferred_s - began_s, ended_s - inferred_s, flags, checkpoints)

    @override
    def end_sequences(self, endings: Sequence[SequenceEnding]) -> None:
        assert self._stepper is not None, "the model has a step"
        self._fault.raise_error()
        self._stepper.end(endings)

    def resolve(self, returned: Any) -> Any:
        """Return the result of `predict`, awaited if `predict` returned a coroutine."""
        if not isinstance(returned, CoroutineType):
            return returned
        self.is_async = True
        return self._methods.run_coroutine(returned)

    def _predict(self, tensors: Mapping[str, Array]) -> Any:
        returned = self.inputs.call(self.predict, tensors)
        # An ``async def`` is known before; a function that wraps one is known only now.
        self.is_async = self.is_async or inspect.iscoroutine(returned)
        return returned

    @override
    def cancel(self) -> None:
        """Cancel an asynchronous `predict`. A plain `predict` can look at `current_call()`."""
        self._methods.cancel()

    @property
    @override
    def lost(self) -> bool:
        return self._fault.reason is not None

    @property
    def lost_reason(self) -> str | None:
        """The unrecoverable error that lost it, for clients; None while it can be called."""
        return self._fault.reason

    @property
    @override
    def loss(self) -> InstanceLostError | None:
        return self._fault.error()

    @override
    def on_lost(self, hook: Callable[[], None]) -> None:
        self._on_lost = hook
        if self.lost:
            hook()

    def _lose(self) -> None:
        hook = self._on_lost
        if hook is not None:
            # First, so that a client that sees its stream fail does not find the instance alive.
            hook()
        if self._stream_model is not None:
            self._stream_model.end_all(self._end_error)

    @override
    def restart(self) -> None:
        """Do nothing: only another process can load a lost model again (`BackendFactory.replace`)."""

    # Streams

    @override
    def open_stream(self, stream: StreamCall) -> None:
        model = self._stream_model
        assert model is not None, "the model has a predict_stream"
        model.open(stream, self._methods.loop)

    # Closing

    @override
    def close(self) -> None:
        self._fault.remove_callback(self._lose)
        if self._stream_model is not None:
            self._stream_model.end_all(self._end_error)
            if not self._is_inline:
                # Inline streams may run in the event loops of their clients, possibly the one that
                # stops here.
                self._stream_model.wait_until_ended()
        model, self._model = self._model, None
        try:
            if model is not None:
                self._methods.run(model.close)
        except BaseException:  # noqa: BLE001 - an exception of a model must not keep its thread from ending
            _log.exception("closing the model failed", extra={"model": self._name})
        finally:
            self._methods.close()

    def _end_error(self) -> HeadraceError:
        return self._fault.error() or StoppedError(f"model {self._name} is stopping")

    def _run_hook(self, hook: Callable[[], Any]) -> Any:
        """Call a hook of a model with a `step`, and look at its error."""
        try:
            return self._methods.run_hook(hook)
        except BaseException as error:
            self.lost_error(error)
            raise

    def _run_locked(self, method: Callable[[], Any]) -> Any:
        """Call a method while no plain generator of the model runs."""
        if self._stream_model is None or self._methods.loop is not None:
            return self._methods.run(method)
        with self.model_lock:
            return self._methods.run(method)


def _batch_limits(model: Model, name: str, settings: ServeSettings) -> tuple[int, float]:
    """Return the rows and the delay in milliseconds of a batch: the settings', else the model's."""
    rows_max, delay_ms = settings.max_batch_rows, settings.max_batch_delay_ms
    rows_max = model.max_batch_rows if rows_max is None else rows_max
    delay_ms = model.max_batch_delay_ms if delay_ms is None else delay_ms
    if rows_max < 1:
        raise ModelLoadError(name, f"max_batch_rows must be 1 or more, not {rows_max}")
    if delay_ms < 0:
        raise ModelLoadError(name, f"max_batch_delay_ms must be 0 or more, not {delay_ms}")
    return rows_max, delay_ms


def _metadata(
    model: Model,
    inputs: ModelInputs,
    name: str,
    version: str | None,
    fingerprint: str,
    *,
    rows_max: int,
    delay_ms: float,
) -> ModelMetadata:
    """Return the description of a loaded model."""
    is_stateful = overrides(model, "step")
    return ModelMetadata(
        name=name,
        version=version,
        platform=type(model).__name__,
        inputs=inputs.specs,
        outputs=model.outputs,
        max_batch_rows=rows_max,
        max_batch_delay_ms=delay_ms,
        fingerprint=fingerprint,
        can_predict=is_stateful or overrides(model, "predict"),
        can_stream=is_stateful or overrides(model, "predict_stream"),
        can_handle=overrides(model, "handle"),
        is_stateful=is_stateful,
        sequences_live_max=model.sequences.live_max if is_stateful else None,
        whole_requests=model.predict_request is not None,
        bytes_as=model.bytes_as,
    )


def _joined(inputs: CallInputs, *, writes_inputs: bool) -> Mapping[str, Array]:
    """Return all rows in arrays that the model may write into.

    A retry then finds its rows unchanged.
    """
    parts = inputs.parts
    if len(parts) > 1:
        return concatenate(parts)
    if inputs.fresh:
        return parts[0]
    tensors: dict[str, Array] = {}
    for name, data in parts[0].items():
        if writes_inputs:
            tensors[name] = data.copy()
        else:
            tensors[name] = data if data.flags.c_contiguous else np.ascontiguousarray(data)
    return tensors


def _chunked(
    response: HandleResponse, name: str, open_stream: Callable[[StreamCall], None], *, runs_async: bool
) -> ChunkedResponse:
    """Return a response whose body is an iterator; `runs_async` if there is an event loop for it."""
    body = response.body
    if not isinstance(body, Iterator) and not runs_async:
        raise ModelContractError(
            name, "handle returned an async iterator: write async def handle, or use a generator"
        )

    def open_body(stream: StreamCall) -> None:
        stream.body = body
        open_stream(stream)

    return ChunkedResponse(response, open_body)
