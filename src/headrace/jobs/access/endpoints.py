"""Endpoints: named, configured targets of jobs, and what a submission to one may say. Pure.

An endpoint holds what its jobs use: the model, the queue, the place of results, the receivers of
notifications, and limits. A submission names the endpoint and its input. It may name other fields only
within the endpoint's settings: an output below its `output_uri`, a later priority, fewer attempts,
shorter times, and options that the endpoint leaves open.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Annotated, Any, Final

from headrace.core.errors import ConfigError, ForbiddenError, HeadraceError
from headrace.core.settings import Setting
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
from headrace.jobs.paths import is_below, normalize_file_path, normalize_uri
from headrace.jobs.submission import FIELDS, SubmissionLimits
from headrace.runs.sagemaker import FIELDS as DOCUMENT_FIELDS
from headrace.storage.uri import parse

VERSIONS_MAX: Final = 100
"""Versions of an endpoint that a ledger keeps."""
_FIXED: Final = ("model", "kind", "queue")
_TIMES: Final = ("time_limit_s", "time_to_live_s", "deadline_s")


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """The settings of an endpoint. None leaves a limit to the submission and to the server."""

    model: Annotated[str, Setting("Model of the jobs, optionally with @ and a version.")]
    kind: Annotated[Kind, Setting("Kind of the jobs.")] = "infer"
    queue: Annotated[str, Setting("Queue of the jobs.")] = QUEUE_DEFAULT
    output_uri: Annotated[
        str, Setting("Prefix below which results are published.", default="headrace's own store")
    ] = ""
    notify: Annotated[
        tuple[Mapping[str, Any], ...],
        Setting(
            "Targets of notifications of every job, as in a submission.",
            written=list[dict[str, Any]],
            parse=tuple,
            expected="a list of tables",
            default="none",
        ),
    ] = ()
    client_webhooks: Annotated[bool, Setting("Let submissions add webhooks of their own.")] = False
    options: Annotated[
        Mapping[str, Any],
        Setting("Options of the kind.", written=dict[str, Any], expected="a table", default="none"),
    ] = field(default_factory=lambda: MappingProxyType({}))
    priority: Annotated[
        int,
        Setting("First priority of the jobs, and their default.", least=PRIORITY_FIRST, most=PRIORITY_LAST),
    ] = PRIORITY_DEFAULT
    attempts_max: Annotated[int, Setting("Limit of attempts.", least=1, most=100)] = ATTEMPTS_MAX_DEFAULT
    time_limit_s: Annotated[float | None, Setting("Time limit of an attempt in seconds.", above=0)] = None
    time_to_live_s: Annotated[
        float | None, Setting("Seconds after which a job that has not started expires.", above=0)
    ] = None
    deadline_s: Annotated[
        float | None, Setting("Seconds after which an unfinished job expires.", above=0)
    ] = None
    payload_bytes_max: Annotated[
        int | None, Setting("Limit of a payload that is sent or uploaded, in bytes.", least=0)
    ] = None
    running_max: Annotated[
        int | None, Setting("Limit of running jobs, over all workers.", least=0, default="no limit")
    ] = None
    keep_days: Annotated[
        float | None, Setting("Days for which ended jobs are kept.", above=0, default="--keep-days")
    ] = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A version of an endpoint. Each change of the settings makes a version; numbers only grow."""

    name: str
    version: int
    settings: EndpointSettings
    created_at_ms: int
    created_by: str
    """The API key that made the version, or ``settings file``; "" without keys."""
    deleted: bool = False
    """True if this version ended the endpoint."""


def read_endpoint_settings(table: Mapping[str, Any], where: str) -> EndpointSettings:
    """Return the settings of a table of the settings file, or of a JSON document.

    Raises:
        ConfigError: A key is unknown or missing, or a value is one that no submission could have.
    """
    settings = read_settings(EndpointSettings, table, where)
    limits = SubmissionLimits()
    for name in (*_FIXED, *_TIMES, "output_uri", "options", "notify", "priority", "attempts_max"):
        value = table.get(name)
        if value in (None, ""):
            continue
        try:
            FIELDS[name](name, value, limits)
        except HeadraceError as error:
            raise ConfigError(f"{where}.{error}") from error
    output_uri = _normalized(settings.output_uri) if settings.output_uri else ""
    if settings.kind != "infer" and not output_uri:
        raise ConfigError(f"{where}: a {settings.kind} needs an output_uri")
    return replace(settings, output_uri=output_uri, options=MappingProxyType(dict(settings.options)))


