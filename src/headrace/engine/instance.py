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
from headrace.core.errors import ModelContractError, ModelLoadError, PredictError
from headrace.core.model import Model, RowError
from headrace.core.tensor import (
    Array,
    InferRequest,
    InferResponse,
    ModelMetadata,
    RowFailure,
    Tensor,
    TensorSpec,
)

_log = logging.getLogger("headrace.engine")

Outputs = dict[str, Array]


class Instance:
    """A model that was made, loaded and warmed up. Call it from one thread."""

    def __init__(self, make_model: Callable[[], Model], name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        try:
            self._model = make_model()
            self._model.load()
            self._names = _input_names(self._model)
            if inspect.iscoroutinefunction(self._model.predict):
                self._loop = asyncio.new_event_loop()
            self._model.warm_up()
            self._call_with_zeros()
        except ModelLoadError:
            raise
        except Exception as error:
            raise ModelLoadError(name, f"it did not load: {_reason(error)}") from error

    def _call_with_zeros(self) -> None:
        """The first call of a model is often slow: make it here, when sizes are known."""
        specs = self._model.inputs
        known = [s for s in specs if s.shape is not None and s.datatype != "BYTES" and -1 not in s.shape[1:]]
        if not specs or len(known) != len(specs):
            return
        try:
            self._call({s.name: np.zeros((1, *(s.shape or ())[1:]), _dtype(s)) for s in specs})
        except Exception:  # noqa: BLE001 - zeros may be no input that the model takes
            _log.debug("warm-up with zeros failed", extra={"model": self._name}, exc_info=True)

    def metadata(self, fingerprint: str) -> ModelMetadata:
        """What the loaded model says of itself."""
        model = self._model
        inputs = model.inputs or tuple(TensorSpec(name, "FP32") for name in self._names)
        return ModelMetadata(
            name=self._name,
            platform=type(model).__name__,
            inputs=inputs,
            outputs=model.outputs,
            max_batch_rows=model.max_batch_rows,
            max_batch_delay_ms=model.max_batch_delay_ms,
            fingerprint=fingerprint,
        )

    def close(self) -> None:
        """Let the model free what it holds; its errors are logged."""
        try:
            self._model.close()
        except Exception:
            _log.exception("model failed to close", extra={"model": self._name})
        if self._loop:
            self._loop.close()

    def answer(self, request: InferRequest) -> InferResponse:
        """Predict a request of any size, in calls of at most `max_batch_rows` rows.

        Rows that the model refuses are failures in the response. Raises ModelContractError when the model
        returns something else than a row for each row.
        """
        rows, size = request.rows, self._model.max_batch_rows
        tensors = {t.name: t.data for t in request.inputs}
        kept: list[Outputs] = []
        failures: list[RowFailure] = []
        for start in range(0, rows, size):
            stop = min(start + size, rows)
            part = tensors if stop - start == rows else {n: d[start:stop] for n, d in tensors.items()}
            outputs, refused = self._answer_batch(part, stop - start, request.id)
            kept.extend(outputs)
            failures.extend(RowFailure(f.row + start, f.why, f.attempts) for f in refused)
        joined = _joined(kept)
        outputs = tuple(Tensor(name, data) for name, data in joined.items())
        return InferResponse(outputs, self._name, id=request.id, failures=tuple(failures))

    def _answer_batch(
        self, tensors: Mapping[str, Array], rows: int, request: str
    ) -> tuple[list[Outputs], tuple[RowFailure, ...]]:
        """Call once; if the batch fails, bisect it. Outputs are over the good rows, in order."""
        search = Bisection(rows)
        kept: list[tuple[Array, Outputs]] = []
        while (indices := search.next()) is not None:
            whole = len(indices) == rows
            part = tensors if whole else {n: d[indices] for n, d in tensors.items()}
            try:
                outputs = self._checked(self._call(part), len(indices), request)
            except RowError as error:
                search.refused(error.rows)
            except ModelContractError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a model raises is about its rows
                _log.debug("batch failed", extra={"model": self._name, "rows": len(indices)}, exc_info=True)
                search.failed(_reason(error))
            else:
                kept.append((indices, outputs))
                search.succeeded()
        kept.sort(key=lambda pair: int(pair[0][0]))
        return _in_row_order(kept), search.failures

    def _call(self, tensors: Mapping[str, Array]) -> Any:
        predict = self._model.predict
        if len(tensors) == 1 and len(self._names) <= 1:
            result = predict(*tensors.values()) if self._names else predict(**tensors)
        else:
            result = predict(**tensors)
        if self._loop is not None:
            result = self._loop.run_until_complete(result)
        return result

    def _checked(self, returned: Any, rows: int, request: str) -> Outputs:
        """Arrays by name, a row each; anything else is a broken contract, which no bisection can cure."""
        named: Mapping[str, Any]
        if isinstance(returned, Mapping):
            named = returned
        else:
            specs = self._model.outputs
            named = {specs[0].name if len(specs) == 1 else "output": returned}
        outputs: Outputs = {name: np.asarray(data) for name, data in named.items()}
        for name, data in outputs.items():
            if data.ndim == 0 or len(data) != rows:
                got = "one value" if data.ndim == 0 else f"{len(data)} rows"
                raise ModelContractError(
                    self._name,
                    f"output {name!r} has {got} for the {rows} rows of {request or 'a request'}: predict must "
                    "return a row for each row it is given (raise RowError to refuse one)",
                )
        if not outputs:
            raise ModelContractError(self._name, f"it returned no output for {request or 'a request'}")
        return outputs


def _in_row_order(kept: list[tuple[Array, Outputs]]) -> list[Outputs]:
    """Parts' rows in ascending order, also where refused rows made parts interleave."""
    if len(kept) <= 1:
        return [outputs for _, outputs in kept]
    order = np.argsort(np.concatenate([indices for indices, _ in kept]), kind="stable")
    joined = _joined([outputs for _, outputs in kept])
    return [{name: data[order] for name, data in joined.items()}]


def _joined(parts: list[Outputs]) -> Outputs:
    if len(parts) <= 1:
        return parts[0] if parts else {}
    return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


def _input_names(model: Model) -> tuple[str, ...]:
    """The parameters of `predict`; none when it takes anything by keyword."""
    parameters = inspect.signature(model.predict).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(p.name for p in parameters if p.kind in positional)


def _dtype(spec: TensorSpec) -> np.dtype[Any]:
    from headrace.core.tensor import dtype_of  # noqa: PLC0415

    return dtype_of(spec.datatype)


def _reason(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def predict_error(name: str, error: BaseException) -> PredictError:
    """What a model must not raise (SystemExit and the like) as an error of the tree."""
    made = PredictError(name, _reason(error))
    made.__cause__ = error
    return made
