"""The file ``model.toml``, which describes one model and its serving, and folders of such models.

::

    name = "churn"                  # default: the folder's name
    version = "2"                   # default: the name of the version folder, else "1"
    model = "churn.onnx"            # a file in the same folder, file.py:Class, or module:Class

    [options]                       # for the runtime, or for the class's __init__
    intra_op_threads = 2

    [serve]                         # see ServeSettings
    instances = 2
    isolation = "process"
    max_batch_rows = 64
    max_batch_delay_ms = 5
    queue_rows_max = 2048
    call_timeout_s = 60             # this and the following: for isolation = "process"
    memory_bytes_max = 4294967296
    environ_pass = ["MODEL_CACHE"]

    [sequences]                     # for a model with a step: see SequenceLimits
    live_max = 1000
    idle_ms = 30_000

    [scaling]                       # with instances_max: see InstanceScalingSettings
    backlog_per_worker = 16

Without ``model``, the only model file in the folder is taken.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from headrace.core.errors import ConfigError, ModelNotFoundError
from headrace.core.sequence import SequenceLimits
from headrace.core.settings_reader import read_settings, read_table
from headrace.engine.repository import ModelDefinition
from headrace.engine.settings import ServeSettings
from headrace.runtimes.load import model_candidates, model_factory
from headrace.scaling.settings import InstanceScalingSettings

MODEL_FILE: Final = "model.toml"
MODELS_MAX: Final = 4096
"""Limit of models in one folder."""
_NAMED_MAX: Final = 8
MODEL_KEYS: Final[Mapping[str, Any]] = {
    "name": str | int,
    "version": str | int,
    "model": str,
    "options": dict[str, Any],
    "serve": ServeSettings,
    "sequences": SequenceLimits,
    "scaling": InstanceScalingSettings,
}
"""The keys of the file, with their types or settings."""


def read_definition(
    path: Path,
    *,
    name: str | None = None,
    version: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> ModelDefinition:
    """Return the model that a ``model.toml`` describes. `name` and `version` are defaults.

    `options` replace those of the file, each by its name.

    Raises:
        ConfigError: A setting is invalid. The message names the file and the key.
        ModelLoadError: A Python file does not import.
    """
    document = _read_document(path)
    if unknown := sorted(document.keys() - MODEL_KEYS.keys()):
        raise _error(path, f"unknown key {unknown[0]!r}; the keys are {', '.join(MODEL_KEYS)}")
    model = document.get("model")
    if model is not None and not isinstance(model, str):
        raise _error(path, "'model' must be text: a file or a class")
    spec = _model_spec(path, model)
    source = model_factory(spec, {**_table(path, document, "options"), **(options or {})})
    return ModelDefinition(
        # The name of the folder in which the command runs is not part of the path.
        _text(path, document, "name", name or path.absolute().parent.name),
        _text(path, document, "version", version or "1"),
        source.make,
        source.fingerprint,
        _serve_settings(path, document),
    )


class ModelsFolder:
    """A folder of models: ``NAME/model.toml``, or ``NAME/VERSION/model.toml`` for several versions."""

    def __init__(self, root: Path) -> None:
        self._root = root
        if not root.is_dir():
            raise ConfigError(
                f"{root} is not a folder: a models folder has one folder with a {MODEL_FILE} for each model"
            )

    def all(self) -> list[ModelDefinition]:
        """Return every model.

        Raises:
            ConfigError: A model is invalid, or the folder has none.
        """
        definitions = [d for folder in self._folders() for d in self._definitions_in(folder)]
        if not definitions:
            raise self._empty_error()
        return definitions

    def only(self) -> Path:
        """Return the ``model.toml`` of the only model. Raises ConfigError if there is another number."""
        files = [file for folder in self._folders() for file, _, _ in self._files_in(folder)]
        if not files:
            raise self._empty_error()
        if len(files) > 1:
            names = ", ".join(str(file.parent) for file in files[:_NAMED_MAX])
            more = f" and {len(files) - _NAMED_MAX} more" if len(files) > _NAMED_MAX else ""
            raise ConfigError(f"{self._root} has several models: name one of {names}{more}")
        return files[0]

    def _empty_error(self) -> ConfigError:
        return ConfigError(f"{self._root} has no model: none of its folders has a {MODEL_FILE}")

    def find(self, name: str) -> Sequence[ModelDefinition]:
        """Return every version of one model, as the folder has it now.

        Only the names of other models are read, so an invalid model does not affect the others.

        Raises:
            ModelNotFoundError: The folder has no model with this name.
            ConfigError: As for `read_definition`, with paths relative to the folder: remote clients see
                the message.
        """
        try:
            found = [d for folder in self._folders() for d in self._definitions_in(folder, only=name)]
        except ConfigError as error:
            raise ConfigError(self._hide_root(str(error))) from error
        if not found:
            raise ModelNotFoundError(name, "the models folder has no model with this name")
        return found

    def _folders(self) -> list[Path]:
        folders = sorted(f for f in self._root.iterdir() if f.is_dir() and not f.name.startswith("."))
        if len(folders) > MODELS_MAX:
            raise ConfigError(f"{self._root} has {len(folders)} folders; the limit is {MODELS_MAX} models")
        return folders

    def _definitions_in(self, folder: Path, *, only: str | None = None) -> list[ModelDefinition]:
        return [
            read_definition(file, name=name, version=version)
            for file, name, version in self._files_in(folder)
            if only is None or _declared_name(file, name) == only
        ]

    def _files_in(self, folder: Path) -> list[tuple[Path, str, str]]:
        """Return the file, the default name and the default version of each version of a model."""
        if (folder / MODEL_FILE).is_file():
            return [(folder / MODEL_FILE, folder.name, "1")]
        versions = sorted(f for f in folder.iterdir() if (f / MODEL_FILE).is_file())
        return [(f / MODEL_FILE, folder.name, f.name) for f in versions]

    def _hide_root(self, text: str) -> str:
        for root in {str(self._root.resolve()), str(self._root)} - {".", "/"}:
            text = text.replace(f"{root}/", "").replace(root, "the models folder")
        return text


def is_models_folder(path: Path) -> bool:
    """Return True if a path is a folder of models, or of one model."""
    return path.is_dir() and (
        (path / MODEL_FILE).is_file()
        or any(path.glob(f"*/{MODEL_FILE}"))
        or any(path.glob(f"*/*/{MODEL_FILE}"))
    )


def _declared_name(path: Path, default: str) -> str:
    """Return the name in a ``model.toml``, or the default if the file is unreadable."""
    try:
        return str(_read_document(path).get("name", default))
    except ConfigError:
        return default


def _read_document(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise _error(path, f"it cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise _error(path, f"invalid TOML: {error}") from error


def _model_spec(path: Path, model: str | None) -> str:
    """Return the argument for `model_factory`.

    Files are searched in the folder of the ``model.toml``.
    """
    if model is None:
        return str(_only_model(path))
    file = model.partition(":")[0] if ".py:" in model else model
    beside = path.parent / file
    if not beside.exists():
        if ":" in model and ".py" not in model:
            return model
        raise _error(path, f"model {model!r}: {beside} does not exist")
    return str(path.parent / model)


def _only_model(path: Path) -> Path:
    found = model_candidates(path.parent)
    if len(found) == 1:
        return found[0]
    names = ", ".join(repr(f.name) for f in found)
    why = f"the candidates are {names}" if found else "no file in its folder is a model"
    raise _error(path, f'set the model, as in model = "churn.onnx": {why}')


def _serve_settings(path: Path, document: Mapping[str, Any]) -> ServeSettings:
    serve, sequences, scaling = (_table(path, document, key) for key in ("serve", "sequences", "scaling"))
    try:
        return replace(
            read_settings(ServeSettings, serve, "serve"),
            sequences=read_table(SequenceLimits, sequences, "sequences"),
            scaling=read_table(InstanceScalingSettings, scaling, "scaling"),
        )
    except ConfigError as error:
        raise _error(path, str(error)) from error


def _table(path: Path, document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = document.get(key, {})
    if not isinstance(table, dict):
        raise _error(path, f"{key!r} must be a table, as in [{key}]")
    return cast("Mapping[str, Any]", table)


def _text(path: Path, document: Mapping[str, Any], key: str, default: str) -> str:
    value = document.get(key, default)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value or "/" in value:
        raise _error(path, f"{key!r} must be text without a slash, not {value!r:.40}")
    return value


def _error(path: Path, why: str) -> ConfigError:
    return ConfigError(f"{path}: {why}")
