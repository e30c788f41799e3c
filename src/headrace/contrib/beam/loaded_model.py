"""A model that one of Beam's processes has loaded: its calls and its shutdown.

Independent of Beam, which owns and shares it.
"""

import logging
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from headrace.contrib.beam.elements import ONLY_INPUT
from headrace.core.errors import ConfigError, HeadraceError, ModelInputError
from headrace.core.predictor import Predictor
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata

_log = logging.getLogger("headrace.beam")

CLOSE_WAIT_S: Final = 5.0
"""Seconds to wait for a model's shutdown, since one of its calls may hang."""


@dataclass(frozen=True, slots=True)
class BatchResponses:
    """The responses to some requests, in order, and the id of their model."""

    model_id: str
    each: tuple[InferResponse | HeadraceError, ...]


class LoadedModel:
    """A started predictor for any thread, and for other processes through a proxy.

    For the proxy, it has only methods, and they take and return only values.

    Its owner may `close` it. Beam never does. When the last reference in the process goes, or the
    process ends normally, a thread stops the predictor, closes its model and ends its threads. The
    thread is awaited for up to `CLOSE_WAIT_S`.
    """

    def __init__(self, predictor: Predictor, model_id: str) -> None:
        self._predictor = predictor
        self._model_id = model_id
        self._metadata = predictor.metadata
        self._close = weakref.finalize(self, _stop_in_thread, predictor)
        if self._metadata.is_stateful or not self._metadata.can_predict:
            self._close()
            what = "works on sequences" if self._metadata.is_stateful else "serves only streams"
            raise ConfigError(
                f"model {self._metadata.name} {what}: Beam passes elements in no order, "
                "with one prediction each, so the model needs a predict method"
            )

    def __repr__(self) -> str:
        """Return a short text for logs."""
        return f"LoadedModel({self._model_id!r})"

    def metadata(self) -> ModelMetadata:
        """Return the model's metadata."""
        return self._metadata

    def infer(self, requests: Sequence[InferRequest]) -> BatchResponses:
        """Send all requests, and return their responses and errors in order.

        Requests are in flight together, as far as the predictor accepts them.

        Raises StoppedError after `close`.
        """
        futures: list[Future[InferResponse] | ModelInputError] = []
        try:
            futures.extend(
                self._predictor.submit(request) if isinstance(request, InferRequest) else request
                for request in map(self._with_input_name, requests)
            )
            return BatchResponses(self._model_id, tuple(map(_outcome, futures)))
        finally:
            for future in futures:
                if isinstance(future, Future):
                    future.cancel()

    def close(self) -> None:
        """Stop the predictor at once. Further calls do nothing."""
        self._close()

    def _with_input_name(self, request: InferRequest) -> InferRequest | ModelInputError:
        """Return the request with the model's own name for its one input, if the array has no name."""
        if len(request.inputs) != 1 or request.inputs[0].name != ONLY_INPUT:
            return request
        inputs = self._metadata.inputs
        if len(inputs) == 1:
            return replace(request, inputs=(replace(request.inputs[0], name=inputs[0].name),))
        names = ", ".join(repr(spec.name) for spec in inputs) or "not known"
        return ModelInputError(
            self._metadata.name,
            f"an array without a name needs a model with one input, but the inputs are {names}: "
            "pass dicts of arrays by input name",
        )


def _outcome(future: Future[InferResponse] | ModelInputError) -> InferResponse | HeadraceError:
    if isinstance(future, HeadraceError):
        return future
    try:
        return future.result()
    except HeadraceError as error:
        return error


def _stop_in_thread(predictor: Predictor) -> None:
    """Stop the predictor in a thread.

    Stopping waits for calls in progress, and the caller must not wait for these.
    """
    thread = threading.Thread(target=_stop, args=(predictor,), name="headrace-beam-end", daemon=True)
    with suppress(RuntimeError):  # The interpreter starts no more threads at exit; all of them end with it.
        thread.start()
        thread.join(CLOSE_WAIT_S)


def _stop(predictor: Predictor) -> None:
    try:
        predictor.stop(drain=False)
    except Exception:  # noqa: BLE001 - there is no caller to raise to
        _log.exception("a model failed to close")
