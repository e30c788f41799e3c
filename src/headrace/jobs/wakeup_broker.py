"""The contract of a wakeup broker: it wakes workers through a message broker, sooner than polling.

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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from headrace.core.predictor import Service

QUEUES_PER_LISTENER_MAX: Final = 64
"""More than any worker needs; each may cost a thread."""


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
