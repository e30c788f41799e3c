"""The contract of a user's model: one class, numpy arrays in, numpy arrays out.

A model can also read opaque requests itself (`HandleRequest`), and learn about its running call
(`current_call`).
"""

import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from headrace.core.errors import InstanceLostError, PredictorError
from headrace.core.sequence import SequenceEnd, SequenceLimits, SequenceState, States, UndoneStep
from headrace.core.tensor import DEFAULT_PRIORITY, Array, InferResponse, TensorSpec

Isolation = Literal["auto", "inline", "thread", "process"]
"""Isolation of an instance in a server; see `Model.isolation`."""

BytesAs = Literal["str", "bytes", "sent"]
"""Type of the elements of served BYTES inputs; see `Model.bytes_as`."""

StreamItem = InferResponse | Array | Mapping[str, Any]
"""An item of `predict_stream`: a response, one array, or a mapping by output name."""


BODY: Final = "body"
"""The name of a request's bytes, unless it is a multipart form, which names its parts."""


@dataclass(frozen=True, slots=True)
class HandleRequest:
    """A request that the model reads itself."""

    parts: Mapping[str, bytes]
    """Bytes by name: the fields and files of a multipart form. Any other body is named ``body``."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Headers by lower-case name, without ``authorization``."""
    id: str = ""
    deadline: float | None = None
    """Time of the clock at which the request expires, or None."""
    priority: int = DEFAULT_PRIORITY
    """Lower values are called first."""

    @property
    def body(self) -> bytes:
        """The bytes of a request that is no form; empty if it has none."""
        return self.parts.get(BODY, b"")


