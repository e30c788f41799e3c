"""Answers to columns: a value for each row of the batch, in its place, whichever request it was in; none where a row failed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.core.errors import ConfigError, ModelContractError
from headrace.core.tensor import Array, InferResponse, ModelMetadata, TensorSpec, dtype_of, text_array
from headrace.ray.inputs import Asked

Outputs = Sequence[str] | Mapping[str, str]
"""Which outputs become columns, under their own names; or under which name each does."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What the values of an output are: their type, and a row's shape (None: it differs from row to row)."""

    dtype: np.dtype[Any]
    row_shape: tuple[int, ...] | None


def check_outputs(outputs: Outputs | None) -> dict[str, str] | None:
    """The option as column names by outputs; ConfigError where two would have one name, or there is none."""
    if outputs is None:
        return None
    if isinstance(outputs, str):
        raise ConfigError(f'outputs takes a list: outputs=["{outputs}"]')
    named = dict(outputs) if isinstance(outputs, Mapping) else {name: name for name in outputs}
    if not named:
        raise ConfigError("outputs names no output: leave it out, and all become columns")
    if len(set(named.values())) < len(named):
        raise ConfigError(f"outputs gives two outputs one column: {named}")
    return named


class OutputColumns:
    """Makes columns of answers, for one model. What it has seen of outputs stays known for batches in which every row fails.

    Values of rows that failed: with `nullable` outputs of one value a row are Arrow arrays of the output's type, with
    nulls; tensors are NaN there (0, where they are no floats; empty, where they are text).

    With `decode`, for endpoints, whose text comes as bytes, these become text again; of an output that had bytes that are
    no UTF-8 once, they stay bytes from then on.
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
        self._no_text: set[str] = set()
        self._kinds: dict[str, _Kind | None] = dict.fromkeys(names or ())
        for spec in metadata.outputs:
            if names is None or spec.name in names:
                self._kinds[spec.name] = _kind_of(spec)

    @property
    def known(self) -> list[str]:
        """The columns that are known to come."""
        return [self._column(name) for name in self._kinds]

    def columns(self, rows: int, answers: Sequence[tuple[Asked, InferResponse]]) -> dict[str, Any]:
        """A column for each output, over all rows. Raises ModelContractError where answers do not fit what was asked."""
        for _, response in answers:
            for tensor in response.outputs:
                self._kinds.setdefault(tensor.name, None)
        return {self._column(name): self._output(name, rows, answers) for name in list(self._kinds)}

    def _column(self, name: str) -> str:
        return name if self._names is None else self._names.get(name, name)

    def _output(self, name: str, rows: int, answers: Sequence[tuple[Asked, InferResponse]]) -> Any:
        parts = [
            (answered_rows(asked, response), self._values(name, response))
            for asked, response in answers
            if response.outputs
        ]
        present = np.zeros(rows, bool)
        for places, _ in parts:
            present[places] = True
        data = self._joined(name, rows, parts)
        if data is None:
            from headrace.formats.arrow import nulls  # noqa: PLC0415 - an extra, which Ray Data brings

            return nulls(rows)
        if not self._nullable or data.ndim > 1 or _holds_arrays(data, present):
            return data
        from headrace.formats.arrow import array_with_nulls  # noqa: PLC0415

        return array_with_nulls(data, ~present)

    def _values(self, name: str, response: InferResponse) -> Array:
        try:
            data = response[name]
        except KeyError as error:
            raise ModelContractError(
                self._model, f"its outputs differ from call to call: {error.args[0]}"
            ) from None
        if not self._decode or data.dtype != object or name in self._no_text:
            return data
        try:
            texts = [one.decode() if isinstance(one, bytes) else one for one in data.reshape(-1)]
        except UnicodeDecodeError:
            self._no_text.add(name)
            return data
        return text_array(texts).reshape(data.shape)

    def _joined(self, name: str, rows: int, parts: Sequence[tuple[Array, Array]]) -> Array | None:
        """The values in their rows' places; None where nothing is known of what they would be."""
        if parts:
            self._kinds[name] = _kind_seen([data for _, data in parts])
        kind = self._kinds[name]
        if kind is None:
            return None
        if len(parts) == 1 and len(parts[0][0]) == rows:
            return parts[0][1]
        if kind.row_shape is None:
            made = np.full(rows, None, object)
            for places, data in parts:
                made[places] = text_array(list(data))
            return made
        made = _blank((rows, *kind.row_shape), kind.dtype)
        for places, data in parts:
            made[places] = data
        return made


def answered_rows(asked: Asked, response: InferResponse) -> Array:
    """The rows of the batch that an answer has values for, ascending."""
    if not response.failures:
        return asked.rows
    return np.delete(asked.rows, [failure.row for failure in response.failures])


def check_answer(asked: Asked, response: InferResponse, model: str) -> None:
    """Every row has its values or its failure. Raises ModelContractError where that is not so."""
    want, failed = len(asked.rows), len({failure.row for failure in response.failures})
    have = {tensor.name: tensor.rows for tensor in response.outputs}
    whole = all(count == want - failed for count in have.values()) and (have or failed == want)
    if whole and failed == len(response.failures) and all(0 <= f.row < want for f in response.failures):
        return
    raise ModelContractError(
        model, f"asked for {want} rows it gave {have or 'no outputs'} and {len(response.failures)} failures"
    )


def _kind_of(spec: TensorSpec) -> _Kind:
    shape = (-1,) if spec.shape is None else spec.shape
    dtype = np.dtype(np.float32) if spec.datatype == "BF16" else dtype_of(spec.datatype)
    return _Kind(dtype, None if -1 in shape[1:] else shape[1:])


def _kind_seen(parts: Sequence[Array]) -> _Kind:
    shapes = {data.shape[1:] for data in parts}
    dtype = parts[0].dtype if len({data.dtype for data in parts}) == 1 else np.result_type(*parts)
    return _Kind(dtype, shapes.pop() if len(shapes) == 1 else None)


def _blank(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if dtype.kind == "f":
        return np.full(shape, np.nan, dtype)
    if dtype.kind == "O":
        return np.full(shape, None if len(shape) == 1 else "", object)
    return np.zeros(shape, dtype)


def _holds_arrays(data: Array, present: Array) -> bool:
    """Whether a flat array of objects is one of tensors of different shapes, or of what no Arrow type is known of."""
    return data.dtype == object and not all(isinstance(value, (str, bytes)) for value in data[present])
