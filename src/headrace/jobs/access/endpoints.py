"""Endpoints of jobs: named, configured targets that hold what their jobs may use. Pure.

::

    [endpoints.churn]                     # of the settings file; the API has the same keys
    model = "churn"
    output_uri = "s3://bucket/scored/"
    notify = [{ receiver = "billing" }]
    time_limit_s = 600

A submission to an endpoint takes over each setting that it does not give itself. What it gives may
be narrower than the endpoint, never wider.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Annotated, Any, Final

import orjson

from headrace.core.errors import ConfigError, DataError, ForbiddenError, LimitError
from headrace.core.settings import Setting, check
from headrace.core.settings_reader import read_settings
from headrace.jobs.job import (
    ATTEMPTS_MAX_DEFAULT,
    PRIORITY_DEFAULT,
    PRIORITY_FIRST,
    PRIORITY_LAST,
    QUEUE_DEFAULT,
    Kind,
    NewJob,
)
from headrace.jobs.paths import UriAllowList
from headrace.jobs.submission import FIELDS, SubmissionLimits, format_value

ENDPOINTS_MAX: Final = 1000
"""Limit of current endpoints of a ledger."""
VERSIONS_MAX: Final = 100
"""The number of last versions that a ledger keeps of an endpoint."""
NOTIFY_MAX: Final = SubmissionLimits().notify_max
"""Limit of the notification targets of a job, with those of its endpoint."""
_DAY_S: Final = 86_400.0
_PERIOD_S_MAX: Final = SubmissionLimits().seconds_max
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_SAME: Final = ("model", "kind", "queue")
_AT_MOST: Final = ("attempts_max", "time_limit_s", "time_to_live_s", "deadline_s")


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """The settings of an endpoint.

    Raises ConfigError for an invalid value. The entries of `notify` are not checked, except for
    their number.
    """

    model: Annotated[str, Setting("Model of the jobs, optionally with @ and a version.")]
    kind: Annotated[Kind, Setting("Kind of the jobs.")] = "infer"
    queue: Annotated[str, Setting("Queue of the jobs.")] = QUEUE_DEFAULT
    output_uri: Annotated[
        str,
        Setting(
            "Prefix at or below which results are published.", default="none: headrace's own store keeps them"
        ),
    ] = ""
    notify: Annotated[
        tuple[Mapping[str, Any], ...],
        Setting("Notification targets of every job; see docs/notifications.md."),
    ] = ()
    client_webhooks: Annotated[bool, Setting("Let submissions add webhooks of their own.")] = False
    options: Annotated[Mapping[str, Any], Setting("Options of the kind; submissions may add others.")] = (
        field(default_factory=lambda: _NOTHING)
    )
    priority: Annotated[
        int,
        Setting("Priority of the jobs, and the most urgent one.", least=PRIORITY_FIRST, most=PRIORITY_LAST),
    ] = PRIORITY_DEFAULT
    attempts_max: Annotated[
        int, Setting("Limit of attempts.", least=1, most=SubmissionLimits().attempts_max)
    ] = ATTEMPTS_MAX_DEFAULT
    time_limit_s: Annotated[
        float | None,
        Setting(
            "Time limit of an attempt in seconds.",
            above=0,
            most=SubmissionLimits().time_limit_s_max,
            default="none",
        ),
    ] = None
    time_to_live_s: Annotated[
        float | None,
        Setting(
            "Seconds after which a job that has not started expires.",
            above=0,
            most=_PERIOD_S_MAX,
            default="none",
        ),
    ] = None
    deadline_s: Annotated[
        float | None,
        Setting(
            "Seconds after which an unfinished job expires.",
            above=0,
            most=_PERIOD_S_MAX,
            default="the server's deadline",
        ),
    ] = None
    payload_bytes_max: Annotated[
        int | None,
        Setting(
            "Limit of a payload in bytes, inline or uploaded.",
            least=1,
            most=1 << 40,
            default="the server's limits",
        ),
    ] = None
    running_max: Annotated[
        int | None,
        Setting("Limit of running jobs, over all workers.", least=0, most=2**31 - 1, default="no limit"),
    ] = None
    keep_days: Annotated[
        float | None,
        Setting(
            "Retention of ended jobs and their results in days.",
            above=0,
            most=36_500,
            default="the server's retention",
        ),
    ] = None

    def __post_init__(self) -> None:
        """Raise ConfigError for an invalid value, and spell the output in the normalized way."""
        check(self)
        limits = SubmissionLimits()
        texts = {"queue": self.queue, **({"model": self.model} if self.model or self.kind == "infer" else {})}
        try:
            for name, text in texts.items():
                FIELDS[name](name, text, limits)
            FIELDS["options"]("options", dict(self.options), limits)
            FIELDS["notify"]("notify", [dict(entry) for entry in self.notify], limits)
        except (DataError, LimitError) as error:
            raise ConfigError(str(error)) from None
        except TypeError as error:
            raise ConfigError(f"options and notify must be JSON: {error}") from None
        if self.output_uri:
            allowed = UriAllowList.read([self.output_uri])
            object.__setattr__(self, "output_uri", allowed.require(self.output_uri, "output"))
        elif self.kind != "infer":
            raise ConfigError(
                f"output_uri: a {self.kind} endpoint needs one: a folder or prefix for its output"
            )


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One version of an endpoint."""

    name: str
    version: int
    settings: EndpointSettings
    created_at_ms: int = 0
    created_by: str = ""
    """The name of the API key that wrote this version, or "settings file"."""
    deleted: bool = False
    """True for the version that ended the endpoint; its settings are those of the one before."""


