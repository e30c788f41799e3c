"""Lookup of a model by its spec: a file, a folder or a class, and options.

All are plain text and values.
"""

import hashlib
import importlib
import inspect
import keyword
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, Final

import orjson

from headrace.core.errors import ConfigError, ModelLoadError
from headrace.core.model import Model, ModelRecipe
from headrace.runtimes.classes import (
    ImportedModule,
    file_fingerprint,
    find_model_factory,
    import_file,
    import_module,
    is_dotted_class,
    is_mlserver_class,
    sibling_files,
    split_spec,
    unreadable_file_error,
)

Options = dict[str, Any]

_ONNX: Final = ("headrace.runtimes.onnx", "OnnxModel")
_SKLEARN: Final = ("headrace.runtimes.sklearn", "SklearnModel")
_TORCH: Final = ("headrace.runtimes.torch", "TorchModel")
_MLFLOW: Final = ("headrace.runtimes.mlflow", "MlflowModel")
_HUGGINGFACE: Final = ("headrace.runtimes.huggingface", "HuggingFaceModel")

# Each runtime is an extra. Its module is imported when its first model is made.
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
_PARTS: Final = frozenset({".joblib", ".pkl", ".pickle", ".safetensors"})
"""Suffixes of files that are often parts of another model in the folder, such as its weights."""
_MLSERVER_SETTINGS: Final = "model-settings.json"
_FOLDERS: Final = {"MLmodel": _MLFLOW, "config.json": _HUGGINGFACE}
_ACCEPTED: Final = (
    "a model is a file model.onnx, file.py or file.py:Class, a class module:Class, "
    "a file .skops, .joblib, .pkl, .pt, .ts, .pt2 or .safetensors, "
    "a folder with a model.toml, an MLmodel, a config.json, a model-settings.json or a single model file, "
    "an archive .tar or .tar.gz of such a folder, or the URI of one of these"
)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that can be made once per instance, in this process or another.

    `fingerprint` is the sha256 of the file (for a folder, of the names and contents of all files),
    and of the options if there are any. For a Python file it covers the modules beside it that it
    imports, but not installed modules, or weights that the code loads itself. `spec` and `options`
    are plain text and values: ``model_factory(spec, options).make()`` makes the same model in any
    process with the same current directory. Nothing needs to be pickled.
    """

    make: Callable[[], Model]
    name: str
    fingerprint: str
    spec: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class RecipeModelFactory:
    """A function that makes a source's models, with the recipe for other processes."""

    make: Callable[[], Model]
    recipe: ModelRecipe

    def __call__(self) -> Model:
        """Return a new model."""
        return self.make()


def make_model(spec: str, options: Mapping[str, Any] | None = None) -> Model:
    """Return the model of a spec; the entry point of a model process.

    Raises the errors of `model_factory` and `make`.
    """
    return model_factory(spec, options).make()


def model_factory(spec: str, options: Mapping[str, Any] | None = None) -> ModelSource:
    """Find a model. Only Python modules are imported; weights are not loaded.

    A function in place of a class makes the models. `options` go to the runtime, class or function
    as keyword arguments and must be plain JSON values. `make` carries the recipe with which another
    process in the same current directory makes the model.

    `make` raises MissingExtraError if packages of the runtime are missing, and ConfigError for
    options that the runtime does not have.

    Raises:
        ConfigError: The spec names no model, or the class does not have an option.
        ModelLoadError: The file cannot be read or imported.
    """
    source = _source(spec, options)
    recipe = ModelRecipe(f"{__name__}:{make_model.__name__}", {"spec": spec, "options": dict(source.options)})
    return replace(source, make=RecipeModelFactory(source.make, recipe))


def _source(spec: str, options: Mapping[str, Any] | None) -> ModelSource:
    if "://" in spec:
        raise ConfigError(f"{spec}: a URI is only accepted as MODEL itself, not within a model.toml")
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
        raise ConfigError(f"{spec!r} is not a model: {_ACCEPTED}")
    return _class(spec, plain, import_module(place, class_name), class_name)


def _class(spec: str, options: Options, imported: ImportedModule, class_name: str) -> ModelSource:
    found = find_model_factory(imported, class_name)
    name = Path(imported.where).stem if imported.where.endswith(".py") else class_name
    fingerprint = _with_options(imported.fingerprint, options)
    if is_mlserver_class(found):
        return ModelSource(lambda: _mlserver(found, name, options), name, fingerprint, spec, options)
    keywords = keyword_arguments(options, option_names(found), spec)
    make: Callable[[], Model] = (lambda: found(**keywords)) if keywords else found
    return ModelSource(make, name, fingerprint, spec, options)


def _mlserver(found: Any, name: str, options: Options, source: Path | None = None) -> Model:
    from headrace.runtimes.mlserver import mlserver_model  # noqa: PLC0415 - an extra, imported when used

    return mlserver_model(found, {"name": name, **options}, source)


