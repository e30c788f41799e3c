"""The controller of a pool: it observes, decides, and has an actuator start and end workers.

Any number of controllers may run for a pool; the one with the lease in the ledger acts, and the others
stand by. A controller that dies is replaced when its lease ends. The workers are in the registry, so
that the next controller finds them.
"""

import logging
import threading
from contextlib import suppress
from dataclasses import replace
from typing import Final

from typing_extensions import override

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import ActuatorError, ConfigError, HeadraceError, ResourceNotFoundError
from headrace.core.predictor import Service
from headrace.jobs.ledger import DAY_MS, JobLedger, Wakeup
from headrace.jobs.pools import ScalingDecision
from headrace.jobs.worker import new_worker_name
from headrace.jobs.worker_registry import WorkerRecord, WorkerState
from headrace.scaling.actuator import Actuator, Members
from headrace.scaling.changes import Changes, plan_changes
from headrace.scaling.observation import JobRates, living_workers, observe
from headrace.scaling.policy import Decision, Observation, ScalingMemory, decide
from headrace.scaling.settings import PoolSettings

LEASE_S: Final = 10.0
"""The time without a sign of a controller after which another one may take its place.

That for which a call of its actuator may last is added.
"""
_RENEW_S: Final = LEASE_S / 3
_RETRY_S: Final = 1.0
GAP_S: Final = 0.2
"""Least seconds between two rounds. Many jobs may arrive at once."""
_SHARE: Final = 0.1
"""The largest share of time in which a controller makes rounds."""
_STOP_S: Final = 30.0
_log = logging.getLogger("headrace.scaling")


