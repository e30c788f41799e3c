"""The URIs that jobs may name, and the layout of headrace's own store.

Pure: nothing is opened here.

URIs from clients are normalized first: one spelling for one location, and no spelling that a store,
proxy or file system reads differently. Allow-lists compare normalized URIs, whole segment by whole
segment. Keys are bytes: two encodings of an accented letter are two keys, as in stores, and nothing
is decoded.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from headrace.core.errors import ConfigError, ForbiddenError
from headrace.jobs.job import NewJob, is_job_id
from headrace.jobs.outbound import OutboundPolicy, parse_url
from headrace.storage.uri import CLOUD_SCHEMES, KEY_BYTES_MAX, join, object_location, parse, require_text

URI_CHARS_MAX: Final = 2048
KEY_NAME_BYTES_MAX: Final = 200
"""The longest name in ``NAME.out``: files have 255 bytes, and ``.out.failed`` follows."""
RESULT_SUFFIX: Final = ".out"
FAILED_SUFFIX: Final = ".failed"
"""Ends the name of a result's failed records."""
ERROR_SUFFIX: Final = ".error"

_SHOWN_CHARS: Final = 80
_LISTED_MAX: Final = 5
"""Limit of the permitted locations in an error."""
_BUCKET: Final = re.compile(r"[a-z0-9$][a-z0-9._-]{0,221}")
# Bidirectional overrides and zero-width characters: a displayed URI must not deceive.
_INVISIBLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_UNSAFE: Final = re.compile(rf"[/\\?#]|%(?=2[ef]|5c|00)|{_INVISIBLE.pattern}", re.IGNORECASE)
"""The characters of a KEY that `normalize_uri` would refuse in a URI."""
_USER: Final = re.compile(r"//[^/]*@")
_QUERY: Final = re.compile(r"\?.*", re.DOTALL)
_HIDDEN_SLASH: Final = re.compile("%(2f|5c|00)", re.IGNORECASE)
_HIDDEN_DOT: Final = re.compile("%2e", re.IGNORECASE)
_WEB: Final = re.compile("https?://", re.IGNORECASE)
_PARAMETER: Final = re.compile("(;|%3b).*", re.IGNORECASE)
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=-]*")
_NAME_CHARS_MAX: Final = 128
_LEASE: Final = re.compile(r"0|[1-9][0-9]{0,17}")
_HASH_CHARS: Final = 16


def normalize_uri(uri: str) -> str:
    """Return the single spelling of a URI: ``s3://``, ``gs://`` or ``az://``, a bucket, a key.

    The scheme becomes lower-case; the rest is unchanged or refused. A slash at the end, for a
    prefix, stays.

    Raises ConfigError for everything else: other schemes, no bucket, a bucket with capitals (no
    store has any), user names, ports, queries, empty, ``.`` and ``..`` segments, also
    percent-encoded, backslashes, control and invisible characters, spaces at either end, invalid
    UTF-8, or more than `KEY_BYTES_MAX` bytes of key.
    """
    _check_text(uri)
    location = parse(uri)
    if location.scheme == "file":
        raise ConfigError(
            f"{_shown(uri)}: files of the server are permitted only in folders that its operator allowed "
            "(--allow-input, --allow-output); write the object to a bucket"
        )
    if location.scheme not in CLOUD_SCHEMES:
        if is_web_url(uri):
            raise ConfigError(
                f"{_shown(uri)}: web addresses are permitted only as inputs, below prefixes that "
                "the server's operator allowed (--allow-input https://HOST/PREFIX)"
            )
        known = ", ".join(f"{scheme}://" for scheme in sorted(CLOUD_SCHEMES))
        raise ConfigError(f"{_shown(uri)}: {location.scheme}:// is not supported; use {known}")
    if not _BUCKET.fullmatch(location.bucket) or ".." in location.bucket:
        raise ConfigError(f"{_shown(uri)}: a bucket name has lower-case letters, digits, '-', '_' and '.'")
    if location.key:
        _check_key(uri, location.key)
    return f"{location.scheme}://{location.bucket}/{location.key}"


