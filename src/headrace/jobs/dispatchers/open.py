"""From a URL to a dispatcher."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.jobs.dispatcher import Dispatcher
from headrace.jobs.dispatchers.brokered import BrokeredDispatcher
from headrace.jobs.dispatchers.link import Broker

REDIS_SCHEMES = {"redis": False, "valkey": False, "rediss": True, "valkeys": True}
"""Whether each goes over TLS."""
AMQP_SCHEMES = ("amqp", "amqps")
SCHEMES = (*REDIS_SCHEMES, *AMQP_SCHEMES, "sqs")

_REDIS_PORT = 6379
_AMQP_OPTIONS = frozenset({"prefix", "cafile"})


def open_dispatcher(
    url: str, *, environ: Mapping[str, str] | None = None, clock: Clock | None = None
) -> Dispatcher:
    """The dispatcher that `url` names, not started; nothing is connected to yet.

    ========================================== ===========================================================
    ``redis://[USER:PASSWORD@]HOST[:PORT][/DB]`` Redis or Valkey; ``valkey://`` is the same,
                                                 ``rediss://`` and ``valkeys://`` go over TLS
    ``amqp://USER:PASSWORD@HOST[:PORT]/VHOST``   RabbitMQ; ``amqps://`` goes over TLS
    ``sqs://[PREFIX]``                           Amazon SQS; region, credentials and endpoint from `environ`
    ========================================== ===========================================================

    Options follow a ``?``: ``prefix`` of the names of streams and queues, so that two installations can share a broker
    (SQS has it in the address); ``cafile``, whom to trust over TLS; for SQS ``region``. User names and passwords are
    percent-encoded.

    Raises ConfigError for what is no such URL, in a message that shows no password, and MissingExtraError when the
    broker's client library is not installed.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"not a dispatcher's address: {error}; write {_forms()}") from None
    options = _options(parts)
    if parts.scheme in REDIS_SCHEMES:
        return BrokeredDispatcher(_redis(parts, options), clock=clock)
    if parts.scheme in AMQP_SCHEMES:
        return BrokeredDispatcher(_rabbitmq(parts, options), clock=clock)
    if parts.scheme == "sqs":
        return BrokeredDispatcher(_sqs(parts, options, environ), clock=clock)
    raise ConfigError(f"{_shown(parts)}: no dispatcher is called {parts.scheme!r}; write {_forms()}")


def _redis(parts: SplitResult, options: dict[str, str]) -> Broker:
    from headrace.jobs.dispatchers.redis import PREFIX, RedisBroker  # noqa: PLC0415 - an extra

    tls = REDIS_SCHEMES[parts.scheme]
    _allow(parts, options, frozenset({"prefix", "cafile"} if tls else {"prefix"}))
    database = parts.path.strip("/")
    if not parts.hostname or (database and not (database.isascii() and database.isdecimal())):
        raise ConfigError(f"{_shown(parts)}: write {parts.scheme}://[USER:PASSWORD@]HOST[:PORT][/NUMBER]")
    connection: dict[str, Any] = {
        "host": parts.hostname,
        "port": parts.port or _REDIS_PORT,
        "db": int(database or 0),
        "username": unquote(parts.username) if parts.username else None,
        "password": unquote(parts.password) if parts.password else None,
        "ssl": tls,
    }
    if "cafile" in options:
        if not Path(options["cafile"]).is_file():
            raise ConfigError(
                f"{_shown(parts)}: there is no file {options['cafile']}; cafile says whom to trust"
            )
        connection["ssl_ca_certs"] = options["cafile"]
    return RedisBroker(connection, prefix=options.get("prefix", PREFIX))


def _rabbitmq(parts: SplitResult, options: dict[str, str]) -> Broker:
    from headrace.jobs.dispatchers.rabbitmq import PREFIX, RabbitBroker  # noqa: PLC0415 - an extra

    tls = parts.scheme == "amqps"
    _allow(parts, options, _AMQP_OPTIONS if tls else _AMQP_OPTIONS - {"cafile"})
    if not parts.hostname:
        raise ConfigError(f"{_shown(parts)}: write {parts.scheme}://USER:PASSWORD@HOST[:PORT]/VHOST")
    return RabbitBroker(
        parts._replace(query="").geturl(),
        cafile=options.get("cafile"),
        prefix=options.get("prefix", PREFIX),
    )


def _sqs(parts: SplitResult, options: dict[str, str], environ: Mapping[str, str] | None) -> Broker:
    from headrace.jobs.dispatchers.sqs import PREFIX, SqsBroker  # noqa: PLC0415 - an extra

    _allow(parts, options, frozenset({"region"}))
    if parts.path.strip("/") or "@" in parts.netloc or ":" in parts.netloc:
        raise ConfigError(
            f"{_shown(parts)}: write sqs://[PREFIX][?region=REGION]; the rest is the environment's"
        )
    broker = SqsBroker(prefix=parts.netloc or PREFIX, environ=environ, region=options.get("region"))
    broker.require_queue("x")
    return broker


def _options(parts: SplitResult) -> dict[str, str]:
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(pairs)
    if len(options) < len(pairs):
        raise ConfigError(f"{_shown(parts)}: an option stands there twice")
    if empty := [name for name, value in pairs if not value]:
        raise ConfigError(f"{_shown(parts)}: the option {empty[0]!r} has no value")
    return options


def _allow(parts: SplitResult, options: Mapping[str, str], known: frozenset[str]) -> None:
    if unknown := sorted(set(options) - known):
        raise ConfigError(
            f"{_shown(parts)}: no option is called {unknown[0]!r} here; known are {', '.join(sorted(known))}"
        )


def _shown(parts: SplitResult) -> str:
    """The address without what may be secret."""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _forms() -> str:
    return ", ".join(f"{scheme}://" for scheme in SCHEMES)
