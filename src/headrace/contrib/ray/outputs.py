"""Responses to columns: the value of each row in its place in the batch, null for failed rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.contrib.ray.inputs import RowsRequest
from headrace.core.errors import ConfigError, ModelContractError
from headrace.core.tensor import Array, InferResponse, ModelMetadata, TensorSpec, dtype_of, text_array

Outputs = Sequence[str] | Mapping[str, str]
"""Outputs that become columns under their own names, or column names by output."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """The dtype of an output, and the shape of a row (None if it differs from row to row)."""

    dtype: np.dtype[Any]
    row_shape: tuple[int, ...] | None


def check_outputs(outputs: Outputs | None) -> dict[str, str] | None:
    """Return the option as column names by output.

    Raises:
        ConfigError: The option names no output, or one column for two outputs.
    """
    if outputs is None:
        return None
    if isinstance(outputs, str):
        raise ConfigError(f'outputs takes a list: outputs=["{outputs}"]')
    named = dict(outputs) if isinstance(outputs, Mapping) else {name: name for name in outputs}
    if not named:
        raise ConfigError("outputs names no output: omit it to make all outputs columns")
    if len(set(named.values())) < len(named):
        raise ConfigError(f"outputs maps two outputs to one column: {named}")
    return named


class OutputColumns:
    """A converter of responses to columns, for one model.

    It remembers the kinds of outputs for batches in which every row fails. With `nullable`, outputs
    of one value per row become Arrow arrays of the output's type, null for failed rows. Tensors
    have NaN there, or 0 if they are not floats, or empty text.

    With `decode`, for endpoints, bytes of text outputs become text. An output that once had bytes
    other than UTF-8 stays bytes from then on.
    """

    def __init__(
        self,
        metadata: ModelMetadata,
        names: Mapping[str, str] | None,
        *,
        nullable: bool,
        decode: bool = False,
    ) -> None:
        self._model = metadata.name
        self._names = names
        self._nullable = nullable
        self._decode = decode
        self._binary_outputs: set[str] = set()
        self._kinds: dict[str, _Kind | None] = dict.fromkeys(names or ())
        for spec in metadata.outputs:
            if names is None or spec.name in names:
                self._kinds[spec.name] = _declared_kind(spec)

    @property
    def known(self) -> list[str]:
        """The known names of output columns."""
        return [self._column(name) for name in self._kinds]

    def columns(self, rows: int, responses: Sequence[tuple[RowsRequest, InferResponse]]) -> dict[str, Any]:
        """Return a column for each output, over all rows.

        Raises ModelContractError if outputs differ between responses.
        """
        for _, response in responses:
            for tensor in response.outputs:
                self._kinds.setdefault(tensor.name, None)
        return {self._column(name): self._output(name, rows, responses) for name in list(self._kinds)}

    def _column(self, name: str) -> str:
        return name if self._names is None else self._names.get(name, name)

    def _output(self, name: str, rows: int, responses: Sequence[tuple[RowsRequest, InferResponse]]) -> Any:
        parts = [
            (predicted_rows(request, response), self._values(name, response))
            for request, response in responses
            if response.outputs
        ]
        present = np.zeros(rows, bool)
        for places, _ in parts:
            present[places] = True
        data = self._join(name, rows, parts)
        if data is None:
            from headrace.formats.arrow import null_array  # noqa: PLC0415 - an extra, which Ray Data brings

            return null_array(rows)
        if not self._nullable or data.ndim > 1 or _has_array_values(data, present):
            return data
        from headrace.formats.arrow import array_with_nulls  # noqa: PLC0415

        return array_with_nulls(data, ~present)

    def _values(self, name: str, response: InferResponse) -> Array:
        try:
            data = response[name]
        except KeyError as error:
            raise ModelContractError(
                self._model, f"its outputs differ between calls: {error.args[0]}"
            ) from None
        if not self._decode or data.dtype != object or name in self._binary_outputs:
            return data
        try:
            texts = [one.decode() if isinstance(one, bytes) else one for one in data.reshape(-1)]
        except UnicodeDecodeError:
            self._binary_outputs.add(name)
            return data
        return text_array(texts).reshape(data.shape)

    def _join(self, name: str, rows: int, parts: Sequence[tuple[Array, Array]]) -> Array | None:
        """Return the values in their rows' places, None if the kind of the output is not known."""
        if parts:
            self._kinds[name] = _observed_kind([data for _, data in parts])
        kind = self._kinds[name]
        if kind is None:
            return None
        if len(parts) == 1 and len(parts[0][0]) == rows:
            return parts[0][1]
        if kind.row_shape is None:
            column = np.full(rows, None, object)
            for places, data in parts:
                column[places] = text_array(list(data))
            return column
        column = _blank((rows, *kind.row_shape), kind.dtype)
        for places, data in parts:
            column[places] = data
        return column


def predicted_rows(request: RowsRequest, response: InferResponse) -> Array:
    """Return the rows of the batch with a prediction in the response, ascending."""
    if not response.failures:
        return request.rows
    return np.delete(request.rows, [failure.row for failure in response.failures])


def check_response(request: RowsRequest, response: InferResponse, model: str) -> None:
    """Check that every row of the request has either values or a failure.

    Raises ModelContractError otherwise.
    """
    want, failed = len(request.rows), len({failure.row for failure in response.failures})
    have = {tensor.name: tensor.rows for tensor in response.outputs}
    whole = all(count == want - failed for count in have.values()) and (have or failed == want)
    if whole and failed == len(response.failures) and all(0 <= f.row < want for f in response.failures):
        return
    raise ModelContractError(
        model, f"for {want} rows it returned {have or 'no outputs'} and {len(response.failures)} failures"
    )


def _declared_kind(spec: TensorSpec) -> _Kind:
    shape = (-1,) if spec.shape is None else spec.shape
    dtype = np.dtype(np.float32) if spec.datatype == "BF16" else dtype_of(spec.datatype)
    return _Kind(dtype, None if -1 in shape[1:] else shape[1:])


def _observed_kind(parts: Sequence[Array]) -> _Kind:
    shapes = {data.shape[1:] for data in parts}
    dtype = parts[0].dtype if len({data.dtype for data in parts}) == 1 else np.result_type(*parts)
    return _Kind(dtype, shapes.pop() if len(shapes) == 1 else None)


def _blank(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if dtype.kind == "f":
        return np.full(shape, np.nan, dtype)
    if dtype.kind == "O":
        return np.full(shape, None if len(shape) == 1 else "", object)
    return np.zeros(shape, dtype)


def _has_array_values(data: Array, present: Array) -> bool:
    """Return True if a flat array of objects holds other values than text.

    Such values are tensors of different shapes, or have no known Arrow type.
    """
    return data.dtype == object and not all(isinstance(value, (str, bytes)) for value in data[present])
