"""Which places (URIs) jobs may name, and where headrace keeps what is theirs. Pure: nothing is opened here.

What comes from a caller goes through `normal` first: one spelling for one place, and no spelling that some store, proxy
or file system would read as another. Allow-lists compare those, whole segment by whole segment. Keys are bytes: two
spellings of one accented letter are two keys, as stores have it, and nothing is decoded.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from headrace.core.errors import ConfigError, ForbiddenError
from headrace.jobs.outbound.urls import OutboundPolicy, parse_url
from headrace.storage.uri import CLOUD_SCHEMES, KEY_BYTES_MAX, join, object_location, parse, require_text

URI_CHARS_MAX: Final = 2048
KEY_NAME_BYTES_MAX: Final = 128
"""The longest KEY that stands in ``KEY.out`` as it is."""
RESULT_SUFFIX: Final = ".out"
ERROR_SUFFIX: Final = ".error"

_SHOWN_CHARS: Final = 80
_BUCKET: Final = re.compile(r"[a-z0-9$][a-z0-9._-]{0,221}")
# Bidirectional overrides and zero-width characters: a URI must look like what it is wherever it is shown.
_INVISIBLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_USER: Final = re.compile(r"//[^/]*@")
_QUERY: Final = re.compile(r"\?.*", re.DOTALL)
_HIDDEN_SLASH: Final = re.compile("%(2f|5c|00)", re.IGNORECASE)
_HIDDEN_DOT: Final = re.compile("%2e", re.IGNORECASE)
_WEB: Final = re.compile("https?://", re.IGNORECASE)
_PARAMETER: Final = re.compile("(;|%3b).*", re.IGNORECASE)
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=-]*")
_LEASE: Final = re.compile(r"0|[1-9][0-9]{0,17}")
_HASH_CHARS: Final = 32
_WORDS_CHARS: Final = 64


def normal(uri: str) -> str:
    """The one spelling of a place that a caller may name: ``s3://``, ``gs://`` or ``az://``, a bucket, and a key.

    The scheme becomes lower-case; all else stays as it is written, or is refused. A slash at the end, for a prefix, stays.

    Raises ConfigError for everything else: other schemes, no bucket, a bucket with capitals (no store has any), user
    names, ports, queries, empty, ``.`` and ``..`` segments, also percent-encoded ones, backslashes, control and
    invisible characters, spaces at either end, what is not UTF-8, or more than `KEY_BYTES_MAX` bytes of key.
    """
    _check_text(uri)
    location = parse(uri)
    if location.scheme == "file":
        raise ConfigError(
            f"{_shown(uri)}: files of the server cannot be named here; put the object into a bucket"
        )
    if location.scheme not in CLOUD_SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in sorted(CLOUD_SCHEMES))
        raise ConfigError(
            f"{_shown(uri)}: {location.scheme}:// cannot be named here; name an object by {known}"
        )
    if not _BUCKET.fullmatch(location.bucket) or ".." in location.bucket:
        raise ConfigError(f"{_shown(uri)}: a bucket's name has lower-case letters, digits, '-', '_' and '.'")
    if location.key:
        _check_key(uri, location.key)
    return f"{location.scheme}://{location.bucket}/{location.key}"


def normal_file(uri: str) -> str:
    """The one spelling of a file of the server, as its absolute path. ConfigError for a relative path and tricks in it."""
    _check_text(uri)
    location = parse(uri)
    if location.scheme != "file" or not location.key.startswith("/"):
        raise ConfigError(f"{_shown(uri)}: a file is named by its absolute path")
    if location.key != "/":
        _check_key(uri, location.key.removeprefix("/"))
    return location.key


def normal_address(uri: str, policy: OutboundPolicy) -> str:
    """The one spelling of a web address that a caller may name as an input; see `outbound.urls.parse_url`.

    Its path has none of the segments that `normal` refuses, so that what stands below a prefix is meant there by every server.
    A query, such as a signature, stays. Raises RefusedAddressError, a ConfigError.
    """
    url = parse_url(uri, policy)
    path = url.target.partition("?")[0].removeprefix("/")
    if path:
        # Some servers take `..;x` for `..`.
        _check_key(
            uri, "/".join(_PARAMETER.sub("", s) if s.startswith((".", "%")) else s for s in path.split("/"))
        )
    return url.origin + url.target


def is_address(uri: str) -> bool:
    """Whether it is a web address."""
    return bool(_WEB.match(uri))


def told(uri: str) -> str:
    """A place as others may read it: without a web address's query, which may be what opens it."""
    return uri.partition("?")[0] if is_address(uri) else uri