def _mlserver_folder(spec: str, options: Options, folder: Path) -> ModelSource:
    """Return the source of a folder in MLServer's layout.

    Its settings name a class, either of a module in the folder or of an installed module.
    """
    file = folder / _MLSERVER_SETTINGS
    try:
        settings_file: Any = orjson.loads(file.read_bytes())
        module, _, class_name = str(settings_file["implementation"]).rpartition(".")
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise ModelLoadError(str(file), f"it is not a JSON object with an implementation: {error}") from error
    module_file = folder / f"{module.replace('.', '/')}.py"
    imported = (
        import_file(module_file, folder) if module_file.is_file() else import_module(module, class_name)
    )
    found = find_model_factory(imported, class_name)
    if not is_mlserver_class(found):
        raise ConfigError(f"{file}: its implementation {class_name} is not a subclass of mlserver.MLModel")
    settings = {k: v for k, v in settings_file.items() if k != "implementation"} | options
    name = str(settings.get("name") or _name_of(folder))
    fingerprint = _with_options(_folder_sha256(folder), options)
    return ModelSource(lambda: _mlserver(found, name, settings, file), name, fingerprint, spec, options)


def _folder(spec: str, options: Options, folder: Path) -> ModelSource:
    if (folder / _MLSERVER_SETTINGS).is_file():
        return _mlserver_folder(spec, options, folder)
    for marker, runtime in _FOLDERS.items():
        if (folder / marker).is_file():
            return _made_by(runtime, spec, options, _name_of(folder), _folder_sha256(folder))
    files = model_candidates(folder)
    if len(files) == 1:
        # The other files of the folder may be parts of the model, such as weights that its file refers to.
        fingerprint = _with_options(_folder_sha256(folder), options)
        return replace(_source(str(files[0]), options), name=_name_of(folder), fingerprint=fingerprint)
    found = f"several model files: {', '.join(f.name for f in files)}" if files else "no model file"
    raise ConfigError(
        f"the folder {spec} is not a model: it has no model.toml, no "
        f"{', no '.join((*_FOLDERS, _MLSERVER_SETTINGS))}, and {found}; {_ACCEPTED}"
    )


def _name_of(folder: Path) -> str:
    return folder.resolve().name


def _made_by(
    runtime: tuple[str, str], spec: str, options: Options, name: str, fingerprint: str
) -> ModelSource:
    module, class_name = runtime

    def make() -> Model:
        found: Any = getattr(importlib.import_module(module), class_name)
        known = [option for option in option_names(found) or () if option != "path"]
        return found(Path(spec), **keyword_arguments(options, known, spec))

    return ModelSource(make, name, _with_options(fingerprint, options), spec, options)


def plain_options(options: Mapping[str, Any] | None, where: str) -> Options:
    """Return a copy of JSON values only. Raises ConfigError with the first option that is not one."""
    if not options:
        return {}
    for name, value in options.items():
        try:
            orjson.dumps({name: value})
        except TypeError as error:
            raise ConfigError(
                f"{where}: option {name!r} must be a plain value "
                f"(text, a number, true or false, a list, a table): {error}"
            ) from None
    return orjson.loads(orjson.dumps(dict(options)))


def option_names(make: Callable[..., Any]) -> tuple[str, ...] | None:
    """Return the keyword arguments of a class or function, or None if it takes any."""
    parameters = inspect.signature(make).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(p.name.removesuffix("_") for p in parameters if p.kind in kinds)


def keyword_arguments(options: Options, known: Sequence[str] | None, where: str) -> Options:
    """Return the options as keyword arguments; `class` becomes ``class_``.

    Raises ConfigError for an unknown option.
    """
    if known is not None and (unknown := [name for name in options if name not in known]):
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise ConfigError(f"{where} has no option {', '.join(map(repr, unknown))}; {has}")
    return {f"{name}_" if keyword.iskeyword(name) else name: value for name, value in options.items()}


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
        raise unreadable_file_error(path, error) from error


def _class_sha256(path: Path, options: Options) -> str:
    """Return the fingerprint of the file beside the weights that holds their class, else ""."""
    place, _ = split_spec(str(options.get("class", "")))
    return file_fingerprint(path.parent / place) if place.endswith(".py") else ""


def _folder_sha256(folder: Path) -> str:
    """Return the sha256 of names and contents, without Python's caches and hidden files."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and not any(p == "__pycache__" or p.startswith(".") for p in inside.parts):
            digest.update(f"{inside.as_posix()}\0{_file_sha256(path)}\n".encode())
    return digest.hexdigest()


def model_candidates(folder: Path) -> list[Path]:
    """Return the paths in a folder that may be its model; one path if the choice is clear."""
    return [folder / name for name in candidate_names({f.name for f in folder.iterdir() if f.is_file()})]


def candidate_names(names: Collection[str]) -> list[str]:
    """Return those of a folder's files that may be its model; ``.`` stands for the folder itself.

    A file that may be part of another model is a candidate only if there is no other.
    """
    files = sorted(n for n in names if PurePath(n).suffix == ".py" or PurePath(n).suffix in _FILES)
    models = [n for n in files if PurePath(n).suffix not in _PARTS]
    if len(models) != 1 and any(marker in names for marker in (*_FOLDERS, _MLSERVER_SETTINGS)):
        return ["."]
    return models or files


def model_files(spec: str, options: Mapping[str, Any] | None = None) -> tuple[Path, ...]:
    """Return the files or the folder that a model's fingerprint covers, its own file first.

    All are in one folder. The result is empty for a class of a module.
    """
    path = Path(split_spec(spec)[0] if ".py" in spec else spec)
    if not path.exists():
        return ()
    place, _ = split_spec(str((options or {}).get("class", "")))
    class_file = (path.parent / place,) if path.suffix in _FILES and place.endswith(".py") else ()
    files = (path, *class_file)
    return (*files, *(s for f in files if f.suffix == ".py" for s in sibling_files(f)))
