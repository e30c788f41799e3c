"""The ``notify`` list of a submission, and the data of its notifications. Pure.

::

    {"webhook": "https://example.com/hook", "secret": "whsec_…", "format": "standard",
     "events": ["completed", "failed"]}    # the ledger has the secret encrypted
    {"sns": {"success_topic": "arn:…", "error_topic": "arn:…", "include_response": ["success"]}}
    {"email": ["a@example.com"]}
    {"receiver": "billing"}                    # a receiver of the server's operator, by name

``events`` are any of completed, publish_failed, failed, cancelled, expired and progress; by default
all but progress.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import orjson

from headrace.core.errors import ConfigError
from headrace.jobs import paths
from headrace.jobs.job import Job, JobProgress
from headrace.jobs.notify import (
    ENCRYPTED_PREFIX,
    EmailTarget,
    SnsTarget,
    Target,
    WebhookTarget,
    decode_secret,
)
from headrace.jobs.notify.notifiers import FORMATS, STANDARD, require_mailbox
from headrace.jobs.outbound import OutboundPolicy, parse_url
from headrace.jobs.state import JobState

ENDS: Final = tuple(state.value for state in JobState if state.ended)
PROGRESS: Final = "progress"
EVENTS: Final = (*ENDS, PROGRESS)
SUBSCRIPTIONS_MAX: Final = 8
_KINDS: Final = ("webhook", "sns", "email", "receiver")


@dataclass(frozen=True, slots=True)
class Subscription:
    """The receiver and the events of one ``notify`` entry.

    `target` is None for an operator's receiver.
    """

    receiver_id: str
    target: Target | None
    events: frozenset[str]


def read_subscriptions(
    entries: Sequence[Mapping[str, Any]], policy: OutboundPolicy | None = None, *, tenant: str = ""
) -> tuple[Subscription, ...]:
    """Read the ``notify`` list of a submission; `policy` checks the URLs of webhooks, if given.

    Without a policy the list comes from the ledger, and secrets may be encrypted. Jobs of different
    tenants share only receivers that the operator named: no tenant can cause another one's receiver to
    rest or to be disabled. Raise ConfigError with the entry's number for invalid entries, and
    RefusedAddressError for a URL that is not permitted.
    """
    if len(entries) > SUBSCRIPTIONS_MAX:
        raise ConfigError(f"notify: at most {SUBSCRIPTIONS_MAX} entries are permitted, not {len(entries)}")
    found: list[Subscription] = []
    for number, entry in enumerate(entries):
        try:
            subscription = _subscription(entry, policy)
        except ConfigError as error:
            raise ConfigError(f"notify[{number}]: {error}") from error
        found.append(_of_tenant(subscription, tenant))
    return tuple(found)


def _subscription(entry: Mapping[str, Any], policy: OutboundPolicy | None) -> Subscription:
    if "endpoint" in entry and "receiver" not in entry:  # the earlier name, for one release
        entry = {"receiver" if name == "endpoint" else name: value for name, value in entry.items()}
    kinds = [kind for kind in _KINDS if kind in entry]
    if len(kinds) != 1:
        raise ConfigError(f"must have one of {', '.join(_KINDS)}")
    kind, events = kinds[0], _events(entry)
    read = {"webhook": _webhook, "sns": _sns, "email": _email}.get(kind)
    allowed = {"events", kind} | ({"secret", "format"} if kind == "webhook" else set[str]())
    unknown = sorted(entry.keys() - allowed)
    if unknown:
        raise ConfigError(f"unknown member {unknown[0]!r} beside {kind!r}")
    if read is None:
        return Subscription(_text(entry, "receiver"), None, events)
    if policy is not None and kind == "webhook":
        parse_url(_text(entry, "webhook"), policy)
        # Not for jobs that are in the ledger already: they become visible dead letters.
        if entry.get("format", STANDARD) == STANDARD and not entry.get("secret"):
            raise ConfigError("a standard webhook needs a secret (whsec_…); give one, or another format")
        if str(entry.get("secret")).startswith(ENCRYPTED_PREFIX):
            raise ConfigError("secret must be a string that begins with whsec_")
    target = read(entry)
    return Subscription(target.receiver_id, target, events)


def _of_tenant(subscription: Subscription, tenant: str) -> Subscription:
    """Return the subscription with a receiver for this tenant alone, unless the operator named it."""
    target = subscription.target
    if target is None or not tenant:
        return subscription
    kind, _, rest = target.receiver_id.partition("-")
    digest = hashlib.sha256(f"{tenant}\0{rest}".encode()).hexdigest()
    target = replace(target, receiver_id=f"{kind}-{digest[:32]}")
    return replace(subscription, receiver_id=target.receiver_id, target=target)


def _events(entry: Mapping[str, Any]) -> frozenset[str]:
    value = entry.get("events")
    if value is None:
        return frozenset(ENDS)
    if not isinstance(value, list | tuple) or not value:
        raise ConfigError(f"events must be a list of some of {', '.join(EVENTS)}")
    events = cast("Sequence[Any]", value)
    unknown = [event for event in events if event not in EVENTS]
    if unknown:
        raise ConfigError(f"unknown event {unknown[0]!r} (known: {', '.join(EVENTS)})")
    return frozenset(events)


def _id_of(entry: Mapping[str, Any], kind: str) -> str:
    """Return an id that is equal for equal targets and secrets, so that jobs share the target's health.

    Check the entry first: an invalid one can have values that orjson refuses.
    """
    identity = {key: value for key, value in entry.items() if key != "events"}
    digest = hashlib.sha256(orjson.dumps(identity, option=orjson.OPT_SORT_KEYS)).hexdigest()
    return f"{kind}-{digest[:32]}"


def _webhook(entry: Mapping[str, Any]) -> WebhookTarget:
    form = entry.get("format", STANDARD)
    if not isinstance(form, str) or form not in FORMATS:
        raise ConfigError(f"format must be one of {', '.join(sorted(FORMATS))}, not {form!r}")
    secret = entry.get("secret")
    if secret is not None:
        if not isinstance(secret, str):
            raise ConfigError("secret must be a string that begins with whsec_")
        if not secret.startswith(ENCRYPTED_PREFIX):
            decode_secret(secret)
    url = _text(entry, "webhook")
    return WebhookTarget(_id_of(entry, "webhook"), url, (secret,) if secret else (), form)


def _sns(entry: Mapping[str, Any]) -> SnsTarget:
    value = entry["sns"]
    if not isinstance(value, Mapping):
        raise ConfigError("sns must be an object with success_topic, error_topic or both")
    topics = cast("Mapping[str, Any]", value)
    unknown = sorted(topics.keys() - {"success_topic", "error_topic", "include_response"})
    if unknown:
        raise ConfigError(f"unknown member {unknown[0]!r} in sns")
    success, error = topics.get("success_topic", ""), topics.get("error_topic", "")
    if not (isinstance(success, str) and isinstance(error, str)) or not (success or error):
        raise ConfigError("sns needs a success_topic or an error_topic, by its ARN")
    include: Any = topics.get("include_response", [])
    if not isinstance(include, list) or any(
        each not in ("success", "error") for each in cast("list[Any]", include)
    ):
        raise ConfigError("include_response must be a list of success, error or both")
    return SnsTarget(_id_of(entry, "sns"), success, error, frozenset(cast("list[str]", include)))


def _email(entry: Mapping[str, Any]) -> EmailTarget:
    value = entry["email"]
    addresses = cast("list[Any]", value) if isinstance(value, list) else [value]
    if not addresses or not all(isinstance(each, str) for each in addresses):
        raise ConfigError("email must be an address, or a list of them")
    return EmailTarget(_id_of(entry, "email"), tuple(map(require_mailbox, addresses)))


def _text(entry: Mapping[str, Any], key: str) -> str:
    value = entry[key]
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{key} must be a string")
    return value


def wants_progress(entries: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if any entry subscribes to progress."""
    return any(PROGRESS in (entry.get("events") or ()) for entry in entries)


