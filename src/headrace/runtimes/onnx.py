"""ONNX files as Models. The one door to onnxruntime."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from headrace.core.errors import MissingExtraError, ModelLoadError
from headrace.core.model import Model
from headrace.core.tensor import Array, TensorSpec

try:
    import onnxruntime as _onnxruntime
except ImportError as _error:
    raise MissingExtraError("onnx", "an ONNX model") from _error

ort: Any = _onnxruntime  # it carries no types

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


class OnnxModel(Model):
    """An ONNX file: names, types and shapes of inputs and outputs come from it.

    One thread a session by default, since more instances are the better use of more cores for small models, and
    no spinning, so that a waiting session costs nothing. A file whose batch axis is a fixed number is called with
    that many rows at a time, the last call filled up with its own last row. Of outputs that are no tensors (a
    sequence of maps, as scikit-learn converters make them by default) a map of class to probability becomes an
    array ``[n, classes]``, in the order of the first row's keys.

    Args:
        path: The file.
        intra_op_threads: Threads within one call; None asks for ``HEADRACE_ONNX_THREADS``, and else takes 1.
        providers: Execution providers in order of preference; None: what onnxruntime prefers here.
    """

    def __init__(
        self, path: Path, *, intra_op_threads: int | None = None, providers: Sequence[str] | None = None
    ) -> None:
        self._path = path
        self._threads = intra_op_threads or int(os.environ.get("HEADRACE_ONNX_THREADS", "1"))
        self._providers = list(providers) if providers is not None else None

    def load(self) -> None:
        """Open the session; ModelLoadError when the file is no model that can run here."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            session = ort.InferenceSession(
                str(self._path), options, providers=self._providers or ort.get_available_providers()
            )
        except Exception as error:
            why = str(error).strip().splitlines()[0]
            raise ModelLoadError(
                self._path.stem, f"{self._path} is no ONNX model that runs here: {why}"
            ) from error
        self._session = session
        self.inputs = tuple(self._spec(i) for i in session.get_inputs())
        self._output_names = [o.name for o in session.get_outputs()]
        self.outputs = tuple(self._spec(o) for o in session.get_outputs() if o.type in _DATATYPES)
        self._fixed_rows = self._fixed_batch(session.get_inputs())
        if self._fixed_rows:
            self.inputs = tuple(
                TensorSpec(s.name, s.datatype, s.shape and (-1, *s.shape[1:])) for s in self.inputs
            )

    def _spec(self, value: Any) -> TensorSpec:
        datatype = _DATATYPES.get(value.type)
        if datatype is None:
            raise ModelLoadError(
                self._path.stem, f"{value.name!r} is a {value.type}, which no record can feed"
            )
        shape = tuple(d if isinstance(d, int) else -1 for d in value.shape)
        return TensorSpec(value.name, datatype, shape or None)

    @staticmethod
    def _fixed_batch(inputs: Sequence[Any]) -> int | None:
        """The first axis, when the file fixes it."""
        sizes = {i.shape[0] for i in inputs if i.shape and isinstance(i.shape[0], int)}
        return min(sizes) if sizes else None

    def predict(self, **tensors: Array) -> Mapping[str, Array]:
        """Run the session on a batch."""
        if self._fixed_rows is None:
            return self._run(tensors)
        return self._run_in_pieces(tensors, self._fixed_rows)

    def _run(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        results = self._session.run(None, dict(tensors))
        outputs: dict[str, Array] = {}
        for name, result in zip(self._output_names, results, strict=True):
            outputs[name] = result if isinstance(result, np.ndarray) else _from_maps(result)
        return outputs

    def _run_in_pieces(self, tensors: Mapping[str, Array], size: int) -> dict[str, Array]:
        rows = len(next(iter(tensors.values())))
        parts: list[dict[str, Array]] = []
        for start in range(0, rows, size):
            piece = {n: d[start : start + size] for n, d in tensors.items()}
            short = size - len(next(iter(piece.values())))
            if short:
                piece = {n: np.concatenate([d, np.repeat(d[-1:], short, axis=0)]) for n, d in piece.items()}
            outputs = self._run(piece)
            parts.append({n: d[: size - short] for n, d in outputs.items()})
        return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


def _from_maps(result: Any) -> Array:
    """A sequence of {class: probability}, one a row, as an array; other sequences as numpy makes of them."""
    rows: list[Any] = list(result)
    if rows and isinstance(rows[0], Mapping):
        keys = list(cast("Mapping[Any, float]", rows[0]))
        return np.array([[row[k] for k in keys] for row in rows], np.float32)
    return np.asarray(rows)