@dataclass(frozen=True, slots=True)
class Allowed:
    """Places that may be named: those, and what is below them. Nothing at all by default."""

    prefixes: tuple[str, ...] = ()
    """In the spelling of `normal`."""
    local_roots: tuple[str, ...] = ()
    """Folders of the server's own, in the spelling of `normal_file`: only who runs the server can open them."""
    reserved: tuple[str, ...] = ()
    """Places of headrace's own, where everybody's payloads and results are: not named, whatever the prefixes say."""
    addresses: tuple[str, ...] = ()
    """Web addresses in the spelling of `normal_address`, for inputs alone; ``https://`` is all that `policy` lets be reached."""
    policy: OutboundPolicy = field(default_factory=OutboundPolicy)

    @classmethod
    def read(
        cls, places: Iterable[str], *, reserved: Iterable[str] = (), policy: OutboundPolicy | None = None
    ) -> "Allowed":
        """An allow-list of all sorts of places: prefixes of buckets, folders by their absolute paths, web addresses.

        Raises ConfigError for what no caller could name; also for web addresses without a `policy`, as where outputs are meant.
        """
        named = tuple(places)
        web = [uri for uri in named if is_address(uri)]
        files = [uri for uri in named if uri not in web and _is_file(uri)]
        buckets = [uri for uri in named if uri not in web and uri not in files]
        if web and policy is None:
            raise ConfigError(
                f"{_shown(web[0])}: nothing is written to web addresses; name a bucket's prefix"
            )
        made = cls.of(buckets, local_roots=files, reserved=reserved)
        if policy is None:
            return made
        return replace(made, addresses=tuple(_address_prefix(uri, policy) for uri in web), policy=policy)

    @classmethod
    def of(
        cls, prefixes: Iterable[str], *, local_roots: Iterable[str] = (), reserved: Iterable[str] = ()
    ) -> "Allowed":
        """An allow-list as somebody wrote it. ConfigError for what no caller could name."""
        own = [normal_file(uri) if parse(uri).scheme == "file" else normal(uri) for uri in reserved]
        return cls(tuple(map(normal, prefixes)), tuple(map(normal_file, local_roots)), tuple(own))

    def require(self, uri: str, what: str) -> str:
        """The one spelling of a place that may be named; `what` it is for begins the error's message.

        Raises ConfigError for what nobody may name (see `normal`), ForbiddenError for what is outside of this list.
        Links inside a local root are not looked at: whoever may write there could make one that leads out.
        """
        if self.addresses and is_address(uri):
            return self._require_address(uri, what)
        if self.local_roots and _is_file(uri):
            place, roots = normal_file(uri), self.local_roots
        else:
            place, roots = normal(uri), self.prefixes
        own = any(below(place, root) for root in self.reserved)
        if own or not any(below(place, root) for root in roots):
            raise ForbiddenError(f"the {what} {_shown(place)} is outside of what this key may name")
        return place

    def _require_address(self, uri: str, what: str) -> str:
        address = normal_address(uri, self.policy)
        place = told(address)
        if not any(place.startswith(p) if p in _SCHEMES else below(place, p) for p in self.addresses):
            raise ForbiddenError(f"the {what} {_shown(place)} is outside of what this key may name")
        return address


_SCHEMES: Final = ("https://", "http://")


def _address_prefix(uri: str, policy: OutboundPolicy) -> str:
    if uri.lower() not in _SCHEMES:
        if "?" in uri:
            raise ConfigError(f"{_shown(uri)}: a prefix of addresses has no query")
        return normal_address(uri, policy)
    if uri.lower() == "http://" and not policy.plain_http:
        raise ConfigError("http://: plain http is not allowed here; say https://, or allow it in [outbound]")
    return uri.lower()


NOTHING: Final = Allowed()
"""No place at all."""


def below(place: str, prefix: str) -> bool:
    """Whether a place is the prefix, or below it at a slash: ``s3://b/inner`` is not below ``s3://b/in``.

    A prefix that ends in a slash has no place of its own: ``s3://b/in`` is not below ``s3://b/in/``. Both are in one
    spelling (`normal`).
    """
    return place == prefix or place.startswith(prefix if prefix.endswith("/") else f"{prefix}/")


def result_uri(output_uri: str, key: str) -> str:
    """``KEY.out`` below the output prefix. See `file_name`. ConfigError where that is too long for a store."""
    return _object(join(output_uri, file_name(key) + RESULT_SUFFIX))


def error_uri(output_uri: str, key: str) -> str:
    """``KEY.error`` below the output prefix. See `file_name`. ConfigError where that is too long for a store."""
    return _object(join(output_uri, file_name(key) + ERROR_SUFFIX))