def end_event_data(job: Job, failure_uri: str = "") -> dict[str, Any]:
    """Return the event data of an ended job; `failure_uri` is the object that explains its failure."""
    data = _job_data(job)
    if job.state is JobState.COMPLETED and job.result is not None:
        data["output_uri"] = job.result.published_uri or (job.result.uri if job.spec.output_uri else "")
        data["output_content_type"] = job.result.content_type
        data["output_bytes"] = job.result.size_bytes
    else:
        data["failure_uri"] = failure_uri
        data["reason"] = job.failure.message if job.failure else f"the job was {job.state.value}"
        data["cause"] = job.failure.cause.value if job.failure else job.state.value
    return {key: value for key, value in data.items() if value not in ("", None)}


def progress_event_data(job: Job, progress: JobProgress) -> dict[str, Any]:
    """Return the event data of a running job."""
    data = {
        **_job_data(job),
        "done": progress.done,
        "total": progress.total,
        "unit": progress.unit,
        "note": progress.note,
    }
    return {key: value for key, value in data.items() if value not in ("", None)}


def _job_data(job: Job) -> dict[str, Any]:
    spec = job.spec
    return {
        "state": job.state.value,
        "queue": spec.queue,
        "kind": spec.kind,
        "model": spec.model,
        "attempt": job.attempt,
        "correlation_id": spec.correlation_id,
        "tags": dict(spec.tags) or None,
        "input_uri": "" if spec.owned_input else paths.without_query(spec.input_uri),
        "content_type": spec.content_type,
        "inference_id": spec.key,
        "submitted_at_ms": job.created_at_ms,
    }
