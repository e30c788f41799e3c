"""Download of a model's files from an object store, for workers without a shared disk."""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import ConfigError
from headrace.runtimes.classes import split_spec
from headrace.storage.contract import Store
from headrace.storage.resolve import Stores


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model's name on the local disk, and the folder to remove after use."""

    spec: str
    folder: Path | None = None


def is_remote(spec: str) -> bool:
    """Return True if a model is named by a URI."""
    return "://" in spec


def download_model(spec: str, stores: Stores | None = None) -> LocalModel:
    """Return the model on the local disk, downloaded to a new folder if it is named by a URI.

    A plain path stays unchanged. A URI names an object, or, ending in ``/``, all objects below a
    prefix. ``s3://models/churn.py:Class`` names a class in the file.

    Raises:
        StorageError: An object cannot be read.
        ConfigError: There is nothing below the prefix.
    """
    if not is_remote(spec):
        return LocalModel(spec)
    folder = Path(tempfile.mkdtemp(prefix="headrace-beam-model-"))
    try:
        return LocalModel(_download_into(folder, spec, stores or Stores()), folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _download_into(folder: Path, spec: str, stores: Stores) -> str:
    """Download the model into the folder and return its local name."""
    parent, _, name = spec.rstrip("/").rpartition("/")
    if spec.endswith("/"):
        _download_folder(stores.for_uri(spec), spec, folder / name)
        return str(folder / name)
    file, class_name = split_spec(name) if ".py:" in name else (name, "")
    uri = f"{parent}/{file}"
    _download(stores.for_uri(uri), uri, folder / file)
    return f"{folder / file}:{class_name}" if class_name else str(folder / file)


def _download_folder(store: Store, prefix: str, folder: Path) -> None:
    listed = [info.uri for info in store.list(prefix)]
    if not listed:
        raise ConfigError(f"{prefix} is not a model: there is nothing below it")
    for uri in listed:
        path = folder / uri.removeprefix(prefix)
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"{uri} would be written outside the model's folder: rename the object")
        _download(store, uri, path)


def _download(store: Store, uri: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for chunk in store.stream(uri):
            file.write(chunk)
