"""`Predict`: a model in the actors of a Ray Data pipeline.

Its `__call__` returns a batch with predictions.
"""

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, Literal, Self

import numpy as np

from headrace.app.models import ModelLike, PredictorOptions, open_predictor
from headrace.contrib.ray.column_values import text_type_for
from headrace.contrib.ray.inputs import (
    ColumnBatch,
    Columns,
    InputColumns,
    RowsRequest,
    as_column_batch,
    check_columns,
    quoted,
)
from headrace.contrib.ray.outputs import OutputColumns, Outputs, check_outputs, check_response
from headrace.core.errors import ConfigError, RefusedRowsError
from headrace.core.tensor import Array, InferRequest, InferResponse, Tensor

Failures = Literal["raise", "column"]
"""Effect of a row that cannot be predicted: fail the pipeline, or leave its predictions null."""

FAILURE_COLUMN: Final = "headrace_failure"
_ROWS_NAMED: Final = 3


class Predict:
    """A callable class for ``Dataset.map_batches``: predictions beside the columns of each batch.

    ::

        scored = ds.map_batches(
            headrace.ray.Predict,
            fn_constructor_kwargs={"model": "churn.onnx", "columns": ["age", "calls"]},
            batch_size=1024,
            compute=ray.data.ActorPoolStrategy(size=2),
        )

    Each of Ray's actors makes one instance. It loads the model, or reads the endpoint's metadata,
    once. The output has as many rows as the input, in the same order. Each row has its own
    prediction or a reason why it has none. A model that returns another number of rows raises
    ModelContractError for both values of `failures`.

    Batches are mappings of numpy arrays (``batch_format="numpy"``, Ray's default) or Arrow tables
    (``"pyarrow"``). Arrow tables distinguish nulls from NaN, and keep passed columns unchanged. The
    result is a mapping for both.

    `close` ends the model's threads. An actor that Ray releases closes its instance. A killed actor
    takes the threads with it. Several threads may call an instance at once.

    Args:
        model: A file, a folder or ``module:Class``, which must exist on every node; a URI, which each
            node fetches; a Model class, or a function that makes a model.
        endpoint: The URL of a served model, instead of `model`.
        columns: The columns of the model's inputs, if their names differ from the inputs'. A list
            for a model of one input, whose columns become one tensor ``[n, columns]``; else a
            mapping by input.
        keep: Columns that stay beside the predictions. None means all, ``[]`` none.
        outputs: Outputs that become columns, or their column names. None means all, under their own
            names.
        failures: "raise" (the default) fails the pipeline for a failed row. "column" gives failed
            rows nulls for outputs, and the reason in the column `failure_column`, which is null for
            all other rows.
        failure_column: The name of that column.
        request_rows: The row limit of one request. A larger batch is sent as several requests at
            once. The default is the row limit of the model's calls.
        options: Instances, options of the model, or settings of the endpoint's client.

    Raises:
        ConfigError: Options are invalid, or do not fit the model.
        HeadraceError: The model does not load, or the endpoint does not respond.
    """

    def __init__(
        self,
        model: ModelLike | None = None,
        *,
        endpoint: str | None = None,
        columns: Columns | None = None,
        keep: Sequence[str] | None = None,
        outputs: Outputs | None = None,
        failures: Failures = "raise",
        failure_column: str = FAILURE_COLUMN,
        request_rows: int | None = None,
        options: PredictorOptions | None = None,
    ) -> None:
        names, columns = check_outputs(outputs), check_columns(columns)
        if failures not in ("raise", "column"):
            raise ConfigError(f'failures must be "raise" or "column", not {failures!r}')
        if request_rows is not None and request_rows < 1:
            raise ConfigError(f"request_rows must be 1 or more, not {request_rows}")
        if isinstance(keep, str):
            raise ConfigError(f'keep takes a list: keep=["{keep}"]')
        self._keep = keep
        self._failures: Failures = failures
        self._failure_column = failure_column
        self._predictor = open_predictor(model, endpoint, options or PredictorOptions()).predictor
        self._predictor.start()
        try:
            metadata = self._predictor.metadata
            text = text_type_for(metadata, at_endpoint=endpoint is not None)
            self._inputs = InputColumns(metadata, columns, text)
        except BaseException:
            self.close()
            raise
        self._model = metadata.name
        self._output_names = tuple(names or ())
        self._request_rows = request_rows or metadata.max_batch_rows
        self._outputs = OutputColumns(
            metadata, names, nullable=failures == "column", decode=endpoint is not None
        )

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the kept columns, and a column for each output, with as many rows as `batch`.

        Raises:
            RefusedRowsError: Rows failed, and `failures` is "raise". The message has their number,
                the first rows, and reasons.
            ConfigError: A column to keep is missing, or an output would replace a column.
            ModelInputError: An input's column is missing, or cannot fit in any row.
            ModelError: The model breaks its contract.
            PredictorError: The predictor does not respond, such as an endpoint that is down.
        """
        column_batch = as_column_batch(batch)
        kept_columns = self._kept(column_batch)
        self._check_names(kept_columns)
        requests, reasons = self._inputs.requests(column_batch)
        responses = self._responses(requests)
        for request, response in responses:
            reasons.update({int(request.rows[f.row]): f.why for f in response.failures})
        if reasons and self._failures == "raise":
            raise self._refusal_error(column_batch, reasons)
        predicted = self._outputs.columns(column_batch.rows, responses)
        self._check_names(kept_columns)
        return {**kept_columns, **predicted, **self._reasons(column_batch.rows, reasons)}

    def close(self) -> None:
        """Stop the model's threads, or the endpoint's connections, after a call in progress.

        May be called again.
        """
        predictor = getattr(self, "_predictor", None)
        if predictor is not None:
            predictor.stop(drain=False)

    def __enter__(self) -> Self:
        """Return self, for use without Ray."""
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Ray drops an instance without a call when its actor ends. At the interpreter's exit,
        # threads have ended already.
        if not sys.is_finalizing():
            self.close()

    def _kept(self, batch: ColumnBatch) -> dict[str, Any]:
        names = batch.columns if self._keep is None else self._keep
        if missing := [name for name in names if name not in batch.columns]:
            raise ConfigError(
                f"keep names {quoted(missing)}, which the batch does not have "
                f"(it has {quoted(batch.columns)})"
            )
        return {name: batch.passthrough(name) for name in names}

    def _check_names(self, kept_columns: Mapping[str, Any]) -> None:
        new = self._outputs.known
        if self._failures == "column":
            new = [*new, self._failure_column]
        if clash := [name for name in new if name in kept_columns]:
            raise ConfigError(
                f"model {self._model}: {quoted(clash)} would be both a column of the batch "
                "and a new column: rename outputs with outputs={'output': 'column'} "
                "(failures with failure_column), or omit columns with keep=[...]"
            )
        if len(set(new)) < len(new):
            raise ConfigError(
                f"model {self._model}: an output is called {self._failure_column!r}, "
                "like the column of failures: rename that column with failure_column"
            )

    def _responses(self, requests: Sequence[RowsRequest]) -> list[tuple[RowsRequest, InferResponse]]:
        """Send all requests at once and return their responses.

        If one fails, those that have not begun are cancelled.
        """
        parts = [part for request in requests for part in _split(request, self._request_rows)]
        futures: list[Future[InferResponse]] = []
        try:
            for part in parts:
                request = InferRequest(part.tensors, outputs=self._output_names)
                futures.append(self._predictor.submit(request))
            responses = [(part, future.result()) for part, future in zip(parts, futures, strict=True)]
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        for part, response in responses:
            check_response(part, response, self._model)
        return responses

    def _refusal_error(self, batch: ColumnBatch, reasons: Mapping[int, str]) -> RefusedRowsError:
        rows = sorted(reasons)
        shown = "; ".join(f"row {row} ({_excerpt(batch, row)}): {reasons[row]}" for row in rows[:_ROWS_NAMED])
        more = f"; and {len(rows) - _ROWS_NAMED} more" if len(rows) > _ROWS_NAMED else ""
        return RefusedRowsError(
            self._model,
            f"{len(rows)} of {batch.rows} rows of a batch failed: {shown}{more}. "
            'failures="column" keeps such rows, with the reason in a column',
        )

    def _reasons(self, rows: int, reasons: Mapping[int, str]) -> dict[str, Any]:
        if self._failures == "raise":
            return {}
        from headrace.formats.arrow import array_with_nulls  # noqa: PLC0415 - an extra, which Ray Data brings

        column = np.full(rows, None, object)
        for row, why in reasons.items():
            column[row] = why
        missing = np.array([why is None for why in column], bool)
        return {self._failure_column: array_with_nulls(column, missing)}


def _split(request: RowsRequest, rows_max: int) -> list[RowsRequest]:
    """Return parts of up to `rows_max` rows."""
    if len(request.rows) <= rows_max:
        return [request]
    return [
        RowsRequest(
            tuple(Tensor(t.name, t.data[first : first + rows_max]) for t in request.tensors),
            request.rows[first : first + rows_max],
        )
        for first in range(0, len(request.rows), rows_max)
    ]


def _excerpt(batch: ColumnBatch, row: int) -> str:
    """Return the first scalar values of a row, with which a user can find it in the source."""
    shown: list[str] = []
    for name in batch.columns:
        values: Array = batch.array(name)
        if values.ndim == 1 and not isinstance(values[row], (list, np.ndarray)):
            shown.append(f"{name}={str(values[row])[:40]}")
        if len(shown) == _ROWS_NAMED:
            break
    return ", ".join(shown)