def normalize_file_path(uri: str) -> str:
    """Return the single spelling of a file on the server, as its absolute path.

    Raise ConfigError for a relative path and for deceptive ones.
    """
    _check_text(uri)
    location = parse(uri)
    if location.scheme != "file" or not location.key.startswith("/"):
        raise ConfigError(f"{_shown(uri)}: a file needs an absolute path")
    if location.key != "/":
        _check_key(uri, location.key.removeprefix("/"))
    return location.key


def normalize_web_url(uri: str, policy: OutboundPolicy) -> str:
    """Return the single spelling of a client's web address for an input, parsed by `parse_url`.

    Its path has none of the segments that `normalize_uri` refuses, so that every server agrees on
    what is below a prefix. A query, such as a signature, stays. Raises RefusedAddressError, a
    ConfigError.
    """
    url = parse_url(uri, policy)
    path = url.target.partition("?")[0].removeprefix("/")
    if path:
        # Some servers read `..;x` as `..`.
        _check_key(
            uri, "/".join(_PARAMETER.sub("", s) if s.startswith((".", "%")) else s for s in path.split("/"))
        )
    return url.origin + url.target


def is_web_url(uri: str) -> bool:
    """Return True for a web address."""
    return bool(_WEB.match(uri))


def without_query(uri: str) -> str:
    """Return a URI for display: without a web address's query, which may grant access."""
    return uri.partition("?")[0] if is_web_url(uri) else uri


@dataclass(frozen=True, slots=True)
class UriAllowList:
    """The URIs that may be named: these locations and all below them. Empty by default."""

    prefixes: tuple[str, ...] = ()
    """URIs as `normalize_uri` returns them."""
    local_roots: tuple[str, ...] = ()
    """Folders of the server, as `normalize_file_path` returns them. Only the operator can permit
    them.
    """
    reserved: tuple[str, ...] = ()
    """headrace's own locations, with the payloads and results of all tenants: never permitted."""
    addresses: tuple[str, ...] = ()
    """Web addresses as `normalize_web_url` returns them, for inputs only; ``https://`` permits all
    that `policy` permits.
    """
    policy: OutboundPolicy = field(default_factory=OutboundPolicy)

    @classmethod
    def read(
        cls, uris: Iterable[str], *, reserved: Iterable[str] = (), policy: OutboundPolicy | None = None
    ) -> "UriAllowList":
        """Create an allow-list of bucket prefixes, absolute folder paths and web addresses.

        Raise ConfigError for URIs that no client could name, and for web addresses without a
        `policy` (outputs).
        """
        named = tuple(uris)
        web = [uri for uri in named if is_web_url(uri)]
        files = [uri for uri in named if uri not in web and _is_file(uri)]
        buckets = [uri for uri in named if uri not in web and uri not in files]
        if web and policy is None:
            raise ConfigError(f"{_shown(web[0])}: outputs cannot be web addresses; use a bucket prefix")
        return cls(
            prefixes=tuple(map(normalize_uri, buckets)),
            local_roots=tuple(map(normalize_file_path, files)),
            reserved=tuple(
                normalize_file_path(uri) if parse(uri).scheme == "file" else normalize_uri(uri)
                for uri in reserved
            ),
            addresses=() if policy is None else tuple(_address_prefix(uri, policy) for uri in web),
            policy=policy or OutboundPolicy(),
        )

    def require(self, uri: str, what: str, advice: str = "") -> str:
        """Return the normalized URI if it is allowed.

        `what`, the URI's role, begins the error message; `advice` on how to permit it ends it.

        Raise ConfigError for URIs that nobody may name (`normalize_uri`), and ForbiddenError for
        URIs outside of this list. Links inside a local root are not checked: a user with write
        access could create one that leads out.
        """
        if self.addresses and is_web_url(uri):
            return self._require_address(uri, what, advice)
        if self.local_roots and _is_file(uri):
            location, roots = normalize_file_path(uri), self.local_roots
        else:
            location, roots = normalize_uri(uri), self.prefixes
        if any(is_below(location, root) for root in self.reserved):
            raise ForbiddenError(
                f"the {what} {_shown(location)} is not permitted: it lies in headrace's own store"
            )
        if not any(is_below(location, root) for root in roots):
            raise self._forbidden(location, what, advice)
        return location

    def _forbidden(self, location: str, what: str, advice: str) -> ForbiddenError:
        permitted = [*self.prefixes, *self.local_roots, *self.addresses]
        more = ", …" if len(permitted) > _LISTED_MAX else ""
        listed = ", ".join(map(_shown, permitted[:_LISTED_MAX])) + more
        reason = f"the {what} {_shown(location)} is not permitted; permitted {what}s: {listed or 'none'}"
        return ForbiddenError(f"{reason}: {advice}" if advice else reason)

    def _require_address(self, uri: str, what: str, advice: str) -> str:
        address = normalize_web_url(uri, self.policy)
        location = without_query(address)
        if not any(
            location.startswith(p) if p in _SCHEMES else is_below(location, p) for p in self.addresses
        ):
            raise self._forbidden(location, what, advice)
        return address