def dump_endpoint_settings(settings: EndpointSettings) -> dict[str, Any]:
    """Return settings as JSON, with the secrets that they have."""
    values = {each.name: getattr(settings, each.name) for each in fields(EndpointSettings)}
    return {**values, "notify": list(map(dict, settings.notify)), "options": dict(settings.options)}


def load_endpoint_settings(values: Mapping[str, Any]) -> EndpointSettings:
    """Return the settings of a `dump_endpoint_settings`; unknown fields of later versions are left out."""
    known = {each.name for each in fields(EndpointSettings)}
    found: dict[str, Any] = {name: value for name, value in values.items() if name in known}
    found |= {"notify": tuple(found["notify"]), "options": MappingProxyType(found["options"])}
    return EndpointSettings(**found)


def endpoint_document(endpoint: Endpoint) -> dict[str, Any]:
    """Return an endpoint as JSON, without secrets."""
    settings = dump_endpoint_settings(endpoint.settings)
    settings["notify"] = [
        {name: value for name, value in entry.items() if name != "secret"} for entry in settings["notify"]
    ]
    return {
        "name": endpoint.name,
        "version": endpoint.version,
        "created_at_ms": endpoint.created_at_ms,
        "created_by": endpoint.created_by,
        "deleted": endpoint.deleted,
        "settings": settings,
    }


def apply_endpoint(endpoint: Endpoint, job: NewJob, given: Collection[str]) -> NewJob:
    """Return a submitted job with the settings of its endpoint.

    `given` are the fields that the submission has; the others get the endpoint's values.

    Raises:
        ForbiddenError: A field is not within the endpoint's settings. The message names both values.
        ConfigError: The output is a URI that nobody may name.
    """
    settings = endpoint.settings
    for name in _FIXED:
        if name in given and getattr(job, name) != getattr(settings, name):
            raise _refusal(endpoint, name, repr(getattr(settings, name)), getattr(job, name))
    values: dict[str, Any] = {name: getattr(settings, name) for name in _FIXED}
    values["output_uri"] = _output(endpoint, job, given)
    for name in ("priority", "attempts_max", *_TIMES):
        values[name] = _bounded(endpoint, job, given, name)
    return replace(
        job,
        **values,
        options=_options(endpoint, job),
        notify=_notify(endpoint, job),
        keep_s=None if settings.keep_days is None else settings.keep_days * 86_400,
        endpoint=endpoint.name,
        endpoint_version=endpoint.version,
    )


def _bounded(endpoint: Endpoint, job: NewJob, given: Collection[str], name: str) -> Any:
    """Return the submitted value of a field if it is within the endpoint's bound, else the bound."""
    bound, own = getattr(endpoint.settings, name), getattr(job, name)
    if name not in given or own is None:
        return own if bound is None else bound
    is_priority = name == "priority"
    if bound is not None and (own < bound if is_priority else own > bound):
        raise _refusal(endpoint, name, f"{'from' if is_priority else 'at most'} {bound:g}", own)
    return own


def _output(endpoint: Endpoint, job: NewJob, given: Collection[str]) -> str:
    allowed = endpoint.settings.output_uri
    if "output_uri" not in given or not job.output_uri:
        return allowed
    own = _normalized(job.output_uri)
    if not allowed or not is_below(own, allowed):
        raise _refusal(endpoint, "output_uri", f"below {allowed}" if allowed else "left out", own)
    return own


def _options(endpoint: Endpoint, job: NewJob) -> Mapping[str, Any]:
    settings = endpoint.settings
    for name, value in job.options.items():
        # A document of SageMaker names its own model, source and output.
        if name in DOCUMENT_FIELDS or settings.options.get(name, value) != value:
            allowed = repr(settings.options[name]) if name in settings.options else "left out"
            raise _refusal(endpoint, f"options.{name}", allowed, value)
    return {**settings.options, **job.options}


def _notify(endpoint: Endpoint, job: NewJob) -> tuple[Mapping[str, Any], ...]:
    settings = endpoint.settings
    if job.notify and not (settings.client_webhooks and all("webhook" in entry for entry in job.notify)):
        allowed = "webhooks" if settings.client_webhooks else "left out"
        raise ForbiddenError(f"endpoint {endpoint.name!r}: notify must be {allowed}")
    return (*settings.notify, *job.notify)


def _refusal(endpoint: Endpoint, name: str, allowed: str, value: object) -> ForbiddenError:
    return ForbiddenError(f"endpoint {endpoint.name!r}: {name} must be {allowed}, not {value!r:.80}")


def _normalized(uri: str) -> str:
    return normalize_file_path(uri) if parse(uri).scheme == "file" else normalize_uri(uri)
