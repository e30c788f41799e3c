"""A model's files out of an object store, for workers that have no disk in common."""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import ConfigError
from headrace.runtimes.classes import split_spec
from headrace.storage.contract import Store
from headrace.storage.resolve import Stores


@dataclass(frozen=True, slots=True)
class Fetched:
    """A model's name on this disk, and the folder to remove when it is no longer needed."""

    spec: str
    folder: Path | None = None


def is_remote(spec: str) -> bool:
    """Whether a model is named by a URI."""
    return "://" in spec


def fetched(spec: str, stores: Stores | None = None) -> Fetched:
    """Where the model is here: a plain path as it is, an object or (ending in ``/``) all below a prefix in a new folder.

    ``s3://models/churn.py:Class`` names a class in the file. Raises StorageError for what cannot be read, ConfigError
    for a prefix with nothing below it.
    """
    if not is_remote(spec):
        return Fetched(spec)
    folder = Path(tempfile.mkdtemp(prefix="headrace-beam-model-"))
    try:
        return Fetched(_fetch_into(folder, spec, stores or Stores()), folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _fetch_into(folder: Path, spec: str, stores: Stores) -> str:
    """The model's name here."""
    parent, _, name = spec.rstrip("/").rpartition("/")
    if spec.endswith("/"):
        _fetch_folder(stores.for_uri(spec), spec, folder / name)
        return str(folder / name)
    file, chosen = split_spec(name) if ".py:" in name else (name, "")
    uri = f"{parent}/{file}"
    _fetch(stores.for_uri(uri), uri, folder / file)
    return f"{folder / file}:{chosen}" if chosen else str(folder / file)


def _fetch_folder(store: Store, prefix: str, folder: Path) -> None:
    listed = [info.uri for info in store.list(prefix)]
    if not listed:
        raise ConfigError(f"{prefix} is no model: there is nothing below it")
    for uri in listed:
        place = folder / uri.removeprefix(prefix)
        if not place.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"{uri} would be written outside of the model's own folder: rename the object")
        _fetch(store, uri, place)


def _fetch(store: Store, uri: str, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("wb") as file:
        for chunk in store.stream(uri):
            file.write(chunk)