@dataclass(frozen=True, slots=True)
class HandleResponse:
    """A response that the model writes itself."""

    body: bytes | Iterator[bytes] | AsyncIterator[bytes] = b""
    """The whole body, or an iterator of its chunks, each of which is sent at once.

    A generator is closed when the client disconnects. Chunks of an async iterator need an
    ``async def handle``.
    """
    status: int = 200
    """The HTTP status, 200 to 599."""
    content_type: str = "application/octet-stream"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further headers, without those of the connection."""


class RowError(Exception):
    """An error that a model raises for single rows of its batch.

    Those rows fail; the others are predicted.

    ``raise RowError(3, "negative age")`` fails row 3, counted from 0 in the batch of the call. To
    fail several rows, pass a mapping: ``raise RowError({3: "negative age", 7: "no name"})``.
    headrace then calls `predict` again without them.
    """

    def __init__(self, row: int | Mapping[int, str], why: str = "") -> None:
        # Any other value is an index, also a numpy integer.
        self.rows: dict[int, str] = dict(row) if isinstance(row, Mapping) else {int(row): why}
        super().__init__("; ".join(f"row {r}: {w}" for r, w in sorted(self.rows.items())))


class Model:
    """A model, written once: streamed, served, queued and batch-transformed unchanged.

    Subclass it and write `predict`; every other member has a default. One object is one *instance*.
    The thread (or process) that creates and loads an instance also calls it, one call at a time.

    ::

        class Churn(Model):
            max_batch_rows = 256

            def load(self):
                self.weights = np.load("weights.npy")

            def predict(self, x):
                return x @ self.weights
    """

    max_batch_rows: int = 1024
    """Row limit of one call of `predict`."""
    max_batch_delay_ms: float = 2.0
    """Limit of the time that a row waits for co-batching, in milliseconds."""
    isolation: Isolation = "auto"
    """Isolation of an instance in a server: ``inline`` on the event loop (for calls of some
    microseconds), ``thread``, or ``process`` (a crash, and a held interpreter lock, affect no other
    instance). ``auto`` is inline if the warm-up measured short calls, else thread.
    """
    writes_inputs: bool = True
    """Whether `predict` may write into its input arrays. Set False to save a copy of them."""
    bytes_as: BytesAs = "str"
    """Type of the elements of BYTES inputs in a server: ``str`` (bytes that are not UTF-8 are
    refused), ``bytes`` (for images and files), or ``sent`` (as received: str in JSON, otherwise
    bytes).
    """
    inputs: tuple[TensorSpec, ...] = ()
    """Declared inputs of `predict`, checked for each request. Without a declaration, only the
    parameter names are known.
    """
    outputs: tuple[TensorSpec, ...] = ()
    """Declared outputs of `predict`. A single unnamed array is called `output`.

    They are also the outputs of a request of zero rows, for which `predict` is not called.
    """
    sequences: SequenceLimits = SequenceLimits()
    """Limits of the live sequences, for models with a `step`."""

    def load(self) -> None:
        """Load the model. Called once per instance, before any other method.

        An exception here becomes a ModelLoadError.
        """

    def warm_up(self) -> None:
        """Make the first, slow calls of the model. Called once, after `load`."""

    def predict(self, /, *args: Any, **tensors: Any) -> Array | Mapping[str, Array]:
        """Predict a whole batch.

        The arguments are numpy arrays by input name, first axis rows. Numbers are float32 unless
        `inputs` declares another datatype; text is an object array of str. The model owns these
        arrays; headrace does not modify them afterwards.

        Return one array, or a mapping from output names to arrays, with one row for each input row.
        Raise `RowError` for rows that cannot be predicted. May be ``async def``.
        """
        raise NotImplementedError(f"{type(self).__name__} has no predict method")

    predict_request: Any = None
    """For adapters of other servers' models: a method ``(request: InferRequest) -> InferResponse``,
    or ``async def``. A server calls it instead of `predict`, in its own process, with one whole
    request and its parameters. The response need not have a row for each row.
    """

    def predict_stream(self, requests: Any, /) -> AsyncIterator[StreamItem] | Iterator[StreamItem]:
        """Yield responses to a stream of requests; either side may have one item or many.

        An ``async def`` generator receives an async iterator of `InferRequest`, a plain generator a
        plain iterator. A client that does not stream sends one request. Each yielded item is sent
        at once.

        An instance serves many streams at a time. Async generators switch at each ``await``. Plain
        generators run in threads of their own, one at a time, and switch at each ``yield`` and
        while they wait for a request. Calls of `predict` run in between. When the client
        disconnects, the generator is closed (GeneratorExit, CancelledError). ::

            async def predict_stream(self, requests):
                async for request in requests:
                    for word in request["text"][0].split():
                        yield {"word": [word]}
        """
        raise NotImplementedError(f"{type(self).__name__} has no predict_stream method")

    def handle(self, requests: Sequence[HandleRequest], /) -> Sequence[HandleResponse | bytes | str]:
        """Respond to a batch of requests that headrace does not read.

        For requests that are no tensors, such as forms, files and the protocols of other servers.
        Each request has bytes by name and headers. Return one response for each, in order: bytes,
        text, or a `HandleResponse` with a status, headers, and a body that may be an iterator of
        chunks. A server passes on requests to ``/v2/models/NAME/handle``, up to `max_batch_rows`
        at once.

        Raise `RowError` for requests that are refused; the others are passed again without them.
        Any other exception fails the requests that raise it alone. `current_call` tells when no
        client waits any more. May be ``async def``. ::

            def handle(self, requests):
                images = [decode(request.body) for request in requests]
                return [HandleResponse(png, content_type="image/png") for png in self.net(images)]
        """
        raise NotImplementedError(f"{type(self).__name__} has no handle method")

    def step(self, states: States, /, *args: Any, **tensors: Any) -> Array | Mapping[str, Array]:
        """Run one step of many sequences.

        For models whose output depends on earlier requests; replaces `predict`.

        The `tensors` are as for `predict`, but each row is a step of a different sequence.
        ``states[row]`` is the state of that sequence: a mapping of arrays, empty before the first
        step, for this method to update. The requests of a sequence run in order, one step at a
        time; a request of n rows is n steps.

        Call ``states[row].reschedule()`` to get another step with the same row. The outputs of all
        its steps reach a streaming client one by one; other clients get them concatenated along the
        rows after the last step. If this method raises, no state changes, and `steps_undone` is called.
        May be ``async def``. ::

            def step(self, states, x):
                h = states.stack("h", (128,))
                y, h = self.cell(x, h)
                states.keep("h", h)
                return y
        """
        raise NotImplementedError(f"{type(self).__name__} has no step method")

    def steps_undone(self, undone: Sequence[UndoneStep], /) -> None:
        """Free the resources that steps took, other than their states, because the steps are undone.

        Called once after each failed call of `step`, before any of its rows is repeated: this
        method raised (also `RowError`), was cancelled, or returned invalid outputs. `undone` names
        all rows of the call, in order, also rows that `step` had not reached. Free those resources
        of ``state`` that ``restored`` does not name. Called as well before a step that begins with
        the state of a checkpoint, for the state that the checkpoint replaces. It is not called if
        the process died. A cancellation of the call does not interrupt it. An exception here is
        logged. May be ``async def``. ::

            def steps_undone(self, undone):
                for step in undone:
                    taken = set(step.state.get("blocks", ())) - set(step.restored.get("blocks", ()))
                    self.pool.free(taken)
        """

    def sequence_ended(self, state: SequenceState, why: SequenceEnd, /) -> None:
        """Free the resources that the model holds for an ended sequence, other than its state.

        Called once for each sequence that had a step. If the process of a sequence died, the next
        process calls this with `INSTANCE_LOST` and an empty state. A sequence with a checkpoint
        that moves to another instance or server ends here as `STOPPED`. An exception here is logged.
        """

    def is_unrecoverable(self, error: BaseException, /) -> bool:
        """Return True if the process that raised `error` cannot call the model any more.

        Called with each exception of a method of the model, except for lack of memory. headrace then
        replaces the process; a model in a thread is loaded again in a process of its own. The
        default recognizes broken devices, such as a device-side assertion of CUDA. Must not call
        the device. ::

            def is_unrecoverable(self, error):
                return isinstance(error, BoardGoneError) or super().is_unrecoverable(error)
        """
        return is_device_broken(error)

    def close(self) -> None:
        """Free the resources that `load` took. Called once, when the instance is removed."""


@dataclass(frozen=True, slots=True)
class ModelRecipe:
    """A function and its arguments from which another process can create the same model.

    `function` is ``package.module:name``; a class is a function too. `arguments` are its keyword
    arguments, as JSON values.
    """

    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Call(Protocol):
    """A running call of `Model.predict`, `Model.predict_stream` or `Model.step`."""

    @property
    def deadline_s(self) -> float | None:
        """Seconds until the last deadline of the call's requests.

        Negative when it has passed; None if a request has no deadline.
        """
        ...

    @property
    def cancelled(self) -> bool:
        """True if no client waits for the result any more.

        Each client has disconnected or cancelled, or its deadline has passed.
        """
        ...


class _NoCall:
    """The value outside of any call."""

    deadline_s = None
    cancelled = False


NO_CALL: Final = _NoCall()
CALL: ContextVar[Call] = ContextVar("headrace_call", default=NO_CALL)
"""The running call, set by the engine around every call of a model."""


def current_call() -> Call:
    """Return the model call in which this code runs, or outside of calls a call without a deadline.

    A thread cannot be stopped from outside, so a model with long steps should check from time to
    time::

        for step in range(steps):
            if headrace.current_call().cancelled:
                raise TimeoutError("no client waits for this call")  # seen by no client either
            ...
    """
    return CALL.get()


ServingMethod = Literal["predict", "predict_stream", "handle", "step"]
"""The methods of a `Model` that serve requests."""


def overrides(model: Model, method: ServingMethod) -> bool:
    """Return True if the model has a method of its own instead of that of `Model`."""
    return getattr(getattr(model, method), "__func__", None) is not getattr(Model, method)


# The errors of which NVIDIA's runtime API says that the process must be terminated, and their equals
# of HIP. Others, such as "invalid configuration argument", concern one call only.
_BROKEN: Final = re.compile(
    r"device-side assert"
    r"|\b(?:cuda|cudnn|cublas|hip)[^\n]*(?:"
    r"illegal memory access|unspecified launch failure|launch timed out|illegal instruction"
    r"|hardware stack error|misaligned address|operation not supported on global/shared address space"
    r"|invalid program counter|uncorrectable (?:ecc|nvlink) error|context is destroyed|unknown error)"
    r"|\b(?:cuda|cudnn|cublas|cufft|miopen|hipblas|rocblas)_(?:status_)?execution_failed"
    r"|error_device_lost",
    re.IGNORECASE,
)


def is_device_broken(error: BaseException) -> bool:
    """Return True if the text of an error says that this process cannot use a device any more.

    Errors of remote endpoints and of other instances are about devices of other processes.
    """
    if isinstance(error, (InstanceLostError, PredictorError)):
        return False
    try:
        return _BROKEN.search(str(error)) is not None
    except Exception:  # noqa: BLE001 - a broken __str__ tells nothing
        return False