_SCHEMES: Final = ("https://", "http://")


def _address_prefix(uri: str, policy: OutboundPolicy) -> str:
    if uri.lower() not in _SCHEMES:
        if "?" in uri:
            raise ConfigError(f"{_shown(uri)}: a permitted address prefix has no query")
        return normalize_web_url(uri, policy)
    if uri.lower() == "http://" and not policy.plain_http:
        raise ConfigError("http://: plain http is not allowed; write https://, or allow it in [outbound]")
    return uri.lower()


ALLOW_NOTHING: Final = UriAllowList()
"""An empty allow-list."""


def is_below(location: str, prefix: str) -> bool:
    """Return True if a location is the prefix or below it at a slash.

    ``s3://b/inner`` is not below ``s3://b/in``.

    A prefix with a final slash is no location itself: ``s3://b/in`` is not below ``s3://b/in/``.
    Both arguments are normalized.
    """
    return location == prefix or location.startswith(prefix if prefix.endswith("/") else f"{prefix}/")


def output_location(spec: NewJob) -> str:
    """Return ``output_uri/NAME`` of a job: with a suffix, the URI of its result or its failure.

    All spellings of a folder have one location. Raise ConfigError if the objects' names are too long.
    """
    uri = join(spec.output_uri, output_name(spec))
    location = parse(uri)
    if location.scheme in CLOUD_SCHEMES:
        object_location(uri + RESULT_SUFFIX + FAILED_SUFFIX)
    return uri if location.bucket else location.key


def file_name(key: str) -> str:
    """Return the name of a job's objects for its KEY: the KEY itself, as far as stores accept it.

    A slash or backslash, a query's or fragment's sign, an encoded dot or slash, and invisible
    characters become dashes. Different keys may therefore have one name; `distinct_name` tells them
    apart. A long key is shortened and always distinct, and so is one like a job's id, which is the
    name of a job without a KEY.

    Raises ConfigError for an empty key and for text that is not UTF-8.
    """
    require_text(key)
    if not key:
        raise ConfigError("key: must not be empty; leave it out to use the job's id")
    name = _UNSAFE.sub("-", key)
    if len(name.encode()) > KEY_NAME_BYTES_MAX or is_job_id(key):
        return distinct_name(name, key)
    return name


def output_name(spec: NewJob) -> str:
    """Return the name of the job's objects below its output prefix."""
    return spec.output_name or (file_name(spec.key) if spec.key else spec.id)


def distinct_name(name: str, text: str) -> str:
    """Return the name with a suffix that no other text has: ``~`` and a part of its hash."""
    return versioned_name(name, hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARS])


def versioned_name(name: str, version: str) -> str:
    """Return the name, shortened if necessary, with the suffix ``~`` and `version`."""
    suffix = f"~{version}"
    return name.encode()[: KEY_NAME_BYTES_MAX - len(suffix)].decode(errors="ignore") + suffix


def _is_name(text: str) -> bool:
    return len(text) <= _NAME_CHARS_MAX and not text.endswith(".") and bool(_NAME.fullmatch(text))