def file_name(key: str) -> str:
    """A job's KEY as one safe segment of a path, which no other key has.

    A key of letters, digits and ``._=-`` stays as it is, unless it could be taken for something else: a dot, dash or
    ``=`` first, a suffix of ours, or too long. Any other becomes what is safe of it, ``~`` and a hash of it; ``~`` is in no
    key that stays.

    Raises ConfigError for an empty key, and for text that is not UTF-8.
    """
    require_text(key)
    if not key:
        raise ConfigError("a job's key cannot be empty: leave it out, and the job's id is taken")
    if _is_name(key) and not key.endswith((RESULT_SUFFIX, ERROR_SUFFIX)):
        return key
    words = re.sub(r"[^A-Za-z0-9_-]+", "-", key).strip("-")[:_WORDS_CHARS]
    return f"{words}~{hashlib.sha256(key.encode()).hexdigest()[:_HASH_CHARS]}"


def _is_name(text: str) -> bool:
    return len(text) <= KEY_NAME_BYTES_MAX and not text.endswith(".") and bool(_NAME.fullmatch(text))


def _segment(name: str) -> str:
    """A name of our own that goes into a path. It is checked all the same, since it may have come in from a caller."""
    if not _is_name(name):
        raise ConfigError(f"{_shown(name)} cannot be part of an object's name")
    return name


def _object(uri: str) -> str:
    if parse(uri).scheme in CLOUD_SCHEMES:
        object_location(uri)
    return uri


def _is_file(uri: str) -> bool:
    _check_text(uri)
    return parse(uri).scheme == "file"


def _check_text(uri: str) -> None:
    require_text(uri)
    if len(uri) > URI_CHARS_MAX:
        raise ConfigError(f"{_shown(uri)}: longer than {URI_CHARS_MAX} characters")
    if found := _INVISIBLE.search(uri):
        raise ConfigError(f"{_shown(uri)}: holds the character {found[0]!r}, which nobody would see")
    if uri != uri.strip():
        raise ConfigError(f"{_shown(uri)}: begins or ends with a space")
    if _USER.search(uri):
        raise ConfigError(f"{_shown(uri)}: credentials do not belong in a URI")
    if "?" in uri or "#" in uri:
        raise ConfigError(f"{_shown(uri)}: a query or fragment; what is named here has neither")
    if "\\" in uri:
        raise ConfigError(f"{_shown(uri)}: a backslash, which some systems take for a slash")


def _check_key(uri: str, key: str) -> None:
    if len(key.encode()) > KEY_BYTES_MAX:
        raise ConfigError(f"{_shown(uri)}: the key is longer than {KEY_BYTES_MAX} bytes")
    segments = key.removesuffix("/").split("/")
    # What decodes to a dot or a slash is refused too: some proxies before a store decode it.
    decoded = {_HIDDEN_DOT.sub(".", segment) for segment in segments}
    if decoded & {"", ".", ".."} or _HIDDEN_SLASH.search(key):
        raise ConfigError(f"{_shown(uri)}: an empty, '.' or '..' segment, or one that hides a slash")


def _shown(uri: str) -> str:
    """A caller's text in a message: cut, quoted, and without what could be a password."""
    text = repr(_QUERY.sub("?***", _USER.sub("//***@", uri)))
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…'"


@dataclass(frozen=True, slots=True)
class Places:
    """Where headrace keeps what is a job's, below one store of its own."""

    store_uri: str
    """A prefix, bucket or folder that is ours alone."""

    @property
    def inputs(self) -> str:
        """Below it are payloads that came with submissions."""
        return join(self.store_uri, "inputs/")

    @property
    def all_attempts(self) -> str:
        """Below it is what attempts wrote."""
        return join(self.store_uri, "attempts/")

    @property
    def drafts(self) -> str:
        """On a disk, what is being written."""
        return join(self.store_uri, "drafts/")

    def input(self, job_id: str) -> str:
        """Where a payload is kept that came with the submission."""
        return self.inputs + _segment(job_id)

    def attempts(self, job_id: str) -> str:
        """Below it is what all attempts at a job wrote."""
        return f"{self.all_attempts}{_segment(job_id)}/"

    def attempt(self, job_id: str, lease: int) -> str:
        """What one attempt writes is below this, and nobody else writes there: a lease's number never comes twice."""
        return f"{self.attempts(job_id)}{lease}/"

    def job_id_of(self, uri: str) -> str | None:
        """Whose an object of ours is; None where its name is not one that we give."""
        if uri.startswith(self.inputs):
            name = uri.removeprefix(self.inputs)
            return name if _is_name(name) else None
        attempt = self._attempt_of(uri)
        return attempt[0] if attempt else None

    def lease_of(self, uri: str) -> int | None:
        """Under which lease an object was written; None for payloads, and for what is not named as ours."""
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
