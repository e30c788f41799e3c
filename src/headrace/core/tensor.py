"""Requests and responses as every protocol and every model sees them: named tensors, rows first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ModelInputError
from headrace.core.record import record

Array = NDArray[Any]

DEFAULT_PRIORITY = 10
"""Of requests that name none: more urgent ones are below, less urgent ones above."""

# Datatype names of the Open Inference Protocol. BF16 has no numpy type: it travels as uint16 bit patterns.
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
# By numpy's own numbers, some of which name the same type twice (a C long is an int64): to hash a dtype takes four times as long.
_NUMBERS: dict[int, str] = {
    dtype.num: _DATATYPES[dtype.name]
    for dtype in map(np.dtype, np.typecodes["All"])
    if dtype.name in _DATATYPES
}
_DTYPES["BYTES"] = np.dtype(object)


def datatype_of(dtype: np.dtype[Any]) -> str:
    """The protocol's name of a numpy dtype; strings, bytes and objects are BYTES.

    Raises TypeError for a dtype that no protocol carries (complex, datetime, records).
    """
    known = _NUMBERS.get(dtype.num)
    if known is not None:
        return known
    if dtype.kind in "OSU":
        return "BYTES"
    raise TypeError(f"numpy dtype {dtype} has no Open Inference Protocol datatype")


def is_number(dtype: np.dtype[Any]) -> bool:
    """Whether a numpy dtype is one of the protocol's numbers, in this machine's byte order."""
    return dtype.num in _NUMBERS and dtype.isnative


def dtype_of(datatype: str) -> np.dtype[Any]:
    """The numpy dtype of a protocol datatype; BYTES is object (elements are bytes or str)."""
    try:
        return _DTYPES[datatype]
    except KeyError:
        known = ", ".join(_DTYPES)
        raise TypeError(f"unknown datatype {datatype!r}; known are {known}") from None


def little_endian(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The same numbers in the byte order of the protocol; where the machine has that too, numpy's one object for the type.

    ``newbyteorder`` makes another object, which is equal, but not found by identity.
    """
    return np.dtype(f"<{dtype.kind}{dtype.itemsize}")


def text_array(values: Sequence[object]) -> Array:
    """Strings and bytes as a flat array of objects; numpy by itself would pad them all to the longest."""
    made = np.empty(len(values), object)
    made[:] = values
    return made


def _nothing() -> dict[str, Any]:
    return {}


@record
class Tensor:
    """A named array whose first axis is rows. BYTES tensors are object arrays of bytes or str.

    `parameters` is what a protocol's tensor says of itself besides, such as a content type; few models read it.
    """

    name: str
    data: Array
    parameters: Mapping[str, Any] = field(default_factory=_nothing)

    @property
    def datatype(self) -> str:
        """The Open Inference Protocol's name of the element type, such as FP32 or BYTES."""
        return datatype_of(self.data.dtype)

    @property
    def rows(self) -> int:
        """Length of the first axis."""
        return int(self.data.shape[0])


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a model says of one input or output.

    `shape` includes the row axis; -1 is a size that may vary (the row axis nearly always). None: not known.
    """

    name: str
    datatype: str
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What a predictor says of its model. Empty `inputs` or `outputs` mean not known.

    `fingerprint` changes when the model's file or code changes: a resumed run refuses another one.
    `max_batch_rows` is the most rows for one call, `max_batch_delay_ms` how long a row may wait for company.
    `predicts` and `streams` say which of `predict` and `predict_stream` the model has, `whole_requests` that it is
    called with one request at a time (`Model.predict_request`), `bytes_as` what it wants of text (`Model.bytes_as`).
    `steps` says that its requests belong to sequences (`Model.step`); such a model predicts and streams, too. Of it,
    `sequences_live_max` is how many the model itself would have live at once.
    """

    name: str
    version: str | None = None
    platform: str = ""
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    max_batch_rows: int = 1024
    max_batch_delay_ms: float = 2.0
    fingerprint: str = ""
    predicts: bool = True
    streams: bool = False
    whole_requests: bool = False
    bytes_as: Literal["str", "bytes", "sent"] = "str"
    steps: bool = False
    sequences_live_max: int | None = None


@record
class InferRequest:
    """Rows for one model, in tensors that agree on their first axis.

    `deadline` is in the clock's monotonic seconds; None waits as long as it takes. `priority` is 1 for the most
    urgent; of requests that wait, lower numbers go first.
    """

    inputs: tuple[Tensor, ...]
    id: str = ""
    outputs: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=_nothing)
    deadline: float | None = None
    priority: int = DEFAULT_PRIORITY

    def __getitem__(self, name: str) -> Array:
        """An input's values by its name; KeyError names what there is."""
        for tensor in self.inputs:
            if tensor.name == name:
                return tensor.data
        raise KeyError(
            f"no input {name!r}; there are {', '.join(repr(t.name) for t in self.inputs) or 'none'}"
        )

    @property
    def rows(self) -> int:
        """How many rows; raises ModelInputError when the tensors disagree, have no rows' axis, or there are none."""
        if len(self.inputs) == 1 and (shape := self.inputs[0].data.shape):
            return shape[0]
        if not self.inputs:
            raise ModelInputError("?", "a request needs at least one input tensor")
        if scalars := ", ".join(repr(t.name) for t in self.inputs if not t.data.ndim):
            raise ModelInputError("?", f"input {scalars} has no axis of rows: the first axis must be rows")
        rows = self.inputs[0].rows
        if any(t.rows != rows for t in self.inputs):
            sizes = ", ".join(f"{t.name}: {t.rows}" for t in self.inputs)
            raise ModelInputError("?", f"inputs disagree on the number of rows ({sizes})")
        return rows


@dataclass(frozen=True, slots=True)
class RowFailure:
    """One row of a request that could not be predicted; `row` is its index in the request."""

    row: int
    why: str
    attempts: int = 1


@record
class InferResponse:
    """The answer: output tensors over the rows that succeeded, in request order, and the rows that did not.

    Law: ``rows of the request == rows of each output + len(failures)``. `failures` is sorted by row.
    When every row failed `outputs` is empty.
    """

    outputs: tuple[Tensor, ...]
    model_name: str = ""
    model_version: str | None = None
    id: str = ""
    parameters: Mapping[str, Any] = field(default_factory=_nothing)
    failures: tuple[RowFailure, ...] = ()

    def __getitem__(self, name: str) -> Array:
        """An output's values by its name; KeyError names what there is."""
        for tensor in self.outputs:
            if tensor.name == name:
                return tensor.data
        raise KeyError(
            f"no output {name!r}; there are {', '.join(repr(t.name) for t in self.outputs) or 'none'}"
        )
