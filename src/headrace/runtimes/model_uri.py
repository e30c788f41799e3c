"""Models that are fetched before use: the parts of their URIs, and the names of their cache entries.

Pure: text and listings in, names out. `headrace.runtimes.model_cache` fetches.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Literal

from headrace.core.errors import ConfigError
from headrace.runtimes.classes import split_spec
from headrace.storage.contract import ObjectInfo
from headrace.storage.uri import HTTP_SCHEMES, absolute, parse, prefix_location
from headrace.storage.uri import name as last_segment

ARCHIVE_SUFFIXES: Final = (".tar.gz", ".tgz", ".tar")
_DIGITS: Final = 24
"""Hexadecimal digits of a cache entry's name: 96 bits, so that names of different models differ."""
_NAME_BYTES_MAX: Final = 255
"""The longest file name that common file systems accept."""


@dataclass(frozen=True, slots=True)
class ModelUri:
    """A model to be fetched: an object, all objects below a prefix, or the files of an archive.

    `name` is that of the local file or folder. `class_name` is the class in a Python file, or "".
    """

    uri: str
    kind: Literal["object", "prefix", "archive"]
    name: str
    class_name: str = ""

    @property
    def folder_name(self) -> str:
        """The name of the cache folder that holds all versions of this model."""
        return _digest(self.uri)

    def local_spec(self, path: Path) -> str:
        """Return the MODEL argument for the fetched file or folder."""
        return f"{path}:{self.class_name}" if self.class_name else str(path)


def is_uri(spec: str) -> bool:
    """Return True if a model is named by a URI."""
    return "://" in spec


def parse_model_uri(spec: str) -> ModelUri | None:
    """Return the model to be fetched; None for a path or class that is used where it is.

    A URI that ends in ``/`` names a prefix, and a name that ends in ``.tar``, ``.tar.gz`` or ``.tgz`` an
    archive, which may be a local file, too. ``s3://models/churn.py:Churn`` names a class in the file.

    Raises:
        ConfigError: The URI is invalid, or a prefix of a server that has no listing.
    """
    if not is_uri(spec):
        return _archive(absolute(spec)) if spec.endswith(ARCHIVE_SUFFIXES) else None
    uri, class_name = split_spec(spec) if ".py:" in spec else (spec, "")
    location = parse(uri)
    if location.scheme == "file":
        return _archive(absolute(location.key)) if uri.endswith(ARCHIVE_SUFFIXES) else None
    name = last_segment(uri)
    if not name:
        return _prefix(uri, is_http=location.scheme in HTTP_SCHEMES)
    if name.endswith(ARCHIVE_SUFFIXES):
        return _archive(uri)
    return ModelUri(uri, "object", _file_name(name, uri), class_name)


def local_path(spec: str) -> str:
    """Return the plain path of a ``file://`` URI, and any other spec unchanged."""
    if not is_uri(spec):
        return spec
    location = parse(spec)
    return location.key if location.scheme == "file" else spec


def _prefix(uri: str, *, is_http: bool) -> ModelUri:
    if is_http:
        raise ConfigError(
            f"{uri} is not a model: an HTTP server cannot list a folder; name a file or archive"
        )
    location = prefix_location(uri if uri.endswith("/") else f"{uri}/")
    name = PurePosixPath(location.key).name or location.bucket
    return ModelUri(location.uri, "prefix", _file_name(name, uri))


def _archive(uri: str) -> ModelUri:
    name = last_segment(uri)
    suffix = next(suffix for suffix in ARCHIVE_SUFFIXES if name.endswith(suffix))
    return ModelUri(uri, "archive", _file_name(name.removesuffix(suffix) or "model", uri))


def _file_name(name: str, uri: str) -> str:
    """Return a name that one file or folder can have. Raise ConfigError for another one."""
    if name in {"", ".", ".."} or "\0" in name or len(name.encode()) > _NAME_BYTES_MAX:
        raise ConfigError(f"{uri[:200]} is not a model: its last part cannot be the name of a file")
    return name


def version_of(objects: Sequence[ObjectInfo]) -> str:
    """Return the name of the cache entry of these objects; "" if the ETag of one is not known.

    The name changes with every name and ETag.
    """
    if not all(info.etag for info in objects):
        return ""
    lines = sorted(f"{info.uri}\0{info.etag}\0{info.size_bytes}\n" for info in objects)
    return _digest("".join(lines))


def member_path(name: str) -> PurePosixPath:
    """Return the path of an archive's member or a prefix's object below the model's folder.

    Raises ConfigError for a name that is not a path inside the folder.
    """
    path = PurePosixPath(name)
    is_inside = not path.is_absolute() and path.parts and ".." not in path.parts
    try:
        path.as_posix().encode()
    except UnicodeEncodeError:
        is_inside = False
    if not is_inside or "\0" in name or any(len(part.encode()) > _NAME_BYTES_MAX for part in path.parts):
        raise ConfigError(f"{name[:200]!r} is not the path of a file below the model's folder")
    return path


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
