"""`Predict`: a model in the actors of a Ray Data pipeline. Batches arrive by `__call__` and leave with predictions."""

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, Literal, Self

import numpy as np

from headrace.app.streaming import ModelLike, PredictorOptions, open_predictor
from headrace.core.errors import ConfigError, RefusedRowsError
from headrace.core.tensor import Array, InferRequest, InferResponse, Tensor
from headrace.ray.batch import Batch, batch_of
from headrace.ray.cells import text_of
from headrace.ray.inputs import Asked, Columns, InputColumns, check_columns
from headrace.ray.outputs import OutputColumns, Outputs, check_answer, check_outputs

Failures = Literal["raise", "column"]
"""What a row that cannot be predicted costs: the pipeline, or its own predictions."""

FAILURE_COLUMN: Final = "headrace_failure"
_ROWS_NAMED: Final = 3


class Predict:
    """A callable class for ``Dataset.map_batches``: predictions beside the columns of each batch, row by row.

    ::

        scored = ds.map_batches(
            headrace.ray.Predict,
            fn_constructor_kwargs={"model": "churn.onnx", "columns": ["age", "calls"]},
            batch_size=1024,
            compute=ray.data.ActorPoolStrategy(size=2),
        )

    Each of Ray's actors makes one, which loads the model (or asks the endpoint about it) once. Guaranteed is that as
    many rows leave as came, in the same order, each with its own prediction or a reason why it has none: a model that
    returns another number of rows raises ModelContractError, whatever `failures` says.

    Batches are mappings of numpy arrays (``batch_format="numpy"``, which is Ray's default) or Arrow tables
    (``"pyarrow"``, in which nulls are told from NaN, and columns that are kept stay as they are). What comes back is a mapping for either.

    `close` ends the model's threads; an actor that Ray lets go does so by itself. One that is killed takes them with
    it. Calls may come from several threads at once.

    Args:
        model: A file, a folder or ``module:Class``, which must be there on every node; a Model class, or a function
            that makes one.
        endpoint: The URL of a model served elsewhere, instead of `model`.
        columns: Which columns the model's inputs are made of, where their names are not the inputs': for a model of one
            input a list, whose columns become one tensor ``[n, columns]``; for others a mapping by input.
        keep: Which columns stay beside the predictions; None is all, ``[]`` none.
        outputs: Which outputs become columns, or under which names; None is all, under their own.
        failures: "raise", the default, since predictions with holes in them should be asked for; or "column":
            rows that failed have nulls for outputs, and the reason in the column `failure_column`, which is null for all others.
        failure_column: How that column is called.
        request_rows: The most rows of one request; of a larger batch several are under way at once. By default the
            most that the model takes in one call.
        options: Instances, options of the model, or how an endpoint is asked.

    Raises:
        ConfigError: For options that cannot be, or do not fit the model.
        HeadraceError: The model does not load, or the endpoint does not answer.
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
            raise ConfigError(f'failures is "raise" or "column", not {failures!r}')
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
            text = text_of(metadata, at_endpoint=endpoint is not None)
            self._inputs = InputColumns(metadata, columns, text)
        except BaseException:
            self.close()
            raise
        self._model = metadata.name
        self._wanted = tuple(names or ())
        self._request_rows = request_rows or metadata.max_batch_rows
        self._outputs = OutputColumns(
            metadata, names, nullable=failures == "column", decode=endpoint is not None
        )

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The columns that are kept, and one for each output, of as many rows as `batch` has.

        Raises:
            RefusedRowsError: Rows failed, and `failures` is "raise"; says how many, which, and why.
            ConfigError: A column to keep is not there, or an output would take the place of a column.
            ModelInputError: A column that the model takes is not there, or could fit in no row.
            ModelError: The model breaks its contract.
            PredictorError: The predictor does not answer, such as an endpoint that is gone.
        """
        given = batch_of(batch)
        kept = self._kept(given)
        self._check_names(kept)
        asked, whys = self._inputs.asked(given)
        answers = self._answers(asked)
        for one, response in answers:
            whys.update({int(one.rows[f.row]): f.why for f in response.failures})
        if whys and self._failures == "raise":
            raise self._refused(given, whys)
        predicted = self._outputs.columns(given.rows, answers)
        self._check_names(kept)
        return {**kept, **predicted, **self._reasons(given.rows, whys)}

    def close(self) -> None:
        """End the model's threads, or the endpoint's connections; waits for a call in progress. As often as one likes."""
        predictor = getattr(self, "_predictor", None)
        if predictor is not None:
            predictor.stop(drain=False)

    def __enter__(self) -> Self:
        """For use without Ray."""
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Ray has no other way to tell an instance that its actor goes. Where Python ends, threads have ended already.
        if not sys.is_finalizing():
            self.close()

    def _kept(self, batch: Batch) -> dict[str, Any]:
        names = batch.columns if self._keep is None else self._keep
        if missing := [name for name in names if name not in batch.columns]:
            raise ConfigError(
                f"keep names {_listed(missing)}, and the batch has no such column (it has {_listed(batch.columns)})"
            )
        return {name: batch.kept(name) for name in names}

    def _check_names(self, kept: Mapping[str, Any]) -> None:
        new = self._outputs.known
        if self._failures == "column":
            new = [*new, self._failure_column]
        if clash := [name for name in new if name in kept]:
            raise ConfigError(
                f"model {self._model}: {_listed(clash)} would be a column twice, one that came and one that is new: name "
                "outputs with outputs={'output': 'column'} (failures with failure_column), or leave columns out with keep=[...]"
            )
        if len(set(new)) < len(new):
            raise ConfigError(
                f"model {self._model}: an output is called {self._failure_column!r}, as the column of failures: name that with failure_column"
            )

    def _answers(self, asked: Sequence[Asked]) -> list[tuple[Asked, InferResponse]]:
        """All answers; requests are under way together. When one fails, those that have not begun are taken back."""
        parts = [part for one in asked for part in _split(one, self._request_rows)]
        futures: list[Future[InferResponse]] = []
        try:
            for part in parts:
                futures.append(self._predictor.submit(InferRequest(part.tensors, outputs=self._wanted)))  # noqa: PERF401 - the except needs those that were asked
            answers = [(part, future.result()) for part, future in zip(parts, futures, strict=True)]
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        for part, response in answers:
            check_answer(part, response, self._model)
        return answers

    def _refused(self, batch: Batch, whys: Mapping[int, str]) -> RefusedRowsError:
        rows = sorted(whys)
        said = "; ".join(f"row {row} ({_excerpt(batch, row)}): {whys[row]}" for row in rows[:_ROWS_NAMED])
        more = f"; and {len(rows) - _ROWS_NAMED} more" if len(rows) > _ROWS_NAMED else ""
        return RefusedRowsError(
            self._model,
            f'{len(rows)} of {batch.rows} rows of a batch failed: {said}{more}. failures="column" keeps such rows, with the reason in a column',
        )

    def _reasons(self, rows: int, whys: Mapping[int, str]) -> dict[str, Any]:
        if self._failures == "raise":
            return {}
        from headrace.formats.arrow import array_with_nulls  # noqa: PLC0415 - an extra, which Ray Data brings

        reasons = np.full(rows, None, object)
        for row, why in whys.items():
            reasons[row] = why
        missing = np.array([why is None for why in reasons], bool)
        return {self._failure_column: array_with_nulls(reasons, missing)}


def _split(asked: Asked, rows_max: int) -> list[Asked]:
    """Parts of at most so many rows."""
    if len(asked.rows) <= rows_max:
        return [asked]
    return [
        Asked(
            tuple(Tensor(t.name, t.data[first : first + rows_max]) for t in asked.tensors),
            asked.rows[first : first + rows_max],
        )
        for first in range(0, len(asked.rows), rows_max)
    ]


def _excerpt(batch: Batch, row: int) -> str:
    """The first single values of a row, for whoever looks for it in the source."""
    said: list[str] = []
    for name in batch.columns:
        values: Array = batch.array(name)
        if values.ndim == 1 and not isinstance(values[row], (list, np.ndarray)):
            said.append(f"{name}={str(values[row])[:40]}")
        if len(said) == _ROWS_NAMED:
            break
    return ", ".join(said)


def _listed(names: object) -> str:
    return ", ".join(map(repr, names)) or "none"  # type: ignore[call-overload]
