"""From what a user writes to a model: a file, a folder or a class, and options, all plain text and values."""

import hashlib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import orjson

from headrace.core.errors import ConfigError, ModelLoadError
from headrace.core.model import Model, ModelRecipe
from headrace.runtimes.classes import (
    ImportedModule,
    import_file,
    import_module,
    is_dotted_class,
    is_mlserver_class,
    model_maker,
    split_spec,
    unreadable,
)
from headrace.runtimes.options import Options, arguments, option_names, plain_options

_ONNX: Final = ("headrace.runtimes.onnx", "OnnxModel")
_SKLEARN: Final = ("headrace.runtimes.sklearn", "SklearnModel")
_TORCH: Final = ("headrace.runtimes.torch", "TorchModel")
_MLFLOW: Final = ("headrace.runtimes.mlflow", "MlflowModel")
_HUGGINGFACE: Final = ("headrace.runtimes.huggingface", "HuggingFaceModel")

# Each runtime is an extra, imported when its first model is made.
_FILES: Final = {
    ".onnx": _ONNX,
    ".skops": _SKLEARN,
    ".joblib": _SKLEARN,
    ".pkl": _SKLEARN,
    ".pickle": _SKLEARN,
    ".pt": _TORCH,
    ".ts": _TORCH,
    ".pt2": _TORCH,
    ".safetensors": _TORCH,
}
_MLSERVER_SETTINGS: Final = "model-settings.json"
_FOLDERS: Final = {"MLmodel": _MLFLOW, "config.json": _HUGGINGFACE}
_ACCEPTED: Final = (
    "a model is a file model.onnx, file.py or file.py:Class, a class module:Class, "
    "a file .skops, .pt, .ts, .pt2 or .safetensors, or a folder with an MLmodel, a config.json or a model-settings.json"
)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that can be made as often as there are instances, here or in another process.

    `fingerprint` is the sha256 of its file (of all files' names and contents, for a folder), and of the options where
    there are any. What a file imports, or keeps its weights in, does not change it. `spec` and `options` are
    plain text and values: ``model_factory(spec, options).make()`` makes the same model in any process that has the
    same current directory, so nothing needs to be pickled.
    """

    make: Callable[[], Model]
    name: str
    fingerprint: str
    spec: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class NamedMaker:
    """Makes a source's models, and knows by what name another process makes them."""

    make: Callable[[], Model]
    recipe: ModelRecipe

    def __call__(self) -> Model:
        """A new model."""
        return self.make()


def make_model(spec: str, options: Mapping[str, Any] | None = None) -> Model:
    """The model of a spec: what a process of its own begins with. Raises what `model_factory` and `make` raise."""
    return model_factory(spec, options).make()


def model_factory(spec: str, options: Mapping[str, Any] | None = None) -> ModelSource:
    """Find a model; nothing is loaded yet but a Python module.

    A function in the place of a class makes the models. `options` are handed to the runtime, class or function as
    keyword arguments; they must be plain values, as JSON has them. `make` carries the recipe by which another process
    with the same current directory makes the model.

    Raises ConfigError for what is no model and for options that a class does not have, ModelLoadError when its file
    cannot be read or imported. `make` raises MissingExtraError where the runtime's packages are missing, and ConfigError
    for options that the runtime does not have.
    """
    source = _source(spec, options)
    recipe = ModelRecipe(f"{__name__}:{make_model.__name__}", {"spec": spec, "options": dict(source.options)})
    return replace(source, make=NamedMaker(source.make, recipe))


def _source(spec: str, options: Mapping[str, Any] | None) -> ModelSource:
    if "://" in spec:
        raise ConfigError(f"{spec}: models are read from local files; download it first, then --model FILE")
    plain = plain_options(options, spec)
    place, class_name = split_spec(spec)
    path = Path(spec)
    if place.endswith(".py"):
        return _class(spec, plain, import_file(Path(place)), class_name)
    if (runtime := _FILES.get(path.suffix)) is not None:
        return _made_by(runtime, spec, plain, path.stem, _file_sha256(path) + _class_sha256(path, plain))
    if spec and path.is_dir():
        return _folder(spec, plain, path)
    if not is_dotted_class(place, class_name):
        raise ConfigError(f"{spec!r} is no model: {_ACCEPTED}")
    return _class(spec, plain, import_module(place, class_name), class_name)


def _class(spec: str, options: Options, imported: ImportedModule, class_name: str) -> ModelSource:
    found = model_maker(imported, class_name)
    name = Path(imported.where).stem if imported.where.endswith(".py") else class_name
    fingerprint = _with_options(imported.fingerprint, options)
    if is_mlserver_class(found):
        return ModelSource(lambda: _mlserver(found, name, options), name, fingerprint, spec, options)
    keywords = arguments(options, option_names(found), spec)
    make: Callable[[], Model] = (lambda: found(**keywords)) if keywords else found
    return ModelSource(make, name, fingerprint, spec, options)


def _mlserver(found: Any, name: str, options: Options, source: Path | None = None) -> Model:
    from headrace.runtimes.mlserver import mlserver_model  # noqa: PLC0415 - an extra, imported when used

    return mlserver_model(found, {"name": name, **options}, source)


def _mlserver_folder(spec: str, options: Options, folder: Path) -> ModelSource:
    """A folder as MLServer serves it: the settings name a class, of a module in the folder or an installed one."""
    file = folder / _MLSERVER_SETTINGS
    try:
        told: Any = orjson.loads(file.read_bytes())
        module, _, class_name = str(told["implementation"]).rpartition(".")
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise ModelLoadError(str(file), f"it is no JSON object with an implementation: {error}") from error
    own = folder / f"{module.replace('.', '/')}.py"
    imported = import_file(own) if own.is_file() else import_module(module, class_name)
    found = model_maker(imported, class_name)
    if not is_mlserver_class(found):
        raise ConfigError(f"{file}: its implementation {class_name} is no subclass of mlserver.MLModel")
    settings = {k: v for k, v in told.items() if k != "implementation"} | options
    name = str(settings.get("name") or folder.resolve().name)
    fingerprint = _with_options(_folder_sha256(folder), options)
    return ModelSource(lambda: _mlserver(found, name, settings, file), name, fingerprint, spec, options)


def _folder(spec: str, options: Options, folder: Path) -> ModelSource:
    if (folder / _MLSERVER_SETTINGS).is_file():
        return _mlserver_folder(spec, options, folder)
    for marker, runtime in _FOLDERS.items():
        if (folder / marker).is_file():
            return _made_by(runtime, spec, options, folder.resolve().name, _folder_sha256(folder))
    raise ConfigError(
        f"the folder {spec} is no model: it has no {', no '.join((*_FOLDERS, _MLSERVER_SETTINGS))}; {_ACCEPTED}"
    )


def _made_by(
    runtime: tuple[str, str], spec: str, options: Options, name: str, fingerprint: str
) -> ModelSource:
    module, class_name = runtime

    def make() -> Model:
        found: Any = getattr(importlib.import_module(module), class_name)
        known = [option for option in option_names(found) or () if option != "path"]
        return found(Path(spec), **arguments(options, known, spec))

    return ModelSource(make, name, _with_options(fingerprint, options), spec, options)


def _with_options(fingerprint: str, options: Options) -> str:
    if not options:
        return fingerprint
    text = orjson.dumps(options, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(fingerprint.encode() + text).hexdigest()


def _file_sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from error


def _class_sha256(path: Path, options: Options) -> str:
    """Of the file beside the weights that has their class; nothing where there is none."""
    place, _ = split_spec(str(options.get("class", "")))
    beside = path.parent / place
    return _file_sha256(beside) if place.endswith(".py") else ""


def _folder_sha256(folder: Path) -> str:
    """Over names and contents; what Python itself or a version control keeps there is left out."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and not any(p == "__pycache__" or p.startswith(".") for p in inside.parts):
            digest.update(f"{inside.as_posix()}\0{_file_sha256(path)}\n".encode())
    return digest.hexdigest()


def model_files(spec: str, options: Mapping[str, Any] | None = None) -> tuple[Path, ...]:
    """The files or the folder that a model's fingerprint is of, all in one folder, its own first; none of a module's class."""
    path = Path(split_spec(spec)[0] if ".py" in spec else spec)
    if not path.exists():
        return ()
    place, _ = split_spec(str((options or {}).get("class", "")))
    beside = (path.parent / place,) if path.suffix in _FILES and place.endswith(".py") else ()
    return (path, *beside)
