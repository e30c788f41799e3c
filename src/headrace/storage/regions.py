"""In which region the data of a URI lives: what the user's rules say, and else what the bucket's server says.

A region is a label: a cloud's own name, such as ``eu-west-1``, or one that the user made up, such as ``hall-2``. Knowing
it makes work cheaper and never right or wrong, so whatever cannot be found out is None.
"""

import logging
import os
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import ConfigError, HeadraceError
from headrace.storage.aws_sdk import bucket_region
from headrace.storage.uri import absolute, parse

ASK_TIMEOUT_S: Final = 5.0
"""How long a server is waited for, to connect and for its answer."""
UNKNOWN_S: Final = 600.0
"""How long a bucket that said nothing is not asked again."""
BUCKETS_MAX: Final = 1_024
"""Answers that are kept; the oldest goes first."""
REGION_CHARACTERS_MAX: Final = 63
_REGION = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{REGION_CHARACTERS_MAX - 1}}}")

logger = logging.getLogger(__name__)


def require_region(label: str) -> str:
    """The label as it is. Raises ConfigError for one that no region can have."""
    if not _REGION.fullmatch(label):
        raise ConfigError(
            f"{label!r} cannot be a region: write letters, digits, '.', '_' and '-', {REGION_CHARACTERS_MAX} at most, "
            "the first a letter or digit, such as eu-west-1"
        )
    return label


@dataclass(frozen=True, slots=True)
class RegionRule:
    """Whatever begins with `prefix` lives in `region`.

    A prefix is that of a listing: it may end in the middle of a name, but a bucket's or host's name alone is the whole
    bucket. Plain paths are made absolute. Raises ConfigError for a URI or a region that cannot be.
    """

    prefix: str
    region: str

    def __post_init__(self) -> None:
        require_region(self.region)
        object.__setattr__(self, "prefix", _normal(self.prefix))


def parse_region_rule(text: str) -> RegionRule:
    """``PREFIX=REGION``, such as ``s3://bucket-eu/=eu-west-1``; the last ``=`` parts the two. Raises ConfigError."""
    prefix, parted, region = text.rpartition("=")
    if not parted or not prefix or not region:
        raise ConfigError(
            f"{text!r} is no rule for a region: write PREFIX=REGION, such as s3://bucket-eu/=eu-west-1"
        )
    try:
        return RegionRule(prefix, region)
    except ConfigError as error:
        raise ConfigError(f"the rule {text!r} for a region: {error}") from error


@dataclass(frozen=True, slots=True)
class RegionRules:
    """What the user says of regions; goes to other processes as JSON.

    Args:
        rules: The longest prefix that fits says where a URI's data lives.
        ask_buckets: Where no rule fits, ask the bucket's server.

    Raises ConfigError when one prefix is in two regions.
    """

    rules: tuple[RegionRule, ...] = ()
    ask_buckets: bool = True

    def __post_init__(self) -> None:
        regions: dict[str, str] = {}
        for rule in self.rules:
            if regions.setdefault(rule.prefix, rule.region) != rule.region:
                raise ConfigError(
                    f"{rule.prefix} is in two regions, {regions[rule.prefix]} and {rule.region}: leave one of them out"
                )

    @classmethod
    def parse(cls, texts: Iterable[str], *, ask_buckets: bool = True) -> Self:
        """Rules as `parse_region_rule` takes them. Raises ConfigError."""
        return cls(tuple(parse_region_rule(text) for text in texts), ask_buckets)

    def region(self, uri: str) -> str | None:
        """What the rules say of a URI or plain path. Raises ConfigError for a URI that cannot be."""
        if not self.rules:
            return None
        normal = _normal(uri)
        fitting = [rule for rule in self.rules if normal.startswith(rule.prefix)]
        return max(fitting, key=lambda rule: len(rule.prefix)).region if fitting else None

    def to_json(self) -> dict[str, Any]:
        """As `from_json` takes it."""
        return {
            "rules": [{"prefix": rule.prefix, "region": rule.region} for rule in self.rules],
            "ask_buckets": self.ask_buckets,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The rules that `to_json` gave."""
        rules = tuple(RegionRule(rule["prefix"], rule["region"]) for rule in data["rules"])
        return cls(rules, ask_buckets=data["ask_buckets"])


class AskBucket(Protocol):
    """Asks a server for a bucket's region: None where it does not say. May raise anything."""

    def __call__(self, name: str, environ: Mapping[str, str], *, timeout_s: float) -> str | None:
        """The region of the bucket `name`."""
        ...


class Regions:
    """Tells in which region data lives, by rules and by asking. Safe from any thread.

    Only S3 is asked, and needs the extra `aws`. A bucket that answered is asked once, one that did not say again after
    `UNKNOWN_S`; meanwhile whoever else wants to know of any bucket waits, some `ASK_TIMEOUT_S` a bucket.

    Args:
        rules: What the user says.
        environ: Where endpoint and credentials come from; the process's environment when None.
        ask: Asks a server; for tests.
        clock: What `UNKNOWN_S` is measured by.
    """

    def __init__(
        self,
        rules: RegionRules | None = None,
        environ: Mapping[str, str] | None = None,
        *,
        ask: AskBucket | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.rules = rules if rules is not None else RegionRules()
        self._environ = os.environ if environ is None else environ
        self._ask: AskBucket = ask if ask is not None else bucket_region
        self._clock: Clock = clock or SystemClock()
        self._buckets: dict[str, tuple[str | None, float]] = {}
        self._lock = threading.Lock()

    def of(self, uri: str) -> str | None:
        """The region of a URI's or plain path's data, None where it is not known. Never raises; may wait for a server."""
        try:
            if region := self.rules.region(uri):
                return region
            location = parse(uri)
        except ConfigError as error:
            logger.debug("region unknown: %s", error)
            return None
        if location.scheme != "s3" or not self.rules.ask_buckets:
            return None
        return self._of_bucket(location.bucket)

    def _of_bucket(self, name: str) -> str | None:
        with self._lock:
            known = self._buckets.get(name)
            if known is not None and (known[0] is not None or self._clock.now() < known[1]):
                return known[0]
            self._buckets.pop(name, None)
            region = self._asked(name)
            if len(self._buckets) >= BUCKETS_MAX:
                del self._buckets[next(iter(self._buckets))]
            self._buckets[name] = (region, self._clock.now() + UNKNOWN_S)
            return region

    def _asked(self, name: str) -> str | None:
        try:
            region = self._ask(name, self._environ, timeout_s=ASK_TIMEOUT_S)
            return require_region(region) if region is not None else None
        except HeadraceError as error:
            logger.debug("region of s3://%s unknown: %s", name, error)
        except Exception as error:  # noqa: BLE001 - the SDK raises dozens of kinds, and none may end a run
            logger.debug("region of s3://%s unknown: %s: %s", name, type(error).__name__, error)
        return None


def _normal(uri: str) -> str:
    """One way to write a URI, so that prefixes can be compared: plain paths absolute, buckets ending in a slash."""
    location = parse(absolute(uri))
    key = location.key.lstrip("/") if location.scheme == "file" else location.key
    return f"{location.scheme}://{location.bucket}/{key}"
