"""Find the region of the data of a URI: from the user's rules, else from the bucket's server.

A region is a label: a cloud's name such as ``eu-west-1``, or a name that the user chose such as
``hall-2``. A region only makes work cheaper and never affects results, so a region that cannot be
found is None. The query of a bucket needs boto3.
"""

import logging
import os
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import AccessDeniedError, ConfigError, HeadraceError
from headrace.storage.cloud_credentials import AwsSettings, CredentialSource, aws_settings, sdk_session
from headrace.storage.uri import absolute, parse

LOOKUP_TIMEOUT_S: Final = 5.0
"""Seconds to wait for a connection, and again for the response."""
UNKNOWN_REGION_TTL_S: Final = 600.0
"""Seconds until a bucket of unknown region is queried again."""
BUCKETS_MAX: Final = 1_024
"""Buckets in the cache; the oldest is evicted first."""
REGION_CHARACTERS_MAX: Final = 63
_REGION = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{REGION_CHARACTERS_MAX - 1}}}")

logger = logging.getLogger(__name__)


def require_region(label: str) -> str:
    """Return the label unchanged. Raises ConfigError if it is no valid region."""
    if not _REGION.fullmatch(label):
        raise ConfigError(
            f"{label!r} is not a valid region: write up to {REGION_CHARACTERS_MAX} letters, digits, '.', '_' "
            "or '-', the first a letter or digit, such as eu-west-1"
        )
    return label


@dataclass(frozen=True, slots=True)
class RegionRule:
    """The rule that URIs starting with `prefix` are in `region`.

    A prefix works as in a listing: it may end in the middle of a name. The name of a bucket or host
    alone stands for the whole bucket. Plain paths become absolute. Raises ConfigError for an
    invalid URI or region.
    """

    prefix: str
    region: str

    def __post_init__(self) -> None:
        require_region(self.region)
        object.__setattr__(self, "prefix", _normalize(self.prefix))


def parse_region_rule(text: str) -> RegionRule:
    """Parse ``PREFIX=REGION``, such as ``s3://bucket-eu/=eu-west-1``.

    The last ``=`` separates the two. Raises ConfigError.
    """
    prefix, parted, region = text.rpartition("=")
    if not parted or not prefix or not region:
        raise ConfigError(
            f"{text!r} is not a region rule: write PREFIX=REGION, such as s3://bucket-eu/=eu-west-1"
        )
    try:
        return RegionRule(prefix, region)
    except ConfigError as error:
        raise ConfigError(f"region rule {text!r}: {error}") from error


@dataclass(frozen=True, slots=True)
class RegionRules:
    """The user's region rules. Other processes receive them as JSON.

    Args:
        rules: The rules; the longest matching prefix wins.
        ask_buckets: True to query the server of a bucket that no rule matches.

    Raises ConfigError if two rules give one prefix two regions.
    """

    rules: tuple[RegionRule, ...] = ()
    ask_buckets: bool = True

    def __post_init__(self) -> None:
        regions: dict[str, str] = {}
        for rule in self.rules:
            if regions.setdefault(rule.prefix, rule.region) != rule.region:
                raise ConfigError(
                    f"{rule.prefix} is in two regions, {regions[rule.prefix]} and {rule.region}: "
                    "remove one of the rules"
                )

    @classmethod
    def parse(cls, texts: Iterable[str], *, ask_buckets: bool = True) -> Self:
        """Parse rules in the form of `parse_region_rule`. Raises ConfigError."""
        return cls(tuple(parse_region_rule(text) for text in texts), ask_buckets)

    def region(self, uri: str) -> str | None:
        """Return the region of a URI or plain path by the rules alone.

        Raises ConfigError for an invalid URI.
        """
        if not self.rules:
            return None
        normal = _normalize(uri)
        fitting = [rule for rule in self.rules if normal.startswith(rule.prefix)]
        return max(fitting, key=lambda rule: len(rule.prefix)).region if fitting else None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `from_json` takes."""
        return {
            "rules": [{"prefix": rule.prefix, "region": rule.region} for rule in self.rules],
            "ask_buckets": self.ask_buckets,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the rules from the JSON form of `to_json`."""
        rules = tuple(RegionRule(rule["prefix"], rule["region"]) for rule in data["rules"])
        return cls(rules, ask_buckets=data["ask_buckets"])


class BucketRegionLookup(Protocol):
    """A function that queries a server for the region of a bucket. It may raise any exception."""

    def __call__(self, name: str, environ: Mapping[str, str], *, timeout_s: float) -> str | None:
        """Return the region of the bucket `name`, or None if the server reports none."""
        ...


