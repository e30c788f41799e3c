"""scikit-learn estimators from ``.skops`` files as models.

The only module that imports scikit-learn, skops and joblib.
"""

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from typing_extensions import override

from headrace.core.errors import ConfigError, MissingExtraError, ModelLoadError
from headrace.core.model import Model
from headrace.core.tensor import Array, TensorSpec
from headrace.runtimes.model_io import decode_text, option_advice, summarize_error, tensor_specs

try:
    import joblib as _joblib
    import sklearn.base as _base
    import sklearn.compose as _compose
    import sklearn.pipeline as _pipeline
    import sklearn.utils as _utils
    import skops.io as _skops
except ImportError as _error:
    raise MissingExtraError("sklearn", "a scikit-learn model") from _error

# These packages have no types.
base: Any = _base
compose: Any = _compose
joblib: Any = _joblib
pipeline: Any = _pipeline
skops: Any = _skops
utils: Any = _utils

METHODS: Final = (
    "predict",
    "predict_proba",
    "predict_log_proba",
    "decision_function",
    "score_samples",
    "transform",
)
_NAMES_WARNING: Final = "X does not have valid feature names"


class SklearnModel(Model):
    """A fitted estimator or pipeline.

    Each selected method is an output of the method's name: ``predict`` ``[n]`` (or ``[n, k]``),
    ``predict_proba`` ``[n, classes]`` in the order of the estimator's ``classes_``, and so on. The
    input depends on the estimator:

    - Usually it is one matrix ``x`` ``[n, features]``.
    - For a pipeline that begins with a text vectorizer it is text, ``x`` ``[n]``.
    - For a pipeline that selects columns by name (a ColumnTransformer fitted on a DataFrame) each
      column is an input ``[n]``. This needs pandas. Columns that the encoders know as text are
      BYTES, others are numbers.

    Args:
        path: A ``.skops`` file. ``.joblib``, ``.pkl`` and ``.pickle`` need `allow_pickle`.
        method: One of `METHODS` or a list of them. None means ``predict``, and ``predict_proba``
            for a classifier that has it; ``transform`` for an estimator without ``predict``.
        trusted: Full names of types that the file may contain besides those that skops trusts.
        allow_pickle: Load a pickle, which can run any code.
        datatype: The datatype of numeric inputs, FP64 or FP32.
        inputs: Specs that override the detected ones: one for a matrix or a text, several for named
            columns.
    """

    writes_inputs = False

    def __init__(
        self,
        path: Path,
        *,
        method: str | Sequence[str] | None = None,
        trusted: Sequence[str] = (),
        allow_pickle: bool = False,
        datatype: str = "FP64",
        inputs: Sequence[Any] | None = None,
    ) -> None:
        self._path = path
        self._methods = _checked_methods(method, path)
        if isinstance(trusted, str):
            raise ConfigError(f"{path}: option 'trusted' must be a list of type names, not a string")
        self._trusted = list(trusted)
        if datatype not in ("FP32", "FP64"):
            raise ConfigError(f"{path}: option 'datatype' must be FP32 or FP64, not {datatype!r}")
        self._datatype = datatype
        self._specs = tensor_specs(inputs, "inputs", str(path))
        self._is_pickle = path.suffix != ".skops"
        if self._is_pickle and allow_pickle is not True:
            raise ConfigError(
                f"{path} is a pickle, and loading a pickle can run any code. Save the model with "
                f"skops.io.dump as .skops. If you trust the file, {option_advice('allow_pickle', True)}"
            )
        self._estimator: Any = None

    @override
    def load(self) -> None:
        """Read the file.

        Raises ModelLoadError, which lists the types in the file that are not trusted.
        """
        try:
            data = self._path.read_bytes()
        except OSError as error:
            raise self._load_error(f"its file cannot be read: {error.strerror or error}") from error
        # The arrays here may lack the column names that the estimator was fitted with.
        warnings.filterwarnings("ignore", message=re.escape(_NAMES_WARNING), category=UserWarning)
        try:
            self._estimator = joblib.load(io.BytesIO(data)) if self._is_pickle else self._load_skops(data)
        except ModelLoadError:
            raise
        except Exception as error:
            raise self._load_error(f"{self._path} cannot be loaded: {summarize_error(error)}") from error
        self._methods = self._methods or self._usual_methods()
        if missing := [m for m in self._methods if not hasattr(self._estimator, m)]:
            has = ", ".join(m for m in METHODS if hasattr(self._estimator, m)) or "none of them"
            raise self._load_error(
                f"{type(self._estimator).__name__} has no method {', '.join(missing)}; "
                f"of {', '.join(METHODS)} it has {has}"
            )
        self._columns = _selects_by_name(self._estimator) if not self._specs else len(self._specs) > 1
        self.inputs = self._specs or self._found_specs()

    def _load_skops(self, data: bytes) -> Any:
        untrusted = [t for t in skops.get_untrusted_types(data=data) if t not in self._trusted]
        if untrusted:
            raise self._load_error(
                f"{self._path} contains types that skops does not trust: {', '.join(untrusted)}. "
                f"If you trust the file, {option_advice('trusted', [*self._trusted, *untrusted])}"
            )
        return skops.loads(data, trusted=self._trusted)

    def _usual_methods(self) -> tuple[str, ...]:
        found = self._estimator
        if hasattr(found, "predict"):
            both = base.is_classifier(found) and hasattr(found, "predict_proba")
            return ("predict", "predict_proba") if both else ("predict",)
        return ("transform",) if hasattr(found, "transform") else ("predict",)

    def _found_specs(self) -> tuple[TensorSpec, ...]:
        found = self._estimator
        if self._columns:
            texts = _text_columns(found)
            names = [str(n) for n in found.feature_names_in_]
            return tuple(TensorSpec(n, "BYTES" if n in texts else self._datatype, (-1,)) for n in names)
        if _takes_text(found):
            return (TensorSpec("x", "BYTES", (-1,)),)
        return (TensorSpec("x", self._datatype, (-1, int(getattr(found, "n_features_in_", -1)))),)

    @override
    def close(self) -> None:
        self._estimator = None

    @override
    def predict(self, /, **tensors: Array) -> Mapping[str, Array]:
        """Call each method once. Raises RowError for text that is not UTF-8."""
        inputs = {s.name: _decoded(s, tensors[s.name]) for s in self.inputs}
        x: Any = self._frame(inputs) if self._columns else next(iter(inputs.values()))
        outputs: dict[str, Array] = {}
        for method in self._methods:
            outputs |= _named_outputs(method, getattr(self._estimator, method)(x))
        return outputs

    def _frame(self, columns: Mapping[str, Array]) -> Any:
        from headrace.runtimes.frames import frame_from_columns  # noqa: PLC0415 - a rarely needed extra

        return frame_from_columns(columns)

    def _load_error(self, why: str) -> ModelLoadError:
        return ModelLoadError(self._path.stem, why)