def read_endpoint_name(name: str) -> str:
    """Return the name of an endpoint. Raise DataError for an invalid one."""
    return FIELDS["endpoint"]("endpoint", name, SubmissionLimits())


def read_endpoint_settings(table: Mapping[str, Any], where: str) -> EndpointSettings:
    """Return the settings of a table or JSON object. Raise ConfigError, which begins with `where`."""
    return read_settings(EndpointSettings, table, where)


def dump_endpoint_settings(settings: EndpointSettings) -> str:
    """Return settings as JSON for a ledger, with the secrets of webhooks."""
    return orjson.dumps(_plain(settings), option=orjson.OPT_SORT_KEYS).decode()


def load_endpoint_settings(text: str) -> EndpointSettings:
    """Return settings from a ledger. Settings of newer programs are dropped."""
    known = {each.name for each in fields(EndpointSettings)}
    values: dict[str, Any] = {name: value for name, value in orjson.loads(text).items() if name in known}
    values["notify"] = tuple(values.get("notify", ()))
    return EndpointSettings(**values)


def endpoint_document(endpoint: Endpoint, *, with_notify: bool = True) -> dict[str, Any]:
    """Return an endpoint as JSON, without the secrets of webhooks.

    Without `with_notify`, for clients that are not operators, the notification targets are left out,
    because their addresses may be secrets, too.
    """
    settings = _plain(endpoint.settings)
    entries = endpoint.settings.notify if with_notify else ()
    settings["notify"] = [
        {name: value for name, value in entry.items() if name != "secret"} for entry in entries
    ]
    values = {each.name: getattr(endpoint, each.name) for each in fields(Endpoint)}
    return {**values, "settings": settings}


def keep_secrets(settings: EndpointSettings, stored: EndpointSettings | None) -> EndpointSettings:
    """Return new settings with the stored secrets of webhooks that are repeated without one."""
    known = {entry["webhook"]: entry["secret"] for entry in _webhooks(stored) if "secret" in entry}
    entries = (
        {**entry, "secret": known[entry["webhook"]]}
        if "secret" not in entry and isinstance(entry.get("webhook"), str) and entry["webhook"] in known
        else entry
        for entry in settings.notify
    )
    return replace(settings, notify=tuple(entries))


def apply_endpoint(
    endpoint: Endpoint,
    job: NewJob,
    given: frozenset[str],
    *,
    reserved: tuple[str, ...] = (),
    trusted_output: bool = False,
) -> NewJob:
    """Return a submitted job with the settings of its endpoint.

    `given` are the fields that the client gave; all others are the endpoint's. `notify` has the
    endpoint's entries first, as the ledger has them. `reserved` are headrace's own locations, below
    which no client may write. With `trusted_output` the server's operator named the output, which
    matters only for an endpoint without one.

    Raises:
        ForbiddenError: A field exceeds what the endpoint allows. The message names the endpoint, the
            field and the allowed value.
        ConfigError: Nobody may name the output.
        LimitError: The job has too many notification targets.
    """
    rule = _Rule(endpoint, job, given)
    settings = endpoint.settings
    return replace(
        job,
        **{name: rule.same(name) for name in _SAME},
        **{name: rule.at_most(name) for name in _AT_MOST},
        priority=rule.priority(),
        options=rule.options(),
        output_uri=rule.output_uri(reserved, trusted=trusted_output),
        notify=(*settings.notify, *rule.own_notify()),
        keep_s=None if settings.keep_days is None else settings.keep_days * _DAY_S,
        endpoint=endpoint.name,
        endpoint_version=endpoint.version,
    )


