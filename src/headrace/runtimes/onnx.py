"""ONNX files as models. The only module that imports onnxruntime."""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from math import prod
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from typing_extensions import override

from headrace.core.errors import ConfigError, MissingExtraError, ModelContractError, ModelLoadError
from headrace.core.model import Model
from headrace.core.tensor import Array, TensorSpec, dtype_of
from headrace.runtimes.model_io import decode_text, run_in_fixed_batches

try:
    import onnxruntime as _onnxruntime
except ImportError as _error:
    raise MissingExtraError("onnx", "an ONNX model") from _error

ort: Any = _onnxruntime  # onnxruntime has no types.

BATCH_BYTES: Final = 1 << 20
BATCH_ROWS_MIN: Final = 32
BATCH_ROWS_MAX: Final = 4096

_DATATYPES = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}
_THREADS_VARIABLE = "HEADRACE_ONNX_THREADS"
_CPU: Final = "CPUExecutionProvider"
_CUDA: Final = "CUDAExecutionProvider"
_TENSORRT: Final = "TensorrtExecutionProvider"
"""It is in every package for GPUs, but its libraries are not. It also compiles each model for minutes."""


class OnnxModel(Model):
    """An ONNX file. The file gives the names, types and shapes of inputs and outputs.

    A session has one thread by default: for small models, more instances use more cores better. It
    does not spin, so a waiting session costs nothing. A file with a fixed batch axis is called with
    that many rows at a time; the last call is padded with copies of its last row.

    Text is passed as str. Bytes are decoded as UTF-8, and a row that is not UTF-8 is refused
    (RowError). A sequence of maps from class to probability, the default output of scikit-learn's
    converters, becomes an array ``[n, classes]`` in the order of the first row's keys.

    Args:
        path: The file.
        intra_op_threads: Threads within one call, 0 for one per core. None means
            ``HEADRACE_ONNX_THREADS``, or 1 without that variable.
        providers: Execution providers in order of preference. None means onnxruntime's preference,
            without TensorRT.
    """

    writes_inputs = False

    def __init__(
        self, path: Path, *, intra_op_threads: int | None = None, providers: Sequence[str] | None = None
    ) -> None:
        self._path = path
        self._threads = _threads() if intra_op_threads is None else intra_op_threads
        self._providers = list(providers) if providers is not None else None
        self._session: Any = None

    @override
    def load(self) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        available = [name for name in ort.get_available_providers() if name != _TENSORRT]
        if _CUDA in available and self._providers != [_CPU]:
            _load_cuda_libraries()
        try:
            session = ort.InferenceSession(str(self._path), options, providers=self._providers or available)
        except Exception as error:
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise self._load_error(f"{self._path} is not an ONNX model that runs here: {why}") from error
        self._session = session
        inputs, outputs = session.get_inputs(), session.get_outputs()
        self._output_names = [o.name for o in outputs]
        self._fixed_rows = self._fixed_batch(inputs)
        self.inputs = tuple(self._input_spec(i) for i in inputs)
        self.max_batch_rows = _batch_rows(self.inputs)
        self.outputs = tuple(spec for o in outputs if (spec := self._output_spec(o)))
        self._texts = [s.name for s in self.inputs if s.datatype == "BYTES"]

    @override
    def close(self) -> None:
        self._session = None

    def _load_error(self, why: str) -> ModelLoadError:
        return ModelLoadError(self._path.stem, why)

    def _input_spec(self, value: Any) -> TensorSpec:
        datatype = _DATATYPES.get(value.type)
        if datatype is None:
            raise self._load_error(
                f"its input {value.name!r} has type {value.type}, which headrace does not support"
            )
        return TensorSpec(value.name, datatype, self._shape(value))

    def _output_spec(self, value: Any) -> TensorSpec | None:
        """Return the spec of an output, or None for a type without a spec.

        Sequences of tensors and optionals have no spec.
        """
        if value.type.startswith("seq(map("):
            return TensorSpec(value.name, "FP32", (-1, -1))
        datatype = _DATATYPES.get(value.type)
        return TensorSpec(value.name, datatype, self._shape(value)) if datatype else None

    def _shape(self, value: Any) -> tuple[int, ...] | None:
        """Return the shape with a variable number of rows, or None if the file has no shape."""
        sizes = [d if isinstance(d, int) else -1 for d in value.shape]
        return (-1 if self._fixed_rows else sizes[0], *sizes[1:]) if sizes else None

    def _fixed_batch(self, inputs: Sequence[Any]) -> int | None:
        """Return the size of the first axis if the file fixes it."""
        if not inputs:
            raise self._load_error("it has no inputs")
        sizes = {i.name: i.shape[0] for i in inputs if i.shape and isinstance(i.shape[0], int) and i.shape[0]}
        if len(set(sizes.values())) > 1:
            each = ", ".join(f"{size} for {name!r}" for name, size in sizes.items())
            raise self._load_error(
                f"the first axis must be rows in every input, but the file fixes it to {each}"
            )
        return next(iter(sizes.values()), None)

    @override
    def predict(self, /, **tensors: Array) -> Mapping[str, Array]:
        for name in self._texts:
            if name in tensors:
                tensors[name] = decode_text(name, tensors[name])
        if self._fixed_rows is None:
            return self._run(tensors)
        return run_in_fixed_batches(self._run, tensors, self._fixed_rows, self._path.stem)

    def _run(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        results = self._session.run(None, dict(tensors))
        outputs: dict[str, Array] = {}
        for name, result in zip(self._output_names, results, strict=True):
            outputs[name] = result if isinstance(result, np.ndarray) else self._from_maps(name, result)
        return outputs

    def _from_maps(self, name: str, result: Any) -> Array:
        """Return a sequence of {class: probability}, one per row, as an array.

        Another sequence becomes the array that numpy makes of it.
        """
        rows: list[Any] = list(result)
        if not rows or not isinstance(rows[0], Mapping):
            return np.asarray(rows)
        keys = list(cast("Mapping[Any, float]", rows[0]))
        try:
            return np.array([[row[k] for k in keys] for row in rows], np.float32)
        except KeyError as error:
            why = f"output {name!r} has no value for {error} in some rows"
            raise ModelContractError(self._path.stem, why) from error


def _load_cuda_libraries() -> None:
    """Load the libraries of CUDA and cuDNN that pip installed: the dynamic linker does not find them."""
    if (load := getattr(ort, "preload_dlls", None)) is None:  # onnxruntime 1.20
        return
    # onnxruntime prints the names of missing libraries, and standard output may carry predictions.
    with redirect_stdout(sys.stderr):
        load()


def _threads() -> int:
    text = os.environ.get(_THREADS_VARIABLE, "1")
    if not text.isdecimal():
        raise ConfigError(f"{_THREADS_VARIABLE} is {text!r}: set it to a number of threads, such as 1")
    return int(text)


def _batch_rows(inputs: Sequence[TensorSpec]) -> int:
    """Return the number of rows with about `BATCH_BYTES` of input.

    A batch of that size spreads the cost of a call, and fits a cache.
    """
    if any(s.shape is None or s.datatype == "BYTES" or -1 in s.shape[1:] for s in inputs):
        return Model.max_batch_rows
    row_bytes = sum(prod((s.shape or (1,))[1:]) * dtype_of(s.datatype).itemsize for s in inputs)
    return min(max(BATCH_BYTES // max(row_bytes, 1), BATCH_ROWS_MIN), BATCH_ROWS_MAX)
