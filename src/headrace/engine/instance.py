"""One loaded copy of a model: calls it, checks what it returns, and finds the guilty rows of what it refuses.

Arrives: an `InferRequest`. Leaves: an `InferResponse`. Everything here runs in the instance's own thread.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from headrace.batching.bisect import Bisection
from headrace.core.errors import (
    ConfigError,
    DeadlineError,
    ModelContractError,
    ModelInputError,
    ModelLoadError,
    StoppedError,
)
from headrace.core.model import Model, RowError
from headrace.core.tensor import (
    Array,
    InferRequest,
    InferResponse,
    ModelMetadata,
    RowFailure,
    Tensor,
    dtype_of,
)
from headrace.engine.inputs import ModelInputs
from headrace.engine.outputs import OutputCheck, Outputs

_log = logging.getLogger("headrace.engine")

WHY_CHARS_MAX = 2000
"""How much of an exception's text is kept for each row that it failed."""

_NOT_ABOUT_ROWS = (ModelContractError, ModelInputError, DeadlineError, StoppedError)
"""Errors that no bisection can cure: they end the request."""


class Instance:
    """A model that was made, loaded and warmed up. Make it in the thread that calls it.

    `predict` is given arrays of its own (C-contiguous, and it may write into them unless its `writes_inputs` is
    false); the arrays that it returns are handed on without a copy, so they must not be written to by the next call.
    """

    def __init__(self, make_model: Callable[[], Model], name: str, *, warm_up: bool = True) -> None:
        self._name = name
        self._runner: asyncio.Runner | None = None
        self._model: Model | None = None
        self.calls = 0
        """How often `predict` was called for requests."""
        self.retries = 0
        """How many of these calls were made to find guilty rows."""
        try:
            self._load(make_model, warm_up=warm_up)
        except BaseException as error:
            self.close()
            if isinstance(error, (ModelLoadError, ConfigError)):
                raise
            raise ModelLoadError(name, f"it did not load: {reason(error)}") from error

    def _load(self, make_model: Callable[[], Model], *, warm_up: bool) -> None:
        model = make_model()
        self._awaited(model.load())
        # From here on it holds something to be closed.
        self._model = model
        self._predict = model.predict
        self.inputs = ModelInputs.of(model, self._name)
        self._check = OutputCheck(self._name, model.outputs)
        self._rows_max = model.max_batch_rows
        self._writes_inputs = model.writes_inputs
        if self._rows_max < 1:
            raise ModelLoadError(self._name, f"max_batch_rows must be 1 or more, not {self._rows_max}")
        if not warm_up:
            return
        self._awaited(model.warm_up())
        if type(model).warm_up is Model.warm_up:
            self._call_with_zeros()

    def _call_with_zeros(self) -> None:
        """A model's first call is often slow: make it here, where the model left that to us and sizes are known."""
        zeros: dict[str, Array] = {}
        for spec in self.inputs.specs:
            if spec.shape is None or spec.datatype == "BYTES" or -1 in spec.shape[1:]:
                return
            zeros[spec.name] = np.zeros((1, *spec.shape[1:]), dtype_of(spec.datatype))
        if not zeros:
            return
        try:
            self._call(zeros)
        except Exception:  # noqa: BLE001 - zeros need not be an input that the model takes
            _log.debug("warm-up with zeros failed", extra={"model": self._name}, exc_info=True)

    def metadata(self, fingerprint: str) -> ModelMetadata:
        """What the loaded model says of itself."""
        model = self._model
        assert model is not None
        return ModelMetadata(
            name=self._name,
            platform=type(model).__name__,
            inputs=self.inputs.specs,
            outputs=model.outputs,
            max_batch_rows=model.max_batch_rows,
            max_batch_delay_ms=model.max_batch_delay_ms,
            fingerprint=fingerprint,
        )

    def close(self) -> None:
        """Let the model free what it holds; its errors are logged."""
        model, self._model = self._model, None
        try:
            if model is not None:
                self._awaited(model.close())
        except BaseException:  # noqa: BLE001 - nothing that a model raises may keep its thread from ending
            _log.exception("model failed to close", extra={"model": self._name})
        finally:
            if self._runner is not None:
                self._runner.close()

    def answer(self, request: InferRequest, rows: int, before_call: Callable[[], None]) -> InferResponse:
        """Predict a request of any size, in calls of at most `max_batch_rows` rows; none for no rows.

        Rows that the model refuses are failures in the response. `before_call` is called before every call of the
        model, and ends the request with what it raises. Raises ModelContractError when the model returns
        something else than a row for each row.
        """
        tensors = {t.name: t.data for t in request.inputs}
        kept: list[Outputs] = []
        failures: list[RowFailure] = []
        for start in range(0, rows, self._rows_max):
            stop = min(start + self._rows_max, rows)
            part = tensors if stop - start == rows else {n: d[start:stop] for n, d in tensors.items()}
            outputs, refused = self._answer_batch(part, stop - start, request.id, before_call)
            kept.extend(outputs)
            failures.extend(RowFailure(f.row + start, f.why, f.attempts) for f in refused)
        joined = self._check.joined(kept, request.id)
        return InferResponse(
            tuple(Tensor(name, data) for name, data in self._wanted(joined, request).items()),
            self._name,
            id=request.id,
            failures=tuple(failures),
        )

    def _answer_batch(
        self, tensors: Mapping[str, Array], rows: int, request: str, before_call: Callable[[], None]
    ) -> tuple[list[Outputs], tuple[RowFailure, ...]]:
        """Call once; if the batch fails, bisect it. Outputs are over the good rows, in order."""
        search = Bisection(rows)
        kept: list[Outputs] = []
        while (indices := search.next()) is not None:
            before_call()
            whole = len(indices) == rows
            self.calls += 1
            self.retries += not whole
            try:
                part = (
                    self._own(tensors) if whole else {n: d.take(indices, axis=0) for n, d in tensors.items()}
                )
                outputs = self._check(self._call(part), len(indices), request)
            except RowError as error:
                search.refused({row: str(why)[:WHY_CHARS_MAX] for row, why in error.rows.items()})
            except _NOT_ABOUT_ROWS:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a model raises is about its rows
                _log.debug("batch failed", extra={"model": self._name, "rows": len(indices)}, exc_info=True)
                search.failed(reason(error))
            else:
                kept.append(outputs)
                search.succeeded()
        return kept, search.failures

    def _own(self, tensors: Mapping[str, Array]) -> Mapping[str, Array]:
        """All rows, for the model to do with as it likes: writing there must not spoil the rows of the next try."""
        if self._writes_inputs:
            return {n: d.copy() for n, d in tensors.items()}
        return {n: np.ascontiguousarray(d) for n, d in tensors.items()}

    def _call(self, tensors: Mapping[str, Array]) -> Any:
        return self._awaited(self.inputs.call(self._predict, tensors))

    def _awaited(self, result: Any) -> Any:
        """What an ``async def`` of the model comes to, on the instance's own loop."""
        if not inspect.iscoroutine(result):
            return result
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(result)

    def _wanted(self, outputs: Outputs, request: InferRequest) -> Outputs:
        """The outputs that the request asks for; all when it names none."""
        if not request.outputs or not outputs:
            return outputs
        missing = [n for n in request.outputs if n not in outputs]
        if missing:
            why = f"it has no output {', '.join(map(repr, missing))} (it has {', '.join(map(repr, outputs))})"
            raise ModelInputError(self._name, why)
        return {n: outputs[n] for n in request.outputs}


def reason(error: BaseException) -> str:
    """An exception as one reason: its type and message, cut at WHY_CHARS_MAX."""
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide which error it was
        text = ""
    return f"{kind}: {text}"[:WHY_CHARS_MAX] if text else kind
