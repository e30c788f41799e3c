"""Parse, join and check URIs and plain paths.

Keys are never decoded: ``s3://b/a%20b`` names the key ``a%20b``. Only ``http(s)`` URLs are
percent-encoded, and they are sent to the server unchanged.
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
"""The longest key that S3, Google Cloud Storage and Azure all accept, in bytes of UTF-8."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_ONE_SLASH = re.compile(rf"({'|'.join(SCHEMES)}):(?!//)", re.IGNORECASE)
_BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Location:
    """A parsed URI. `uri` is the original text, for messages.

    `bucket` is the bucket, container or host, and "" for files. `key` is the rest: for files the
    path (absolute or relative, as given), for http the path and query.
    """

    uri: str
    scheme: str
    bucket: str
    key: str


def parse(uri: str) -> Location:
    """Parse a URI or plain path; a plain path has the scheme ``file``.

    Raises ConfigError for an unknown scheme, a missing or invalid bucket or host, control
    characters, and a file name that is not UTF-8.
    """
    require_text(uri)
    match = _SCHEME.match(uri)
    if match is None:
        return _plain_path(uri)
    scheme, rest = match[1].lower(), uri[match.end() :]
    if scheme not in SCHEMES:
        known = ", ".join(f"{s}://" for s in SCHEMES)
        raise ConfigError(f"{uri}: unknown scheme {match[1]}://: use {known} or a plain path")
    if scheme == "file":
        return _file(uri, rest)
    if found := _CONTROL.search(uri):
        raise ConfigError(f"{uri!r}: contains the control character {found[0]!r}, which no store accepts")
    if scheme in HTTP_SCHEMES:
        return _http(uri, scheme)
    bucket, _, key = rest.partition("/")
    if scheme in CLOUD_SCHEMES and not _BUCKET.fullmatch(bucket):
        problem = f"{bucket!r} is not a valid bucket name" if bucket else "the bucket is missing"
        raise ConfigError(f"{uri}: {problem}: write {scheme}://BUCKET/KEY")
    return Location(uri, scheme, bucket, key)


def require_text(uri: str) -> None:
    """Raise ConfigError if `uri` has the name of a file that is not UTF-8.

    No ledger or report could hold such a name.
    """
    try:
        uri.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{uri!r}: the name is not UTF-8: rename the file") from None


def _plain_path(path: str) -> Location:
    if match := _ONE_SLASH.match(path):
        raise ConfigError(
            f"{path}: one slash after the scheme: write {match[1]}://, or ./{path} for a file of that name"
        )
    if "\0" in path:
        raise ConfigError(f"{path!r}: a path cannot contain a NUL character")
    return Location(path, "file", "", path)


def _file(uri: str, rest: str) -> Location:
    path = rest.removeprefix("localhost")
    if not path.startswith("/") or "\0" in path:
        raise ConfigError(f"{uri}: not an absolute file URI: write file:///absolute/path, or the path alone")
    return Location(uri, "file", "", path)


def _http(uri: str, scheme: str) -> Location:
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{uri}: not a valid URL: {error}") from error
    if not host or " " in uri or not uri.isascii() or "\\" in parts.netloc:
        raise ConfigError(f"{uri}: not a valid URL: write {scheme}://HOST/PATH, percent-encoded")
    if "@" in parts.netloc:
        raise ConfigError(
            f"{scheme}://***@{host}{parts.path}: a URI must not contain credentials: remove them"
        )
    query = f"?{parts.query}" if parts.query else ""
    return Location(uri, scheme, host if port is None else f"{host}:{port}", parts.path.lstrip("/") + query)


def object_location(uri: str) -> Location:
    """Parse the URI of one cloud or memory object.

    Raises ConfigError for keys that S3 accepts but the client library, file systems and most tools
    do not: empty, ``.`` and ``..`` segments, a slash at either end, more than `KEY_BYTES_MAX`
    bytes.
    """
    location = parse(uri)
    if not location.key:
        raise ConfigError(f"{uri}: names a whole bucket: append the key of an object")
    if any(segment in {"", ".", ".."} for segment in location.key.split("/")):
        raise ConfigError(
            f"{uri}: the key has an empty, '.' or '..' segment, which is not supported: rename the object"
        )
    if len(location.key.encode()) > KEY_BYTES_MAX:
        raise ConfigError(f"{uri[:80]}…: the key is longer than {KEY_BYTES_MAX} bytes: shorten it")
    return location


def prefix_location(uri: str) -> Location:
    """Parse the string prefix of a listing.

    It may end in the middle of a name, or be a bucket alone.

    Raises ConfigError if a whole segment is empty, ``.`` or ``..``.
    """
    location = parse(uri)
    if any(segment in {"", ".", ".."} for segment in location.key.split("/")[:-1]):
        raise ConfigError(f"{uri}: the prefix has an empty, '.' or '..' segment, which is not supported")
    return location


def join(prefix: str, name: str) -> str:
    """Return `name` below `prefix`, with exactly one slash between.

    ``join("s3://b/out", "x")`` is ``s3://b/out/x``. An empty prefix returns the name alone. Raises
    ConfigError for an http URL with a query.
    """
    if not prefix:
        return name
    if parse(prefix).scheme in HTTP_SCHEMES and "?" in prefix:
        raise ConfigError(f"{prefix}: a URL with a query cannot be a prefix")
    if prefix.endswith("/"):
        return prefix + name.lstrip("/")
    return f"{prefix}/{name.lstrip('/')}"


def parent(uri: str) -> str:
    """Return the prefix that contains the object, with a trailing slash.

    It is ``s3://b/a/`` for ``s3://b/a/k``, and "" for a bare file name. A bucket or root is its own
    parent.
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
    """Return the last segment, without a query.

    It is ``k.csv`` for ``s3://b/a/k.csv``, and "" for a prefix with a trailing slash.
    """
    location = parse(uri)
    key = location.key.partition("?")[0] if location.scheme in HTTP_SCHEMES else location.key
    return key.rpartition("/")[2]


def absolute(uri: str) -> str:
    """Return an absolute path for a plain path, and a URI unchanged.

    A trailing slash is kept. Records of a run use absolute paths, which mean the same from another
    working directory.
    """
    if _SCHEME.match(uri):
        return uri
    path = os.path.abspath(parse(uri).key)  # noqa: PTH100 - Path drops trailing slashes
    return path if path.endswith("/") or not uri.endswith("/") else path + "/"
