"""URIs and plain paths: taken apart, put together, and refused where no store could mean them.

Keys are taken as they stand: nothing is decoded, so ``s3://b/a%20b`` names the key ``a%20b``. Only ``http(s)``
addresses are percent-encoded already, and go to the server as they are.
"""

import os
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from headrace.core.errors import ConfigError

CLOUD_SCHEMES = frozenset({"s3", "gs", "az"})
HTTP_SCHEMES = frozenset({"http", "https"})
SCHEMES = ("s3", "gs", "az", "http", "https", "file", "memory")
KEY_BYTES_MAX = 1024
"""The longest key that S3, Google Cloud Storage and Azure all take, in UTF-8."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_ONE_SLASH = re.compile(rf"({'|'.join(SCHEMES)}):(?!//)", re.IGNORECASE)
_BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Location:
    """A URI taken apart. `uri` is what was written, for messages.

    `bucket` is the bucket, container or host, and "" for files. `key` is the rest: for files the path (absolute or
    relative, as written), for http the path and query.
    """

    uri: str
    scheme: str
    bucket: str
    key: str


def parse(uri: str) -> Location:
    """Take a URI or plain path apart; a plain path has the scheme ``file``.

    Raises ConfigError for an unknown scheme, a missing or impossible bucket or host, control characters, and a file's
    name that is not UTF-8.
    """
    require_text(uri)
    match = _SCHEME.match(uri)
    if match is None:
        return _plain_path(uri)
    scheme, rest = match[1].lower(), uri[match.end() :]
    if scheme not in SCHEMES:
        known = ", ".join(f"{s}://" for s in SCHEMES)
        raise ConfigError(f"{uri}: unknown scheme {match[1]}://; known are {known} and plain paths")
    if scheme == "file":
        return _file(uri, rest)
    if found := _CONTROL.search(uri):
        raise ConfigError(f"{uri!r}: holds the control character {found[0]!r}, which no store takes")
    if scheme in HTTP_SCHEMES:
        return _http(uri, scheme)
    bucket, _, key = rest.partition("/")
    if scheme in CLOUD_SCHEMES and not _BUCKET.fullmatch(bucket):
        what = f"{bucket!r} cannot be a bucket's name" if bucket else "no bucket is named"
        raise ConfigError(f"{uri}: {what}; write {scheme}://BUCKET/KEY")
    return Location(uri, scheme, bucket, key)


def require_text(uri: str) -> None:
    """Raise ConfigError for what came from a file's name that is not UTF-8: no ledger or report could hold it."""
    try:
        uri.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{uri!r}: a name that is not UTF-8; rename it") from None


def _plain_path(path: str) -> Location:
    if match := _ONE_SLASH.match(path):
        raise ConfigError(
            f"{path}: write {match[1]}:// with two slashes, or ./{path} for a file of that name"
        )
    if "\0" in path:
        raise ConfigError(f"{path!r}: a path cannot hold a NUL character")
    return Location(path, "file", "", path)


def _file(uri: str, rest: str) -> Location:
    path = rest.removeprefix("localhost")
    if not path.startswith("/") or "\0" in path:
        raise ConfigError(f"{uri}: write file:///absolute/path, or the path alone")
    return Location(uri, "file", "", path)


def _http(uri: str, scheme: str) -> Location:
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{uri}: not an address: {error}") from error
    if not host or " " in uri or not uri.isascii() or "\\" in parts.netloc:
        raise ConfigError(f"{uri}: not an address; write {scheme}://HOST/PATH, percent-encoded")
    if "@" in parts.netloc:
        raise ConfigError(f"{scheme}://***@{host}{parts.path}: credentials do not belong in a URI")
    query = f"?{parts.query}" if parts.query else ""
    return Location(uri, scheme, host if port is None else f"{host}:{port}", parts.path.lstrip("/") + query)


def object_location(uri: str) -> Location:
    """`parse`, for something that must name one cloud or memory object.

    Raises ConfigError for keys that S3 would take but that the client library, file systems and most tools do not:
    empty, ``.`` and ``..`` segments, a slash at either end, more than `KEY_BYTES_MAX` bytes.
    """
    location = parse(uri)
    if not location.key:
        raise ConfigError(f"{uri}: names a whole bucket; an object's key must follow it")
    if any(segment in {"", ".", ".."} for segment in location.key.split("/")):
        raise ConfigError(
            f"{uri}: the key has an empty, '.' or '..' segment, which is not supported; rename it"
        )
    if len(location.key.encode()) > KEY_BYTES_MAX:
        raise ConfigError(f"{uri[:80]}…: the key is longer than {KEY_BYTES_MAX} bytes")
    return location


def prefix_location(uri: str) -> Location:
    """`parse`, for a listing's string prefix; may end in the middle of a name or be a bucket alone.

    Raises ConfigError when a whole segment of it is empty, ``.`` or ``..``.
    """
    location = parse(uri)
    if any(segment in {"", ".", ".."} for segment in location.key.split("/")[:-1]):
        raise ConfigError(f"{uri}: the prefix has an empty, '.' or '..' segment, which is not supported")
    return location


def join(prefix: str, name: str) -> str:
    """`name` below `prefix`, with exactly one slash between: ``join("s3://b/out", "x")`` is ``s3://b/out/x``.

    An empty prefix gives the name alone. Raises ConfigError for an http address with a query.
    """
    if not prefix:
        return name
    if parse(prefix).scheme in HTTP_SCHEMES and "?" in prefix:
        raise ConfigError(f"{prefix}: nothing can stand below an address with a query")
    if prefix.endswith("/"):
        return prefix + name.lstrip("/")
    return f"{prefix}/{name.lstrip('/')}"


def parent(uri: str) -> str:
    """The prefix that holds it, ending in a slash: ``s3://b/a/`` for ``s3://b/a/k``, "" for a bare file name.

    A bucket or root is its own parent.
    """
    match = _SCHEME.match(uri)
    root, rest = (uri[: match.end()], uri[match.end() :]) if match else ("", uri)
    path = rest.partition("?")[0] if root.lower().startswith("http") else rest
    stem = path.rstrip("/")
    head, slash, _ = stem.rpartition("/")
    if not slash and root:
        return f"{root}{stem}/"
    return f"{root}{head}{slash}" if stem else uri


def name(uri: str) -> str:
    """The last segment, without a query: ``k.csv`` for ``s3://b/a/k.csv``; "" for a prefix that ends in a slash."""
    location = parse(uri)
    key = location.key.partition("?")[0] if location.scheme in HTTP_SCHEMES else location.key
    return key.rpartition("/")[2]


def absolute(uri: str) -> str:
    """A plain path made absolute (a slash at its end is kept); anything with a scheme as it stands.

    For what must mean the same from another working directory, such as a record of a run.
    """
    if _SCHEME.match(uri):
        return uri
    path = os.path.abspath(parse(uri).key)  # noqa: PTH100 - Path drops the meaning of "" and ends
    return path if path.endswith("/") or not uri.endswith("/") else path + "/"
