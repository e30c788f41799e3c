"""A model that a process of Beam's has loaded, and its end. Knows nothing of Beam, which holds it and shares it."""

import logging
import shutil
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from headrace.beam.elements import ONLY_INPUT
from headrace.core.errors import ConfigError, HeadraceError, ModelInputError
from headrace.core.predictor import Predictor
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata

_log = logging.getLogger("headrace.beam")

CLOSE_WAIT_S: Final = 5.0
"""How long whoever lets go of the last reference waits for the end of a model, which may be in a call that hangs."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What came of some requests, in their order, and of which model it is."""

    model_id: str
    each: tuple[InferResponse | HeadraceError, ...]


class LoadedModel:
    """A started predictor. Asked from any thread, or from other processes through a proxy: methods alone, values alone.

    Whoever holds it may `close` it. Beam never does: so when nobody in its process refers to it any more, or the process ends
    in order, the predictor is stopped, its model closed and its threads ended, by a thread that is waited for `CLOSE_WAIT_S` at most.
    """

    def __init__(self, predictor: Predictor, model_id: str, folder: Path | None = None) -> None:
        self._predictor = predictor
        self._model_id = model_id
        self._metadata = predictor.metadata
        self._close = weakref.finalize(self, _end, predictor, folder)
        if self._metadata.steps or not self._metadata.predicts:
            self._close()
            what = "belongs to sequences" if self._metadata.steps else "answers streams only"
            raise ConfigError(
                f"model {self._metadata.name} {what}: Beam hands over elements in no order, one prediction for each, "
                "so it needs a model that predicts"
            )

    def __repr__(self) -> str:
        """For logs."""
        return f"LoadedModel({self._model_id!r})"

    def metadata(self) -> ModelMetadata:
        """The model's."""
        return self._metadata

    def answer(self, requests: Sequence[InferRequest]) -> Answers:
        """Ask all of them at once, as far as the predictor takes them; what fails is a value here.

        Raises StoppedError once it is closed.
        """
        asked: list[Future[InferResponse] | ModelInputError] = []
        try:
            asked.extend(
                self._predictor.submit(request) if isinstance(request, InferRequest) else request
                for request in map(self._named, requests)
            )
            return Answers(self._model_id, tuple(map(_outcome, asked)))
        finally:
            for one in asked:
                if isinstance(one, Future):
                    one.cancel()

    def close(self) -> None:
        """Stop it, at once. Twice does nothing."""
        self._close()

    def _named(self, request: InferRequest) -> InferRequest | ModelInputError:
        """With the model's own name for its one input, where the array came without one."""
        if len(request.inputs) != 1 or request.inputs[0].name != ONLY_INPUT:
            return request
        inputs = self._metadata.inputs
        if len(inputs) == 1:
            return replace(request, inputs=(replace(request.inputs[0], name=inputs[0].name),))
        names = ", ".join(repr(spec.name) for spec in inputs) or "not known"
        return ModelInputError(
            self._metadata.name,
            f"an array without a name is for a model of one input, and its inputs are {names}: "
            "give dicts of arrays by input name",
        )


def _outcome(asked: Future[InferResponse] | ModelInputError) -> InferResponse | HeadraceError:
    if isinstance(asked, HeadraceError):
        return asked
    try:
        return asked.result()
    except HeadraceError as error:
        return error


def _end(predictor: Predictor, folder: Path | None) -> None:
    """Stop the predictor, in a thread: it waits for calls in progress, and whoever let go of it must not."""
    ending = threading.Thread(target=_stop, args=(predictor, folder), name="headrace-beam-end", daemon=True)
    with suppress(
        RuntimeError
    ):  # the interpreter is past the point where threads begin; they all end with it
        ending.start()
        ending.join(CLOSE_WAIT_S)


def _stop(predictor: Predictor, folder: Path | None) -> None:
    try:
        predictor.stop(drain=False)
    except Exception:  # noqa: BLE001 - nobody is there to raise it to
        _log.exception("a model did not close")
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
