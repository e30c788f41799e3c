"""Wakeup brokers over message brokers: one adapter module per client library.

`open_wakeup_broker` opens the one at a URL.
"""

from collections.abc import Mapping
from pathlib import Path

from headrace.core.address import REDIS_SCHEMES, ServerAddress, redis_options
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.jobs.brokers.message_wakeup_broker import MessageWakeupBroker
from headrace.jobs.brokers.session import MessageBroker
from headrace.jobs.wakeup_broker import WakeupBroker

AMQP_SCHEMES = ("amqp", "amqps")
SCHEMES = (*REDIS_SCHEMES, *AMQP_SCHEMES, "sqs")

_FORMS = ", ".join(f"{scheme}://" for scheme in SCHEMES)
_AMQP_OPTIONS = {"prefix", "cafile"}


def open_wakeup_broker(
    url: str, *, environ: Mapping[str, str] | None = None, clock: Clock | None = None
) -> WakeupBroker:
    """Return the wakeup broker at `url`, not started and not connected.

    ============================================ ==============================================
    ``redis://[USER:PASSWORD@]HOST[:PORT][/DB]`` Redis or Valkey; ``valkey://`` is the same,
                                                 ``rediss://`` and ``valkeys://`` use TLS
    ``amqp://USER:PASSWORD@HOST[:PORT]/VHOST``   RabbitMQ; ``amqps://`` uses TLS
    ``sqs://[PREFIX]``                           Amazon SQS; region, credentials and endpoint
                                                 from `environ`
    ============================================ ==============================================

    Options follow a ``?``: ``prefix`` of the names of streams and queues, so that two installations
    can share a broker (SQS has it in the address); ``cafile``, the trusted authority for TLS; for
    SQS ``region``. User names and passwords are percent-encoded.

    Raises ConfigError for an invalid URL, in a message without the password, and MissingExtraError
    if the broker's client library is not installed.
    """
    address = ServerAddress(url, _FORMS)
    if address.scheme in REDIS_SCHEMES:
        return MessageWakeupBroker(_redis(address), clock=clock)
    if address.scheme in AMQP_SCHEMES:
        return MessageWakeupBroker(_rabbitmq(address), clock=clock)
    if address.scheme == "sqs":
        return MessageWakeupBroker(_sqs(address, environ), clock=clock)
    raise ConfigError(f"{address.redacted}: unknown wakeup broker {address.scheme!r}; write {_FORMS}")


def _redis(address: ServerAddress) -> MessageBroker:
    connection = redis_options(address)
    options = address.options
    if "cafile" in options and not Path(options["cafile"]).is_file():
        raise address.missing_cafile_error()
    from headrace.jobs.brokers.redis import PREFIX, RedisBroker  # noqa: PLC0415 - an extra

    return RedisBroker(connection, prefix=options.get("prefix", PREFIX))


def _rabbitmq(address: ServerAddress) -> MessageBroker:
    from headrace.jobs.brokers.rabbitmq import PREFIX, RabbitBroker  # noqa: PLC0415 - an extra

    tls = address.scheme == "amqps"
    address.require_known_options(_AMQP_OPTIONS if tls else _AMQP_OPTIONS - {"cafile"})
    if not address.parts.hostname:
        raise ConfigError(f"{address.redacted}: write {address.scheme}://USER:PASSWORD@HOST[:PORT]/VHOST")
    return RabbitBroker(
        address.parts._replace(query="").geturl(),
        cafile=address.options.get("cafile"),
        prefix=address.options.get("prefix", PREFIX),
    )


def _sqs(address: ServerAddress, environ: Mapping[str, str] | None) -> MessageBroker:
    from headrace.jobs.brokers.sqs import PREFIX, SqsBroker  # noqa: PLC0415 - an extra

    address.require_known_options({"region"})
    named = address.parts.netloc
    if address.parts.path.strip("/") or "@" in named or ":" in named:
        raise ConfigError(
            f"{address.redacted}: write sqs://[PREFIX][?region=REGION]; the environment gives the rest"
        )
    broker = SqsBroker(prefix=named or PREFIX, environ=environ, region=address.options.get("region"))
    broker.require_queue("x")
    return broker