class ScalingController(Service):
    """The controller of one pool, as a service. Use it once.

    `start` starts the actuator and a thread that makes the rounds. `stop` ends the thread, gives the
    lease back and stops the actuator. An outage of the ledger changes no worker.

    Args:
        ledger: The ledger of the jobs. The owner starts it before and stops it after.
        actuator: The actuator of the pool's workers.
        pool: The pool.
        clock: The clock of the gap between rounds. Decisions follow the ledger's time.

    Raises:
        ConfigError: The pool has cooldowns, and something else starts and ends its workers.
    """

    def __init__(
        self,
        ledger: JobLedger,
        actuator: Actuator,
        pool: PoolSettings,
        *,
        clock: Clock | None = None,
    ) -> None:
        if actuator.scaled_by_others and (pool.scale_out_cooldown_s or pool.scale_in_cooldown_s):
            # A cooldown keeps the number of workers, and it changes later than the decision here.
            raise ConfigError(
                f"pool {pool.pool}: cooldowns need a pool that this controller scales: use "
                "scale_out_window_s and scale_in_window_s instead"
            )
        self.pool = pool
        self._ledger = ledger
        self._actuator = actuator
        self._clock = clock or SystemClock()
        self._name = new_worker_name()
        self._rates = JobRates(pool.queues)
        self._memory: ScalingMemory | None = None
        """None while another controller holds the lease."""
        self._renew_s = 0.0
        """The time at which the lease is to be extended."""
        self._recorded: tuple[int, str, int] | None = None
        """The wanted number, the error and the day of the last decision in the log."""
        self._stopping = threading.Event()
        self._life = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wakeup: Wakeup | None = None

    @override
    def start(self) -> None:
        """Start. Raise what the start of the actuator raises."""
        with self._life:
            if self._thread is not None or self._stopping.is_set():
                return
            self._actuator.start()
            try:
                self._wakeup = self._ledger.wakeup(self.pool.queues)
            except BaseException:
                self._actuator.stop(drain=False)
                raise
            self._thread = threading.Thread(
                target=self._run, args=(self._wakeup,), name="headrace-scaling", daemon=True
            )
            self._thread.start()

    @override
    def stop(self, *, drain: bool = True) -> None:
        """Stop. What happens to the workers is up to the actuator, which gets `drain`."""
        self._stopping.set()
        with self._life:
            if self._wakeup is not None:
                self._wakeup.wake()
            if self._thread is not None:
                self._thread.join(_STOP_S)
                self._release()
        self._actuator.stop(drain=drain)

    def _run(self, wakeup: Wakeup) -> None:
        due_s, woken = self._clock.now(), False
        try:
            while not self._stopping.is_set():
                began_s = self._clock.now()
                try:
                    if woken or self._memory is None or began_s >= due_s:
                        due_s = began_s + self.pool.interval_s
                        self.decide_once()
                    else:
                        self._hold_lease()
                except HeadraceError as error:
                    _log.warning("pool %s: %s", self.pool.pool, error)
                except Exception:  # noqa: BLE001 - the next round may succeed
                    _log.exception("pool %s: the round failed", self.pool.pool)
                took_s = self._clock.now() - began_s
                if self._clock.sleep(max(GAP_S, min(took_s / _SHARE, _RENEW_S)), self._stopping):
                    return
                woken = wakeup.wait(max(0.0, self._wait_s(due_s)))
        finally:
            wakeup.close()

    def _wait_s(self, due_s: float) -> float:
        """Return the seconds until the next decision or extension of the lease."""
        now_s = self._clock.now()
        if self._memory is None:
            return _RENEW_S
        # After an outage, the extension is overdue.
        return min(due_s, max(self._renew_s, now_s + _RETRY_S)) - now_s

    def _release(self) -> None:
        try:
            self._ledger.release_pool(self.pool.pool, self._name)
        except HeadraceError as error:
            _log.warning("pool %s: the lease could not be given back: %s", self.pool.pool, error)

    def decide_once(self) -> bool:
        """Make one round: observe, decide, act and record. Return False if another controller acts.

        Raises:
            JobLedgerUnavailableError: The ledger does not respond; no worker was changed after that.
            ActuatorError: The actuator cannot count the workers.
        """
        if not self._hold_lease():
            return False
        living = living_workers(self._ledger.workers(), self.pool.queues)
        members = self._actuator.members(living)
        observed = self._observe(living, members)
        before = self._memory or ScalingMemory.resume(observed)
        decision = decide(self.pool, observed, before)
        leaving = self._leaving(members)
        error = self._act(decision.wanted + leaving, members)
        self._memory = decision.memory
        if error:
            # No cooldown for a change that was not made.
            self._memory = replace(
                decision.memory, added_at_ms=before.added_at_ms, removed_at_ms=before.removed_at_ms
            )
        self._record(observed, decision, leaving, error)
        return True

    def _hold_lease(self) -> bool:
        """Extend or take the lease. Return False while another controller holds it."""
        now_s = self._clock.now()
        if self._memory is not None and now_s < self._renew_s:
            return True
        pool = self.pool.pool
        lease_ms = round((LEASE_S + self._actuator.call_s_max) * 1000)
        if not self._ledger.control_pool(pool, self._name, lease_ms):
            if self._memory is not None:
                _log.warning("pool %s: another controller took the lease", pool)
            self._memory = None
            return False
        self._renew_s = now_s + _RENEW_S
        if self._memory is None:
            _log.info("this process controls the pool %s", pool, extra={"controller": self._name})
            last = next((each.decision for each in self._ledger.pools() if each.name == pool), None)
            self._recorded = None if last is None else (last.wanted, "", last.at_ms // DAY_MS)
        return True

    def _observe(self, living: list[WorkerRecord], members: Members) -> Observation:
        ledger = self._ledger
        at_ms = ledger.now_ms()
        if self._rates.is_due(at_ms):
            self._rates.add(at_ms, ledger.counters())
        return observe(
            at_ms,
            [(ledger.queue(name), ledger.counts(name)) for name in dict.fromkeys(self.pool.queues)],
            living,
            members,
            self._rates,
            slots=self.pool.slots,
            drains=self._actuator.ends_chosen,
        )

    def _leaving(self, members: Members) -> int:
        """Return the workers that an operator drains: they stay until their jobs have ended.

        Only an actuator that cannot choose has to count them: it could end others in their place.
        """
        if self._actuator.ends_chosen:
            return 0
        return sum(record.state is WorkerState.DRAINING for record in members.registered)

    def _act(self, wanted: int, members: Members) -> str:
        """Bring the pool closer to the wanted number. Return the error of the actuator, or ""."""
        if self._actuator.ends_chosen:
            changes = plan_changes(wanted, members, drained_by=self._signature)
        else:
            changes = Changes(workers=wanted)
        for record in changes.undrain:
            self._set_draining(record.info.name, draining=False)
        for record in changes.drain:
            self._set_draining(record.info.name, draining=True)
        try:
            self._actuator.scale(changes.workers, changes.ended)
        except ActuatorError as error:
            return str(error)
        return ""

    @property
    def _signature(self) -> str:
        """The name that the registry shows for drains by any controller of the pool."""
        return f"pool {self.pool.pool}"

    def _set_draining(self, name: str, *, draining: bool) -> None:
        # A worker may have left the registry since it was read.
        with suppress(ResourceNotFoundError):
            self._ledger.set_worker_draining(name, draining=draining, by=self._signature)

    def _record(self, observed: Observation, decision: Decision, leaving: int, error: str) -> None:
        """Record the decision, unless it is the last one again. Each day has at least one."""
        workers, wanted, reason = observed.current + leaving, decision.wanted + leaving, decision.reason
        if leaving:
            reason += "; 1 more worker drains" if leaving == 1 else f"; {leaving} more workers drain"
        if error:
            reason = f"{reason}; not done: {error}"
            if self._actuator.scaled_by_others:
                # Others would end workers that the actuator has not prepared.
                wanted = max(wanted, observed.current + observed.draining)
        key = (wanted, error, observed.at_ms // DAY_MS)
        if self._recorded == key:
            return
        _log.log(
            logging.WARNING if error else logging.INFO,
            "pool %s: %d workers, %d wanted: %s",
            self.pool.pool,
            workers,
            wanted,
            reason,
        )
        recorded = self._ledger.record_decision(
            ScalingDecision(
                self.pool.pool,
                self._name,
                workers,
                wanted,
                reason,
                observed.document(),
            )
        )
        if recorded:
            self._recorded = key
