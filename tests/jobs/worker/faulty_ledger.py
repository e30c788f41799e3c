"""A job ledger in memory with faults that the test controls."""

import threading
from collections import deque
from collections.abc import Callable, Sequence

from headrace.core.errors import JobLedgerUnavailableError
from headrace.jobs.job import Settlement
from headrace.jobs.ledger import NO_REPORT, ClaimRequest, Heartbeat, HeartbeatReply, SettleAndClaimReply
from headrace.jobs.worker_registry import WorkerReport
from headrace.testing import ManualWallClock, MemoryJobLedger

WAIT_S = 20.0


class Gate:
    """A gate that blocks callers until the test opens the gate."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def open(self) -> None:
        self._open.set()

    def pass_(self) -> None:
        self.reached.set()
        assert self._open.wait(WAIT_S), "the test never opened the gate"

    def wait_reached(self) -> None:
        assert self.reached.wait(WAIT_S), "nothing reached the gate"


class FaultyLedger(MemoryJobLedger):
    """A ledger with hooks before and after `settle_and_claim` and `heartbeat`.

    The hooks may raise. `log` and `heartbeats` record the calls.
    """

    def __init__(self, clock: ManualWallClock, *, beside: MemoryJobLedger | None = None) -> None:
        super().__init__(clock, beside=beside)
        self.before: Callable[[Sequence[Settlement], ClaimRequest | None], None] = lambda *_: None
        self.after: Callable[[Sequence[Settlement], SettleAndClaimReply], None] = lambda *_: None
        self.before_heartbeat: Callable[[], None] = lambda: None
        self.after_heartbeat: Callable[[HeartbeatReply], None] = lambda _reply: None
        self.log: deque[tuple[tuple[Settlement, ...], ClaimRequest | None]] = deque(maxlen=10_000)
        self.heartbeats: deque[tuple[Heartbeat, ...]] = deque(maxlen=10_000)

    def settle_and_claim(
        self, settlements: Sequence[Settlement], claim: ClaimRequest | None = None
    ) -> SettleAndClaimReply:
        self.log.append((tuple(settlements), claim))
        self.before(settlements, claim)
        answer = super().settle_and_claim(settlements, claim)
        self.after(settlements, answer)
        return answer

    def heartbeat(
        self, worker: str, heartbeats: Sequence[Heartbeat], lease_ms: int, report: WorkerReport = NO_REPORT
    ) -> HeartbeatReply:
        self.heartbeats.append(tuple(heartbeats))
        self.before_heartbeat()
        reply = super().heartbeat(worker, heartbeats, lease_ms, report)
        self.after_heartbeat(reply)
        return reply


def cut(*_: object) -> None:
    """Raise the error of a lost connection."""
    raise JobLedgerUnavailableError("the connection was cut")


class Times:
    """A hook that calls `do` the first `count` times, and then nothing.

    Only calls that `wanted` accepts count.
    """

    def __init__(self, count: int, do: Callable[..., None], wanted: Callable[..., bool] = lambda *_: True):
        self.left, self._do, self._wanted = count, do, wanted

    def __call__(self, *given: object) -> None:
        if self.left and self._wanted(*given):
            self.left -= 1
            self._do(*given)