def require_payload_size(endpoint: Endpoint | None, size_bytes: int) -> None:
    """Raise LimitError for a payload that exceeds the limit of its endpoint, if it has one."""
    limit = None if endpoint is None else endpoint.settings.payload_bytes_max
    if endpoint is not None and limit is not None and size_bytes > limit:
        raise LimitError(
            f"a payload of {size_bytes} bytes exceeds the {limit} that endpoint {endpoint.name!r} permits: "
            "send a smaller one"
        )


@dataclass(frozen=True, slots=True)
class _Rule:
    """The decisions about the fields of one submission."""

    endpoint: Endpoint
    job: NewJob
    given: frozenset[str]

    def same(self, name: str) -> Any:
        allowed, value = getattr(self.endpoint.settings, name), getattr(self.job, name)
        if name in self.given and value != allowed:
            raise self._refusal(name, f"must be {allowed!r}", value)
        return allowed

    def at_most(self, name: str) -> Any:
        allowed, value = getattr(self.endpoint.settings, name), getattr(self.job, name)
        if allowed is None:
            return value
        if name not in self.given or value is None:
            return allowed
        if value > allowed:
            raise self._refusal(name, f"must be at most {allowed:g}", value)
        return value

    def priority(self) -> int:
        allowed, value = self.endpoint.settings.priority, self.job.priority
        if "priority" not in self.given:
            return allowed
        if value < allowed:
            raise self._refusal("priority", f"must be {allowed} or a larger number", value)
        return value

    def options(self) -> Mapping[str, Any]:
        allowed = self.endpoint.settings.options
        added = self.job.options if "options" in self.given else _NOTHING
        for name in sorted(allowed.keys() & added.keys()):
            if added[name] != allowed[name]:
                raise self._refusal(f"options.{name}", f"must be {allowed[name]!r:.80}", added[name])
        return {**added, **allowed}

    def output_uri(self, reserved: tuple[str, ...], *, trusted: bool) -> str:
        allowed, value = self.endpoint.settings.output_uri, self.job.output_uri
        if "output_uri" not in self.given or not value:
            return allowed
        if allowed:
            uris = UriAllowList.read([allowed], reserved=reserved)
            return uris.require(value, "output", f"write below the output of endpoint {self.endpoint.name!r}")
        if trusted:
            return value
        raise self._refusal("output_uri", "must be left out, as the endpoint has none", value)

    def own_notify(self) -> tuple[Mapping[str, Any], ...]:
        settings = self.endpoint.settings
        own = self.job.notify if "notify" in self.given else ()
        if own and not settings.client_webhooks:
            raise self._refusal("notify", "must be left out: the endpoint has its own targets")
        for entry in own:
            if "webhook" not in entry:
                raise self._refusal("notify", "must be webhooks only")
        if len(own) + len(settings.notify) > NOTIFY_MAX:
            raise LimitError(
                f"notify: {len(own)} entries and the {len(settings.notify)} of endpoint "
                f"{self.endpoint.name!r} exceed the limit of {NOTIFY_MAX}"
            )
        return own

    def _refusal(self, name: str, allowed: str, value: object = None) -> ForbiddenError:
        shown = "" if value is None else f", not {format_value(value)}"
        return ForbiddenError(f"{name}: endpoint {self.endpoint.name!r}: {allowed}{shown}")


def _plain(settings: EndpointSettings) -> dict[str, Any]:
    """Return settings as JSON, without those that are None, which files and requests cannot name."""
    values = {each.name: getattr(settings, each.name) for each in fields(EndpointSettings)}
    given = {name: value for name, value in values.items() if value is not None}
    return {**given, "options": dict(settings.options), "notify": [dict(entry) for entry in settings.notify]}


def _webhooks(settings: EndpointSettings | None) -> list[Mapping[str, Any]]:
    entries = () if settings is None else settings.notify
    return [entry for entry in entries if isinstance(entry.get("webhook"), str)]
