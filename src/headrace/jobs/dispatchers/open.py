"""From a URL to a dispatcher."""

from collections.abc import Mapping
from pathlib import Path

from headrace.core.address import REDIS_SCHEMES, ServerAddress, redis_connection
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.jobs.dispatcher import Dispatcher
from headrace.jobs.dispatchers.brokered import BrokeredDispatcher
from headrace.jobs.dispatchers.link import Broker

AMQP_SCHEMES = ("amqp", "amqps")
SCHEMES = (*REDIS_SCHEMES, *AMQP_SCHEMES, "sqs")

_FORMS = ", ".join(f"{scheme}://" for scheme in SCHEMES)
_AMQP_OPTIONS = {"prefix", "cafile"}


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
    address = ServerAddress(url, _FORMS)
    if address.scheme in REDIS_SCHEMES:
        return BrokeredDispatcher(_redis(address), clock=clock)
    if address.scheme in AMQP_SCHEMES:
        return BrokeredDispatcher(_rabbitmq(address), clock=clock)
    if address.scheme == "sqs":
        return BrokeredDispatcher(_sqs(address, environ), clock=clock)
    raise ConfigError(f"{address.shown}: no dispatcher is called {address.scheme!r}; write {_FORMS}")


def _redis(address: ServerAddress) -> Broker:
    connection = redis_connection(address)
    options = address.options
    if "cafile" in options and not Path(options["cafile"]).is_file():
        raise address.no_cafile()
    from headrace.jobs.dispatchers.redis import PREFIX, RedisBroker  # noqa: PLC0415 - an extra

    return RedisBroker(connection, prefix=options.get("prefix", PREFIX))


def _rabbitmq(address: ServerAddress) -> Broker:
    from headrace.jobs.dispatchers.rabbitmq import PREFIX, RabbitBroker  # noqa: PLC0415 - an extra

    tls = address.scheme == "amqps"
    address.allow(_AMQP_OPTIONS if tls else _AMQP_OPTIONS - {"cafile"})
    if not address.parts.hostname:
        raise ConfigError(f"{address.shown}: write {address.scheme}://USER:PASSWORD@HOST[:PORT]/VHOST")
    return RabbitBroker(
        address.parts._replace(query="").geturl(),
        cafile=address.options.get("cafile"),
        prefix=address.options.get("prefix", PREFIX),
    )


def _sqs(address: ServerAddress, environ: Mapping[str, str] | None) -> Broker:
    from headrace.jobs.dispatchers.sqs import PREFIX, SqsBroker  # noqa: PLC0415 - an extra

    address.allow({"region"})
    named = address.parts.netloc
    if address.parts.path.strip("/") or "@" in named or ":" in named:
        raise ConfigError(
            f"{address.shown}: write sqs://[PREFIX][?region=REGION]; the rest is the environment's"
        )
    broker = SqsBroker(prefix=named or PREFIX, environ=environ, region=address.options.get("region"))
    broker.require_queue("x")
    return broker
