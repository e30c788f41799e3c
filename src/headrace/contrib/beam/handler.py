"""headrace models inside Beam's own RunInference, loaded in Beam's workers."""

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from headrace.app.models import PredictorOptions, open_predictor
from headrace.contrib.beam.handler_mixin import HandlerMixin
from headrace.contrib.beam.library import base
from headrace.contrib.beam.loaded_model import LoadedModel
from headrace.contrib.beam.model_download import download_model, is_remote
from headrace.contrib.beam.results import NAMESPACE, Failures
from headrace.core.errors import ConfigError, HeadraceError
from headrace.core.model import Model

_log = logging.getLogger("headrace.beam")

MAX_BATCH_ROWS: Final = Model.max_batch_rows
"""Batch size for a model that cannot be loaded where the pipeline is built."""

BeamModel = str | Path | type[Model] | Callable[[], Model]
"""A model: a file (``model.onnx``, ``file.py:Class``), a folder, ``module:Class``, a URI, or a class."""


class ModelHandler(HandlerMixin, base.ModelHandler):
    """A handler that runs a headrace model in `apache_beam.ml.inference.RunInference`.

    ::

        predictions = rows | RunInference(ModelHandler("churn.onnx"))

    Elements are numpy arrays (one row each, for a model of one input), dicts of arrays by input
    name (one row each), or `InferRequest` (one row or more). For each element there is a
    `PredictionResult(example, inference, model_id)`. The inference is a dict of the row's outputs
    by name, or, for a request, an `InferResponse`. Rows of one batch may differ in shape: rows of
    equal shapes share a request.

    A failure of the model itself (it does not load, returns n-1 rows for n, dies) fails the batch.
    A row that the model refuses, or that does not fit, is isolated. With ``failures="return"`` its
    inference is an `ElementFailure`, and all other rows have their predictions; `SplitFailures`
    separates them. With ``failures="raise"`` the batch fails with a RefusedRowsError that names the
    row. Beam's `with_exception_handling` then puts the whole batch aside, as for every handler.

    Each process loads the model once, in an engine of its own (with `large_model`, one process for
    all). The engine stops when Beam drops the model, or the process ends. RunInference's
    `inference_args` are parameters of each request.

    Args:
        model: A model as for `headrace.stream`, or the URI of a file such as
            ``s3://models/churn.onnx`` (a folder's ends in ``/``). Each process downloads a URI with
            the credentials of its environment. Plain paths are paths on the workers.
        options: Instances and `model_options`.
        failures: The treatment of elements without a prediction, ``"raise"`` or ``"return"``.
        min_batch_size, max_batch_size: Bounds of Beam's batches. The default maximum is the row
            limit of the model's calls. To find it, the model is loaded once where the pipeline is
            built, unless the model is not there, or with `large_model`.
        max_batch_duration_secs, max_batch_weight, element_size_fn, batch_length_fn,
            batch_bucket_boundaries: As in Beam.
        large_model: Keep one copy of the model for all processes of a worker. Its requests cross a
            pipe.
        model_copies: The number of copies for all processes of a worker.
        min_ram, accelerator: Resource hints, such as ``"12GB"`` and
            ``"type:nvidia-tesla-t4;count:1;install-nvidia-driver"``.
        env_vars: Variables set in the workers before the model is loaded. They are part of the
            pipeline: do not put secrets there.

    Raises ConfigError for invalid arguments. May be pickled before and after use.
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
        HandlerMixin.__init__(self, failures, NAMESPACE)
        if not isinstance(model, str | Path) and not callable(model):
            raise ConfigError(
                f"model must be a model's name or class, from which every worker makes its own model, "
                f"not a {type(model).__name__}"
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
        """Return the model in a started engine. Raises ModelLoadError and similar errors."""
        if not isinstance(self._model, str):
            return _loaded(self._model, self._options, getattr(self._model, "__name__", "model"))
        local = download_model(self._model)
        return _loaded(local.spec, self._options, self._model, local.folder)

    def run_inference(
        self, batch: Sequence[Any], model: LoadedModel, inference_args: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Return a PredictionResult for each element, in order.

        All are computed before Beam sees one.
        """
        return self._predict(batch, model, inference_args)

    def batch_elements_kwargs(self) -> Mapping[str, Any]:
        """Return Beam's batch settings.

        The default of `max_batch_size` is the row limit of the model's calls.
        """
        settings: dict[str, Any] = dict(base.ModelHandler.batch_elements_kwargs(self))
        if "max_batch_size" not in settings:
            settings["max_batch_size"] = max(self._model_rows(), settings.get("min_batch_size", 1))
        return settings

    def _model_rows(self) -> int:
        if self._rows_hint is None:
            self._rows_hint = self._probe_max_rows()
        return self._rows_hint

    def _probe_max_rows(self) -> int:
        if self.share_model_across_processes() or (isinstance(self._model, str) and is_remote(self._model)):
            return MAX_BATCH_ROWS
        try:
            loaded = self.load_model()
        except HeadraceError as error:
            _log.info(
                "%s cannot be loaded where the pipeline is built; its row limit is not known: %s",
                self._model,
                error,
            )
            return MAX_BATCH_ROWS
        try:
            return loaded.metadata().max_batch_rows
        finally:
            loaded.close()

    def get_resource_hints(self) -> dict[str, Any]:
        """Return the resource hints."""
        return dict(self._resource_hints)

    def update_model_path(self, model_path: str | None = None) -> None:
        """Set the model of the next `load_model`: a path, a URI, or a name, as for `model`."""
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
