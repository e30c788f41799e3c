"""Requests and responses for every protocol and model: named tensors, first axis rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ModelInputError
from headrace.core.frozen import statically_frozen
from headrace.core.model_traceback import ModelTraceback

Array = NDArray[Any]

DEFAULT_PRIORITY = 10
"""Priority of requests without one. Lower numbers are more urgent."""

# Datatype names of the Open Inference Protocol. numpy has no BF16: such tensors travel as uint16
# bit patterns.
_DATATYPES: dict[str, str] = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}

_DTYPES: dict[str, np.dtype[Any]] = {v: np.dtype(k) for k, v in _DATATYPES.items()}

# Keyed by numpy's type numbers: hashing a dtype takes four times as long. Some numbers name the
# same type twice (a C long is an int64).
_NUMBERS: dict[int, str] = {
    dtype.num: _DATATYPES[dtype.name]
    for dtype in map(np.dtype, np.typecodes["All"])
    if dtype.name in _DATATYPES
}

_DTYPES["BYTES"] = np.dtype(object)


def datatype_of(dtype: np.dtype[Any]) -> str:
    """Return the protocol name of a numpy dtype; strings, bytes and objects are BYTES.

    Raises:
        TypeError: No protocol carries the dtype (complex, datetime, records).
    """
    known = _NUMBERS.get(dtype.num)
    if known is not None:
        return known
    if dtype.kind in "OSU":
        return "BYTES"
    raise TypeError(f"numpy dtype {dtype} has no Open Inference Protocol datatype")


def is_number(dtype: np.dtype[Any]) -> bool:
    """Return True if a numpy dtype is a protocol number in this machine's byte order."""
    return dtype.num in _NUMBERS and dtype.isnative


def dtype_of(datatype: str) -> np.dtype[Any]:
    """Return the numpy dtype of a protocol datatype; BYTES is object (elements are bytes or str).

    Raises:
        TypeError: The datatype is unknown.
    """
    try:
        return _DTYPES[datatype]
    except KeyError:
        known = ", ".join(_DTYPES)
        raise TypeError(f"unknown datatype {datatype!r}; the datatypes are {known}") from None


