"""Wakeup brokers wake workers through a message broker, sooner than polling: their contract.

`open_wakeup_broker` opens the one at a URL, over one adapter module per client library.

A wakeup broker is optional and affects only latency. A message holds a queue's name and a job's id,
never a payload. A worker that receives a message claims jobs from the ledger as usual. Lost,
repeated, late and unordered messages are therefore harmless, and the message broker needs no
persistence. Workers also poll the ledger, and a reconciler announces jobs again that waited too
long.

Every implementation guarantees the following; `headrace.testing.WAKEUP_BROKER_CHECKS` verify them
against a real broker:

- `announce` neither raises nor waits, whatever the broker does. The number of unsent messages is
  bounded.
- No outage ends the service. Lost connections are reopened forever, with growing delays. The start
  and the end of an outage are logged and counted.
- A message is acknowledged as soon as it is received, so that no broker limit on unacknowledged
  messages applies to long jobs. Messages are received only while a listener waits, so that a busy
  worker withholds none from an idle one.
- A waiting listener causes no polling beyond the broker's own long polls.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from headrace.core.address import REDIS_SCHEMES, ServerAddress, redis_options
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError
from headrace.core.predictor import Service

if TYPE_CHECKING:
    from headrace.jobs.brokers.session import MessageBroker

QUEUES_PER_LISTENER_MAX: Final = 64
"""More than any worker needs; each may cost a thread."""

AMQP_SCHEMES = ("amqp", "amqps")
SCHEMES = (*REDIS_SCHEMES, *AMQP_SCHEMES, "sqs")

_FORMS = ", ".join(f"{scheme}://" for scheme in SCHEMES)
_AMQP_OPTIONS = {"prefix", "cafile"}


@dataclass(frozen=True, slots=True)
class WakeupBrokerStatistics:
    """Cumulative counters of a wakeup broker, in jobs and messages."""

    announced: int = 0
    """Jobs passed to `announce`."""
    unsent: int = 0
    """Announced jobs that wait to be sent now."""
    sent: int = 0
    """Messages that the broker has confirmed."""
    dropped: int = 0
    """Dropped announcements: too many waited, the queue's name is invalid for this broker, or it
    was stopped.
    """
    taken: int = 0
    """Messages received by listeners."""
    redelivered: int = 0
    """Received messages that the broker had delivered before, if it reports that."""
    wakes: int = 0
    """Waits that messages ended."""
    outages: int = 0
    """Connections that were lost, or not established, and could not be opened at once."""
    away: int = 0
    """Connections with an outage now."""
    last_error: str = ""
    """The last error of the broker or the connection; "" if none."""


class WakeupListener(Protocol):
    """A waiter for announcements of some queues.

    One thread waits at a time; any may call `wake` and `close`.
    """

    def wait(self, timeout_s: float, *, jobs_max: int = 1) -> bool:
        """Block until jobs are possible or `timeout_s` has passed.

        Return True if the ledger should be read.

        True may be spurious, for example after an outage, when messages may have been lost. One
        wait receives about `jobs_max` messages, the number of free slots, so that other workers
        receive the rest. It receives more if messages arrive faster than work, because those
        messages are about jobs that are claimed already. An outage does not raise an error here.
        After `close`, one wait ends at once (like after `wake`) and further waits last their full
        time.
        """
        ...

    def wake(self) -> None:
        """End the current `wait`, or the next one, with True."""
        ...

    def close(self) -> None:
        """Release connections and threads within seconds. A second call does nothing."""
        ...


class WakeupBroker(Service, Protocol):
    """A service that announces queued jobs to listening workers. All methods are thread-safe.

    `start` does not wait for the message broker and does not fail without it. `stop` closes all
    listeners. With `drain` it first tries for some seconds to send waiting announcements. The
    service can be started again.
    """

    def announce(self, queue: str, job_ids: Sequence[str]) -> None:
        """Announce jobs of a queue that are committed to the ledger. Never raise and never wait.

        If too many announcements wait, the oldest are dropped. Announcements before `start` and
        after `stop` are dropped. A job that already waits to be announced is not added twice.
        """
        ...

    def listener(self, queues: Sequence[str]) -> WakeupListener:
        """Return a listener for these queues, each named once. Close the listener after use.

        Raise ConfigError for no queues, too many queues, or a name that this broker cannot have;
        StoppedError if the service is not running.
        """
        ...

    def statistics(self) -> WakeupBrokerStatistics:
        """Return a snapshot of the counters."""
        ...


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
        broker = _redis(address)
    elif address.scheme in AMQP_SCHEMES:
        broker = _rabbitmq(address)
    elif address.scheme == "sqs":
        broker = _sqs(address, environ)
    else:
        raise ConfigError(f"{address.redacted}: unknown wakeup broker {address.scheme!r}; write {_FORMS}")
    from headrace.jobs.brokers.message_wakeup_broker import (  # noqa: PLC0415 - it implements the contract
        MessageWakeupBroker,
    )

    return MessageWakeupBroker(broker, clock=clock)


def _redis(address: ServerAddress) -> "MessageBroker":
    connection = redis_options(address)
    options = address.options
    if "cafile" in options and not Path(options["cafile"]).is_file():
        raise address.missing_cafile_error()
    from headrace.jobs.brokers.redis import PREFIX, RedisBroker  # noqa: PLC0415 - an extra

    return RedisBroker(connection, prefix=options.get("prefix", PREFIX))


def _rabbitmq(address: ServerAddress) -> "MessageBroker":
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


def _sqs(address: ServerAddress, environ: Mapping[str, str] | None) -> "MessageBroker":
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