def _segment(name: str) -> str:
    """Return a name of headrace's own for a path. It is checked, because it may come from a client."""
    if not _is_name(name):
        raise ConfigError(f"{_shown(name)} cannot be part of an object name")
    return name


def _is_file(uri: str) -> bool:
    _check_text(uri)
    return parse(uri).scheme == "file"


def _check_text(uri: str) -> None:
    require_text(uri)
    if len(uri) > URI_CHARS_MAX:
        raise ConfigError(f"{_shown(uri)}: longer than {URI_CHARS_MAX} characters")
    if found := _INVISIBLE.search(uri):
        raise ConfigError(f"{_shown(uri)}: contains the invisible character {found[0]!r}")
    if uri != uri.strip():
        raise ConfigError(f"{_shown(uri)}: begins or ends with a space")
    if _USER.search(uri):
        raise ConfigError(f"{_shown(uri)}: a URI with credentials")
    if "?" in uri or "#" in uri:
        raise ConfigError(f"{_shown(uri)}: contains a query or fragment; remove it")
    if "\\" in uri:
        raise ConfigError(f"{_shown(uri)}: contains a backslash, which some systems read as a slash")


def _check_key(uri: str, key: str) -> None:
    if len(key.encode()) > KEY_BYTES_MAX:
        raise ConfigError(f"{_shown(uri)}: the key is longer than {KEY_BYTES_MAX} bytes")
    segments = key.removesuffix("/").split("/")
    # Encoded dots and slashes are refused too, because some proxies decode them.
    decoded = {_HIDDEN_DOT.sub(".", segment) for segment in segments}
    if decoded & {"", ".", ".."} or _HIDDEN_SLASH.search(key):
        raise ConfigError(f"{_shown(uri)}: contains an empty, '.' or '..' segment, or a hidden slash")


def _shown(uri: str) -> str:
    """Return a client's text for a message: shortened, quoted, and without possible passwords."""
    text = repr(_QUERY.sub("?***", _USER.sub("//***@", uri)))
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…'"


class JobPaths:
    """The layout of headrace's own store: the URIs of payloads, attempts and drafts."""

    def __init__(self, store_uri: str) -> None:
        self.store_uri: Final = store_uri
        """A prefix, bucket or folder that only headrace uses."""
        self.inputs: Final = join(store_uri, "inputs/")
        """The prefix of payloads that were sent with submissions."""
        self.all_attempts: Final = join(store_uri, "attempts/")
        """The prefix of the output of all attempts."""
        self.drafts: Final = join(store_uri, "drafts/")
        """The folder of unfinished files, for a store on a disk."""

    def input(self, job_id: str) -> str:
        """Return the URI of the payload that was sent with the job's submission."""
        return self.inputs + _segment(job_id)

    def attempts(self, job_id: str) -> str:
        """Return the prefix of the output of all attempts at a job."""
        return f"{self.all_attempts}{_segment(job_id)}/"

    def attempt(self, job_id: str, lease: int) -> str:
        """Return the prefix of one attempt's output.

        No other attempt writes there: lease numbers are unique.
        """
        return f"{self.all_attempts}{_segment(job_id)}/{lease}/"

    def job_id_of(self, uri: str) -> str | None:
        """Return the id of the job that owns this object, or None for foreign names."""
        if uri.startswith(self.inputs):
            name = uri.removeprefix(self.inputs)
            return name if _is_name(name) else None
        attempt = self._attempt_of(uri)
        return attempt[0] if attempt else None

    def lease_of(self, uri: str) -> int | None:
        """Return the lease under which an object was written; None for payloads and foreign names."""
        attempt = self._attempt_of(uri)
        return attempt[1] if attempt else None

    def _attempt_of(self, uri: str) -> tuple[str, int] | None:
        if not uri.startswith(self.all_attempts):
            return None
        job_id, slash, rest = uri.removeprefix(self.all_attempts).partition("/")
        lease, under, name = rest.partition("/")
        if not (slash and under and name and _is_name(job_id) and _LEASE.fullmatch(lease)):
            return None
        return job_id, int(lease)