def little_endian(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in the little-endian order of the protocol.

    On little-endian machines this is numpy's own object for the type; ``newbyteorder`` makes an
    equal object that an identity check does not find.
    """
    return np.dtype(f"<{dtype.kind}{dtype.itemsize}")


def text_array(values: Sequence[object]) -> Array:
    """Return strings and bytes as a flat object array.

    numpy's own conversion would pad them to the longest.
    """
    made = np.empty(len(values), object)
    made[:] = values
    return made


def _nothing() -> dict[str, Any]:
    return {}


@statically_frozen
class Tensor:
    """A named array, first axis rows. BYTES tensors are object arrays of bytes or str.

    `parameters` has further information of the protocol's tensor, such as a content type. Few
    models read it.
    """

    name: str
    data: Array
    parameters: Mapping[str, Any] = field(default_factory=_nothing)

    @property
    def datatype(self) -> str:
        """Open Inference Protocol name of the element type, such as FP32 or BYTES."""
        return datatype_of(self.data.dtype)

    @property
    def rows(self) -> int:
        """Length of the first axis."""
        return int(self.data.shape[0])


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A model's declaration of one input or output.

    `shape` includes the row axis. -1 stands for a variable size; nearly always, the row axis is
    variable. None if unknown.
    """

    name: str
    datatype: str
    shape: tuple[int, ...] | None = None


def empty_array(spec: TensorSpec) -> Array:
    """Return the array of zero rows of an input or output. Variable sizes are 0.

    Without a shape, the array has the row axis only. BF16 becomes FP32.

    Raises:
        TypeError: The datatype is unknown.
    """
    sizes = [max(size, 0) for size in (spec.shape or ())[1:]]
    return np.empty((0, *sizes), dtype_of("FP32" if spec.datatype == "BF16" else spec.datatype))


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """A predictor's description of its model. Empty `inputs` or `outputs` mean unknown.

    - `max_batch_rows`: row limit of one call.
    - `max_batch_delay_ms`: limit of the wait for co-batching, in milliseconds.
    - `fingerprint`: changes with the model's file or code. A resumed run refuses another
      fingerprint.
    - `can_predict`, `can_stream`, `can_handle`: whether `predict`, `predict_stream` and `handle`
      requests are served.
    - `whole_requests`: strict requests reach the model one at a time and unchanged
      (`Model.predict_request`, and endpoints).
    - `bytes_as`: type of text elements (`Model.bytes_as`).
    - `is_stateful`: requests belong to sequences (`Model.step`). Such a model can also predict and
      stream.
    - `sequences_live_max`: the model's own limit of live sequences.
    """

    name: str
    version: str | None = None
    platform: str = ""
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    max_batch_rows: int = 1024
    max_batch_delay_ms: float = 2.0
    fingerprint: str = ""
    can_predict: bool = True
    can_stream: bool = False
    can_handle: bool = False
    whole_requests: bool = False
    bytes_as: Literal["str", "bytes", "sent"] = "str"
    is_stateful: bool = False
    sequences_live_max: int | None = None

    def only_input(self, purpose: str) -> TensorSpec:
        """Return the model's only input, for `purpose`: ``x`` of float32 if the inputs are unknown.

        Raises ModelInputError if the model has several.
        """
        if len(self.inputs) == 1:
            return self.inputs[0]
        if not self.inputs:
            return TensorSpec("x", "FP32")
        names = ", ".join(spec.name for spec in self.inputs)
        raise ModelInputError(self.name, f"{purpose} is one input, but the model has several: {names}")


@statically_frozen
class InferRequest:
    """Rows for one model, in tensors with equal first axes.

    `deadline` is a time on the clock's monotonic seconds, or None for no deadline. `priority` is 1
    for the most urgent requests; of waiting requests, lower numbers go first. `namespace` is the
    tenant of the client, the job that sends the request, or empty: one id names a different sequence
    in each namespace.
    """

    inputs: tuple[Tensor, ...]
    id: str = ""
    outputs: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=_nothing)
    deadline: float | None = None
    priority: int = DEFAULT_PRIORITY
    namespace: str = ""

    def __getitem__(self, name: str) -> Array:
        """Return the values of an input. The KeyError for an unknown name lists the inputs."""
        for tensor in self.inputs:
            if tensor.name == name:
                return tensor.data
        raise KeyError(
            f"no input {name!r}; the inputs are {', '.join(repr(t.name) for t in self.inputs) or 'none'}"
        )

    @property
    def rows(self) -> int:
        """Number of rows.

        Raises:
            ModelInputError: The tensors disagree on the rows, have no row axis, or there are none.
        """
        if len(self.inputs) == 1 and (shape := self.inputs[0].data.shape):
            return shape[0]
        if not self.inputs:
            raise ModelInputError("?", "a request needs at least one input tensor")
        if scalars := ", ".join(repr(t.name) for t in self.inputs if not t.data.ndim):
            raise ModelInputError("?", f"input {scalars} has no row axis: the first axis must be rows")
        rows = self.inputs[0].rows
        if any(t.rows != rows for t in self.inputs):
            sizes = ", ".join(f"{t.name}: {t.rows}" for t in self.inputs)
            raise ModelInputError("?", f"inputs disagree on the number of rows ({sizes})")
        return rows

    def within(self, namespace: str) -> "InferRequest":
        """Return the request with a namespace for its sequences."""
        return replace(self, namespace=namespace) if namespace else self

    def with_row_axes(self) -> "InferRequest":
        """Return the request with each tensor of shape [] as one row, of shape [1]."""
        if all(t.data.ndim for t in self.inputs):
            return self
        inputs = tuple(t if t.data.ndim else replace(t, data=t.data.reshape(1)) for t in self.inputs)
        return replace(self, inputs=inputs)


@dataclass(frozen=True, slots=True)
class RowFailure:
    """A row of a request that could not be predicted. `row` is its index in the request.

    `traceback` is that of the unexpected exception that the model raised for the row alone, if any.
    """

    row: int
    why: str
    attempts: int = 1
    traceback: ModelTraceback | None = field(default=None, repr=False, compare=False)


@statically_frozen
class InferResponse:
    """Output tensors for the rows that succeeded, in request order, and the rows that failed.

    For every output, ``rows of the request == rows of the output + len(failures)``. `failures` is
    sorted by row. If every row failed, `outputs` is empty.
    """

    outputs: tuple[Tensor, ...]
    model_name: str = ""
    model_version: str | None = None
    id: str = ""
    parameters: Mapping[str, Any] = field(default_factory=_nothing)
    failures: tuple[RowFailure, ...] = ()

    def __getitem__(self, name: str) -> Array:
        """Return the values of an output. The KeyError for an unknown name lists the outputs."""
        for tensor in self.outputs:
            if tensor.name == name:
                return tensor.data
        raise KeyError(
            f"no output {name!r}; the outputs are {', '.join(repr(t.name) for t in self.outputs) or 'none'}"
        )
