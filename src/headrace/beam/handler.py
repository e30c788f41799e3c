"""Any headrace model inside Beam's own RunInference, loaded in Beam's workers."""

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from headrace.app.streaming import PredictorOptions, open_predictor
from headrace.beam.answering import Answering
from headrace.beam.fetched import fetched, is_remote
from headrace.beam.library import base
from headrace.beam.loaded import LoadedModel
from headrace.beam.results import NAMESPACE, Failures
from headrace.core.errors import ConfigError, HeadraceError
from headrace.core.model import Model

_log = logging.getLogger("headrace.beam")

MAX_BATCH_ROWS: Final = Model.max_batch_rows
"""Hint for a model that cannot be looked at where the pipeline is built."""

BeamModel = str | Path | type[Model] | Callable[[], Model]
"""A file (``model.onnx``, ``file.py:Class``), a folder, ``module:Class``, the URI of any of these files, or a Model class."""


class ModelHandler(Answering, base.ModelHandler):
    """Runs a headrace model in `apache_beam.ml.inference.RunInference`.

    ::

        predictions = rows | RunInference(ModelHandler("churn.onnx"))

    Elements are numpy arrays (one row each, for a model of one input), dicts of arrays by input name (one row each), or
    `InferRequest` (one row or more). For every one there is a `PredictionResult(example, inference, model_id)`, whose
    inference is a dict of the row's outputs by name, or, for a request, an `InferResponse`. Rows of one batch may differ in shape:
    those that are alike are asked together.

    A model that is at fault itself (it does not load, returns n-1 rows for n, dies) fails the batch. A row that it refuses,
    or that does not fit, is isolated: with ``failures="return"`` its inference is an `ElementFailure`, and all other rows have
    their predictions; `SplitFailures` parts them. With ``failures="raise"`` the batch fails, with RefusedRowsError that
    names the row, and Beam's `with_exception_handling` puts the whole batch aside, as it does for every handler.

    Each process loads the model once, in an engine of its own (with `large_model`, one process for all), which ends when
    Beam drops the model, or its process ends. RunInference's `inference_args` are parameters of each request.

    Args:
        model: What `headrace.stream` takes, or a file's URI such as ``s3://models/churn.onnx`` (a folder's ends in ``/``), which
            each process fetches with the credentials of its environment. Plain paths are paths on the workers.
        options: Instances and `model_options`.
        failures: What happens to elements that have no prediction, ``"raise"`` or ``"return"``.
        min_batch_size, max_batch_size: Bounds of Beam's batches. Where no maximum is given, no batch is larger than what the model takes
            in one call; to know that, the model is loaded once where the pipeline is built, unless it is not there, or `large_model`.
        max_batch_duration_secs, max_batch_weight, element_size_fn, batch_length_fn, batch_bucket_boundaries: As Beam has them.
        large_model: One copy of the model for all processes of a worker; what it is asked crosses a pipe.
        model_copies: So many copies for all processes of a worker.
        min_ram, accelerator: Resource hints, such as ``"12GB"`` and ``"type:nvidia-tesla-t4;count:1;install-nvidia-driver"``.
        env_vars: Set in the workers before the model is loaded. They are part of the pipeline: no place for secrets.

    Raises ConfigError for what cannot be. May be pickled before and after use.
    """

    def __init__(
        self,
        model: BeamModel,
        *,
        options: PredictorOptions | None = None,
        failures: Failures = "raise",
        min_batch_size: int | None = None,
        max_batch_size: int | None = None,
        max_batch_duration_secs: int | None = None,
        max_batch_weight: int | None = None,
        element_size_fn: Callable[[Any], int] | None = None,
        batch_length_fn: Callable[[Any], int] | None = None,
        batch_bucket_boundaries: list[int] | None = None,
        large_model: bool = False,
        model_copies: int | None = None,
        min_ram: str | None = None,
        accelerator: str | None = None,
        env_vars: Mapping[str, str] | None = None,
    ) -> None:
        base.ModelHandler.__init__(
            self,
            min_batch_size=min_batch_size,
            max_batch_size=max_batch_size,
            max_batch_duration_secs=max_batch_duration_secs,
            max_batch_weight=max_batch_weight,
            element_size_fn=element_size_fn,
            batch_length_fn=batch_length_fn,
            batch_bucket_boundaries=batch_bucket_boundaries,
            large_model=large_model,
            model_copies=model_copies,
            env_vars=dict(env_vars or {}),
        )
        Answering.__init__(self, failures, NAMESPACE)
        if not isinstance(model, str | Path) and not callable(model):
            raise ConfigError(
                f"a handler takes a model's name or class, which every worker makes anew, not a {type(model).__name__}"
            )
        self._model: str | Callable[[], Model] = str(model) if isinstance(model, Path) else model
        self._options = options or PredictorOptions()
        self._resource_hints = {
            name: value
            for name, value in (("min_ram", min_ram), ("accelerator", accelerator))
            if value is not None
        }
        self._rows_hint: int | None = None

    def load_model(self) -> LoadedModel:
        """The model in a started engine. Raises ModelLoadError and the like."""
        if not isinstance(self._model, str):
            return _loaded(self._model, self._options, getattr(self._model, "__name__", "model"))
        here = fetched(self._model)
        return _loaded(here.spec, self._options, self._model, here.folder)

    def run_inference(
        self, batch: Sequence[Any], model: LoadedModel, inference_args: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """A PredictionResult for each element, in their order; all at once, so that Beam counts a batch that fails."""
        return self._answers(batch, model, inference_args)

    def batch_elements_kwargs(self) -> Mapping[str, Any]:
        """What was given, and else the most rows that the model takes in one call."""
        given: dict[str, Any] = dict(base.ModelHandler.batch_elements_kwargs(self))
        if "max_batch_size" not in given:
            given["max_batch_size"] = max(self._rows_of_model(), given.get("min_batch_size", 1))
        return given

    def _rows_of_model(self) -> int:
        if self._rows_hint is None:
            self._rows_hint = self._look_at_rows()
        return self._rows_hint

    def _look_at_rows(self) -> int:
        if self.share_model_across_processes() or (isinstance(self._model, str) and is_remote(self._model)):
            return MAX_BATCH_ROWS
        try:
            loaded = self.load_model()
        except HeadraceError as error:
            _log.info("%s is not looked at where the pipeline is built: %s", self._model, error)
            return MAX_BATCH_ROWS
        try:
            return loaded.metadata().max_batch_rows
        finally:
            loaded.close()

    def get_resource_hints(self) -> dict[str, Any]:
        """As given."""
        return dict(self._resource_hints)

    def update_model_path(self, model_path: str | None = None) -> None:
        """The next `load_model` loads this model: a path, a URI, or a name, as for `model`."""
        if model_path:
            self._model = model_path


def _loaded(
    model: str | Callable[[], Model], options: PredictorOptions, model_id: str, folder: Path | None = None
) -> LoadedModel:
    try:
        predictor = open_predictor(model, None, options).predictor
        predictor.start()
    except BaseException:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return LoadedModel(predictor, model_id, folder)