class RegionResolver:
    """A resolver of URIs to regions, by rules and by queries. Safe from any thread.

    Only S3 is queried; the query needs the extra `aws`. A known region is cached for the life of
    the resolver, an unknown one for `UNKNOWN_REGION_TTL_S` seconds. One query runs at a time: other
    threads wait, about `LOOKUP_TIMEOUT_S` a bucket.

    Args:
        rules: The user's rules.
        environ: The source of endpoint and credentials; None: the environment of the process.
        lookup: The query; for tests.
        clock: The clock of `UNKNOWN_REGION_TTL_S`.
    """

    def __init__(
        self,
        rules: RegionRules | None = None,
        environ: Mapping[str, str] | None = None,
        *,
        lookup: BucketRegionLookup | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.rules = rules if rules is not None else RegionRules()
        self._environ = os.environ if environ is None else environ
        self._lookup: BucketRegionLookup = lookup if lookup is not None else bucket_region
        self._clock: Clock = clock or SystemClock()
        self._buckets: dict[str, tuple[str | None, float]] = {}
        self._lock = threading.Lock()

    def resolve(self, uri: str) -> str | None:
        """Return the region of the data of a URI or plain path, or None if it is unknown.

        Never raises. May wait for a server.
        """
        try:
            if region := self.rules.region(uri):
                return region
            location = parse(uri)
        except ConfigError as error:
            logger.debug("region unknown: %s", error)
            return None
        if location.scheme != "s3" or not self.rules.ask_buckets:
            return None
        return self._bucket_region(location.bucket)

    def _bucket_region(self, name: str) -> str | None:
        with self._lock:
            known = self._buckets.get(name)
            if known is not None and (known[0] is not None or self._clock.now() < known[1]):
                return known[0]
            self._buckets.pop(name, None)
            region = self._look_up(name)
            if len(self._buckets) >= BUCKETS_MAX:
                del self._buckets[next(iter(self._buckets))]
            self._buckets[name] = (region, self._clock.now() + UNKNOWN_REGION_TTL_S)
            return region

    def _look_up(self, name: str) -> str | None:
        try:
            region = self._lookup(name, self._environ, timeout_s=LOOKUP_TIMEOUT_S)
            return require_region(region) if region is not None else None
        except HeadraceError as error:
            logger.debug("region of s3://%s unknown: %s", name, error)
        except Exception as error:  # noqa: BLE001 - the SDK raises dozens of types, and none may end a run
            logger.debug("region of s3://%s unknown: %s: %s", name, type(error).__name__, error)
        return None


def _normalize(uri: str) -> str:
    """Return one spelling of a URI, so that prefixes are comparable.

    Plain paths become absolute, and buckets end in a slash.
    """
    location = parse(absolute(uri))
    key = location.key.lstrip("/") if location.scheme == "file" else location.key
    return f"{location.scheme}://{location.bucket}/{key}"


_REGION_HEADER: Final = "x-amz-bucket-region"
_FIRST_REGION: Final = "us-east-1"


def bucket_region(name: str, environ: Mapping[str, str], *, timeout_s: float) -> str | None:
    """Return the region that the server of an S3 bucket reports, or None if it reports none.

    Usually one request, never retried. Connecting and the response have `timeout_s` seconds each.
    The endpoint and the credentials are those that read the bucket.

    Raises:
        MissingExtraError: boto3 is not installed.
        AccessDeniedError: There are no credentials to sign with.
        ConfigError: A setting is invalid.
        Exception: The SDK raised one of its dozens of exception types.
    """
    aws = aws_settings(environ)
    if aws.source is CredentialSource.NONE:
        raise AccessDeniedError(f"s3://{name}", f"no credentials found; searched {aws.searched_sources}")
    client = _s3_client(aws, timeout_s)
    try:
        return _region_from_head(client, name) or _region_from_location(
            client, name, of_amazon=not aws.endpoint
        )
    finally:
        client.close()


def _region_from_head(client: Any, name: str) -> str | None:
    from botocore.exceptions import ClientError  # noqa: PLC0415 - of boto3

    try:
        response: Any = client.head_bucket(Bucket=name)
    except ClientError as error:
        # Amazon sends the header also with 403 and with redirects from another region.
        if region := _region_from_headers(error.response):
            return region
        raise
    return _region_from_headers(response)


def _region_from_headers(response: Any) -> str | None:
    return response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get(_REGION_HEADER) or None


def _region_from_location(client: Any, name: str, *, of_amazon: bool) -> str | None:
    constraint = client.get_bucket_location(Bucket=name).get("LocationConstraint")
    if not constraint:
        # Amazon omits the constraint for its first region. Other servers omit it because they know
        # no regions.
        return _FIRST_REGION if of_amazon else None
    return "eu-west-1" if constraint == "EU" else str(constraint)


def _s3_client(aws: AwsSettings, timeout_s: float) -> Any:
    session = sdk_session(
        "asking S3 for a bucket's region",
        profile_name=aws.profile if aws.source is CredentialSource.SDK else None,
        region_name=aws.region,
        aws_access_key_id=aws.access_key_id or None,
        aws_secret_access_key=aws.secret_access_key or None,
        aws_session_token=aws.session_token or None,
    )
    from botocore import UNSIGNED  # noqa: PLC0415 - of boto3
    from botocore.config import Config  # noqa: PLC0415

    unsigned = aws.source is CredentialSource.ANONYMOUS
    config = Config(
        connect_timeout=timeout_s,
        read_timeout=timeout_s,
        retries={"total_max_attempts": 1},
        s3={"addressing_style": "path"} if aws.endpoint else None,
        **({"signature_version": UNSIGNED} if unsigned else {}),
    )
    return session.client(
        "s3", endpoint_url=aws.endpoint or None, verify=aws.ca_bundle or None, config=config
    )
