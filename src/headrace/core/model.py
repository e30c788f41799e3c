"""The contract a user writes: one class, numpy in, numpy out."""

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.core.sequence import SequenceEnd, SequenceLimits, SequenceState, States
from headrace.core.tensor import Array, InferResponse, TensorSpec

Isolation = Literal["auto", "inline", "thread", "process"]
"""Where an instance runs when it is served; see `Model.isolation`."""

BytesAs = Literal["str", "bytes", "sent"]
"""What the elements of served BYTES inputs are; see `Model.bytes_as`."""

StreamItem = InferResponse | Array | Mapping[str, Any]
"""What `predict_stream` yields: a response, one array, or a mapping by output name."""


class RowError(Exception):
    """Raised by a model for one row of its batch; that row fails, the others are predicted.

    ``raise RowError(3, "negative age")``: `row` counts from 0 in the batch that `predict` was given. To refuse
    several rows at once pass a mapping: ``raise RowError({3: "negative age", 7: "no name"})``. The engine
    calls `predict` again without them.
    """

    def __init__(self, row: int | Mapping[int, str], why: str = "") -> None:
        # Whatever is no mapping is an index, also one of numpy's.
        self.rows: dict[int, str] = dict(row) if isinstance(row, Mapping) else {int(row): why}
        super().__init__("; ".join(f"row {r}: {w}" for r, w in sorted(self.rows.items())))


class Model:
    """A model, written once: streamed, served, queued and batch-transformed unchanged.

    Subclass it and write `predict`; everything else has a default. One object is one *instance*: it is made
    and loaded in the thread (or process) that will call it, and called by one caller at a time.

    ::

        class Churn(Model):
            max_batch_rows = 256

            def load(self):
                self.weights = np.load("weights.npy")

            def predict(self, x):
                return x @ self.weights
    """

    max_batch_rows: int = 1024
    """The most rows that one call of `predict` is given."""
    max_batch_delay_ms: float = 2.0
    """How long a row may wait for company."""
    isolation: Isolation = "auto"
    """Where an instance runs when it is served: ``inline`` on the server's event loop (models of some microseconds),
    ``thread``, or ``process`` (its crash, and its hold on Python's lock, touch nobody else). ``auto`` is inline where
    the warm-up measured a call short enough, else thread."""
    writes_inputs: bool = True
    """Whether `predict` may write into the arrays that it is given. One that never does is spared a copy of them."""
    bytes_as: BytesAs = "str"
    """What the elements of BYTES inputs are where requests are served: ``str``, and bytes that are no UTF-8 are refused;
    ``bytes``, for models of images and files; or as they were ``sent``: str in JSON, bytes elsewhere."""
    inputs: tuple[TensorSpec, ...] = ()
    """What `predict` takes, for models that want it checked; otherwise the parameter names alone are known."""
    outputs: tuple[TensorSpec, ...] = ()
    """What `predict` returns; a single unnamed array is called `output`."""
    sequences: SequenceLimits = SequenceLimits()
    """How many sequences of a model with a `step` may live, and for how long."""

    def load(self) -> None:
        """Called once per instance, before anything else. Whatever it raises is a ModelLoadError."""

    def warm_up(self) -> None:
        """Called once after `load`; a place to make the first, slow call."""

    def predict(self, *args: Any, **tensors: Any) -> Array | Mapping[str, Array]:
        """Predict a whole batch.

        Takes numpy arrays by input name, first axis rows (numbers float32 unless `inputs` says otherwise,
        text as object arrays of str). They are its own, and stay as they are for as long as it keeps them. Returns one array, or a mapping by output name, with as many rows. May be
        ``async def``. Raise `RowError` for rows that cannot be predicted.
        """
        raise NotImplementedError(f"{type(self).__name__} has no predict method")

    predict_request: Any = None
    """For adapters of other servers' models: a method ``(request: InferRequest) -> InferResponse``, perhaps ``async
    def``, that is called instead of `predict` where requests are served: with one whole request, its parameters
    included, never joined with others, in the server's own process. What it returns need not have a row for each row."""

    def predict_stream(self, requests: Any, /) -> AsyncIterator[StreamItem] | Iterator[StreamItem]:
        """Answer a stream of requests by a stream of responses, in any combination of one and many.

        An ``async def`` generator is given an async iterator of `InferRequest` (one, for a caller who does not
        stream), a plain generator a plain one. Each item that it yields goes to its caller at once. Many streams of one
        instance run in turns: async ones change at every ``await``, plain ones at every ``yield`` and wherever they
        wait for a request; plain ones run in threads of their own. Batches run in between. A caller who goes closes
        the generator (GeneratorExit, CancelledError). ::

            async def predict_stream(self, requests):
                async for request in requests:
                    for word in request["text"][0].split():
                        yield {"word": [word]}
        """
        raise NotImplementedError(f"{type(self).__name__} has no predict_stream method")

    def step(self, states: States, /, *args: Any, **tensors: Any) -> Array | Mapping[str, Array]:
        """Do one step of many sequences, for models whose answer depends on the last; instead of `predict`.

        `tensors` are as for `predict`, but every row is a step of another sequence, whose own state is
        ``states[row]``: a mapping of arrays, empty at its start, which this changes. Requests of one sequence come in order, one
        step at a time; a request of several rows is as many steps. A sequence whose ``states[row].go_on()`` is
        called gets another step with the same row: what its steps return goes to its caller as it comes, or, joined along
        the rows, when the last is done. May be ``async def``. When it raises, no state has changed. ::

            def step(self, states, x):
                h = states.stack("h", (128,))
                y, h = self.cell(x, h)
                states.keep("h", h)
                return y
        """
        raise NotImplementedError(f"{type(self).__name__} has no step method")

    def sequence_ended(self, state: SequenceState, why: SequenceEnd, /) -> None:
        """A sequence is over: free what it held beside its state. What this raises is logged.

        Told once for every sequence that had a step. Of one whose process died, the next process is told (`INSTANCE_LOST`), with
        an empty state. Sequences that have a checkpoint, and go on elsewhere, end here as `STOPPED`.
        """

    def close(self) -> None:
        """Called once when the instance goes; free what `load` took."""


@dataclass(frozen=True, slots=True)
class ModelRecipe:
    """How another process makes the same model, in words alone: a function to import, and what to call it with.

    `function` is ``package.module:name`` (a class is a function too), `arguments` are its keyword arguments: plain
    values, as JSON has them.
    """

    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


def predicts(model: Model) -> bool:
    """Whether the model answers batches: it has a `predict` of its own."""
    return getattr(model.predict, "__func__", None) is not Model.predict


def streams(model: Model) -> bool:
    """Whether the model answers streams: it has a `predict_stream` of its own."""
    return getattr(model.predict_stream, "__func__", None) is not Model.predict_stream


def steps(model: Model) -> bool:
    """Whether the model answers sequences: it has a `step` of its own."""
    return getattr(model.step, "__func__", None) is not Model.step