def _checked_methods(method: str | Sequence[str] | None, path: Path) -> tuple[str, ...]:
    methods = (method,) if isinstance(method, str) else tuple(method or ())
    if unknown := [m for m in methods if m not in METHODS]:
        raise ConfigError(f"{path}: option 'method' must be one of {', '.join(METHODS)}, not {unknown[0]!r}")
    return methods


def _decoded(spec: TensorSpec, data: Array) -> Array:
    if spec.datatype != "BYTES":
        return data
    texts = decode_text(spec.name, data)
    return texts.reshape(len(texts)) if texts.ndim == 2 and texts.shape[1] == 1 else texts


def _named_outputs(method: str, result: Any) -> dict[str, Array]:
    """Return a method's result by output name.

    A list (several targets) is numbered, a sparse matrix becomes dense.
    """
    if isinstance(result, list):
        several = enumerate(cast("list[Any]", result))
        return {f"{method}_{index}": np.asarray(part) for index, part in several}
    return {method: np.asarray(result.toarray() if hasattr(result, "toarray") else result)}


# Inputs of a fitted estimator


def _first_steps(estimator: Any) -> Iterator[Any]:
    """Yield the estimator and every step whose input is the estimator's own."""
    yield estimator
    if isinstance(estimator, pipeline.Pipeline):
        yield from _first_steps(estimator.steps[0][1])
    elif isinstance(estimator, pipeline.FeatureUnion):
        for _, part in estimator.transformer_list:
            yield from _first_steps(part)
    elif (inner := getattr(estimator, "best_estimator_", None)) is not None:
        yield from _first_steps(inner)


def _selects_by_name(estimator: Any) -> bool:
    """Return True if a step selects columns by name, so that the estimator needs a DataFrame."""
    by_column = [s for s in _first_steps(estimator) if isinstance(s, compose.ColumnTransformer)]
    return hasattr(estimator, "feature_names_in_") and bool(by_column)


def _takes_text(estimator: Any) -> bool:
    """Return True if the input is one text per row, as for vectorizers."""
    return any(
        (tags := utils.get_tags(step).input_tags).string and not tags.two_d_array
        for step in _first_steps(estimator)
        if isinstance(step, base.BaseEstimator)
    )


def _text_columns(estimator: Any) -> set[str]:
    """Return the columns that were text when the ColumnTransformers of the first steps were fitted."""
    texts: set[str] = set()
    for step in _first_steps(estimator):
        if not isinstance(step, compose.ColumnTransformer):
            continue
        names = [str(n) for n in step.feature_names_in_]
        for _, part, selected in step.transformers_:
            columns = _column_names(selected, names)
            if isinstance(part, str):
                continue
            if _takes_text(part):
                texts.update(columns)
            texts.update(c for c, known in zip(columns, _categories(part), strict=False) if known)
    return texts


def _categories(transformer: Any) -> list[bool]:
    """Return, for each column of an encoder, True if its categories are text."""
    for step in _first_steps(transformer):
        if (known := getattr(step, "categories_", None)) is not None:
            return [np.asarray(c).dtype.kind in "OUS" for c in known]
    return []


def _column_names(selected: Any, names: Sequence[str]) -> list[str]:
    """Return a ColumnTransformer's selection (names, indices, a slice or a mask) by name."""
    if isinstance(selected, str):
        return [selected]
    if isinstance(selected, slice):
        return list(names[selected])
    many = list(cast("Sequence[Any]", selected)) if np.ndim(selected) else [selected]
    if many and all(isinstance(c, str) for c in many):
        return many
    return [str(n) for n in np.asarray(names, object)[np.asarray(selected)].reshape(-1)]
