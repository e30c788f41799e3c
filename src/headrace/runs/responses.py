"""The outputs of a run of V2 requests: responses as V2 documents, or as columns of the other formats."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from typing_extensions import override

from headrace.core.errors import DataError
from headrace.core.tensor import Array, InferResponse
from headrace.formats.contract import BlockSelection, Encoder
from headrace.protocols.oip_json import encode_response

RESPONSE: Final = "response"
"""The name of the output with a response for each record: objects of `InferResponse`."""


class ResponseEncoder(Encoder):
    """An encoder of V2 responses, a JSON document on each line.

    Columns beside the responses become their parameters. `encode` raises DataError for values that
    JSON does not have.
    """

    @override
    def encode(self, selections: Sequence[BlockSelection], outputs: Mapping[str, Array]) -> bytes:
        responses: list[InferResponse] = outputs[RESPONSE].tolist()
        columns = {name: data.tolist() for name, data in outputs.items() if name != RESPONSE}
        lines: list[bytes] = []
        for row, response in enumerate(responses):
            beside: dict[str, Any] = {name: values[row] for name, values in columns.items()}
            whole = replace(response, parameters={**response.parameters, **beside}) if beside else response
            lines.append(encode_response(whole).body)
        return b"\n".join([*lines, b""])


class ResponseColumns(Encoder):
    """An encoder of responses of one row by `inner`, an encoder of their outputs as columns.

    `first` is a response that fits. `encode` raises DataError for a response of several rows, or with
    other outputs.
    """

    def __init__(self, inner: Encoder, first: InferResponse) -> None:
        self._inner = inner
        self._form = _row_form(first)

    @override
    def begin(self) -> bytes:
        return self._inner.begin()

    @override
    def encode(self, selections: Sequence[BlockSelection], outputs: Mapping[str, Array]) -> bytes:
        responses: list[InferResponse] = outputs[RESPONSE].tolist()
        for response in responses:
            self._check(response)
        columns = {name: [response[name] for response in responses] for name, _, _ in self._form}
        joined = {name: np.concatenate(values) for name, values in columns.items()}
        return self._inner.encode(selections, joined)

    @override
    def finish(self) -> bytes:
        return self._inner.finish()

    def _check(self, response: InferResponse) -> None:
        columns_of(response)
        if _row_form(response) != self._form:
            raise DataError(
                "the outputs of the response differ in names, datatypes or shapes from those of the first "
                "response, and cannot share its columns: choose the output format v2"
            )


def _row_form(response: InferResponse) -> list[tuple[str, np.dtype[Any], tuple[int, ...]]]:
    return [(tensor.name, tensor.data.dtype, tensor.data.shape[1:]) for tensor in response.outputs]


def columns_of(response: InferResponse) -> dict[str, Array]:
    """Return the outputs of a response with one row, by name. Raises DataError for other responses."""
    for tensor in response.outputs:
        if tensor.data.shape[:1] != (1,):
            raise DataError(
                f"output {tensor.name!r} of the response has shape {list(tensor.data.shape)}, but the output "
                "format has one row for each request: choose the output format v2"
            )
    return {tensor.name: tensor.data for tensor in response.outputs}
