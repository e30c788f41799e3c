"""The contract of a dispatcher: how submitters wake workers through a message broker, sooner than by polling.

A dispatcher is optional, and nothing but speed hangs on it. A message carries a queue's name and a job's id, never a
payload, and means "look into the ledger": whoever takes it claims there like everybody else. So a message that is lost,
comes twice, late or out of order harms nothing, and a broker may forget all it has: workers poll the ledger besides, and
a reconciler announces again what has waited too long.

What every implementation guarantees, and `headrace.testing.DISPATCHER_CHECKS` prove of each on a real broker:

- `announce` neither raises nor waits, whatever the broker does; what is not sent yet is bounded.
- An outage, however long, ends nothing: connections are made anew for ever, with growing waits in between. It is logged
  when it begins and when it ends, and counted.
- A message is acknowledged, and gone, as soon as it is taken, so no broker's limit on that ever meets a long job; and it
  is taken only while somebody waits, so a busy worker keeps none from an idle one.
- Waiting costs no polling beyond the broker's own long polls.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from headrace.core.service import Service

QUEUES_PER_LISTENER_MAX: Final = 64
"""More than any worker serves; each may cost a thread."""


@dataclass(frozen=True, slots=True)
class DispatcherStatistics:
    """Counts since the dispatcher was made, in jobs and messages; a snapshot."""

    announced: int = 0
    """Jobs that `announce` was told of."""
    unsent: int = 0
    """Of those: waiting to be sent now."""
    sent: int = 0
    """Messages that the broker has confirmed."""
    dropped: int = 0
    """Announcements that were given up: too many waited, the queue's name is none for this broker, or it was stopped."""
    taken: int = 0
    """Messages that listeners took."""
    redelivered: int = 0
    """Of those: which the broker says it had handed out before (where it says so)."""
    wakes: int = 0
    """Waits that messages ended."""
    outages: int = 0
    """Connections that were lost and could not be made anew at once, or could not be made at all."""
    away: int = 0
    """Connections that are in an outage now."""
    last_error: str = ""
    """What the broker, or the way to it, said last when it failed; "" when nothing has."""


class Listener(Protocol):
    """Waits for what is announced for some queues. One thread waits at a time; `wake` and `close` may be called by any."""

    def wait(self, timeout_s: float, *, jobs_max: int = 1) -> bool:
        """Block until something may be to be done, or `timeout_s` has passed; whether something may be.

        True means: look into the ledger. It may be told for nothing, such as after an outage, in which messages may have
        been lost. One wait takes about `jobs_max` messages, the number of jobs that the caller has room for, so that
        others hear of the rest; more when messages come faster than work, which are about jobs that are claimed already.
        An outage is waited for here like anything else, without an error. After `close`, one wait ends at once (as by
        `wake`), and any other lasts its time.
        """
        ...

    def wake(self) -> None:
        """End a `wait` that is under way, or the next one; it says True."""
        ...

    def close(self) -> None:
        """Let go of connections and threads, within seconds. Twice does nothing."""
        ...


class Dispatcher(Service, Protocol):
    """See the module. All is safe from any thread.

    `start` does not wait for the broker, and does not fail for its absence. `stop` closes all listeners; with `drain` it
    first tries, for some seconds, to send what was announced. It may be started again.
    """

    def announce(self, queue: str, job_ids: Sequence[str]) -> None:
        """Tell workers of that queue of jobs that were committed to the ledger. Never raises and never waits.

        When too many announcements wait, the oldest are dropped; so is all that comes before `start` and after `stop`.
        An announcement that waits already is not made twice.
        """
        ...

    def listener(self, queues: Sequence[str]) -> Listener:
        """Listen for these queues, each a name once; close it after use.

        Raises ConfigError for no queue, too many, or a name that this broker has no queue for; StoppedError when the
        dispatcher does not run.
        """
        ...

    def statistics(self) -> DispatcherStatistics:
        """How it fares."""
        ...
