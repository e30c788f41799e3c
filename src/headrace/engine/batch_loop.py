"""The work loop of `Model.predict`: batches of independent requests."""

from collections.abc import Callable, Sequence

from typing_extensions import override

from headrace.batching.adaptive import WaitCondition
from headrace.core.errors import InstanceLostError, ModelError
from headrace.engine.batch_queue import BlockingConsumer, RequestBatch
from headrace.engine.model_errors import internal_error
from headrace.engine.pending_request import DEATHS_MAX, PendingRequest, RequestResult, deliver
from headrace.engine.session import EngineSession, InstanceSlot
from headrace.engine.work_loop import WorkLoop


class BatchLoop(WorkLoop[RequestBatch]):
    """The work loop of `Model.predict`: batches of independent requests."""

    def __init__(self, session: EngineSession, slot: InstanceSlot) -> None:
        self._session = session
        self._slot = slot
        self._entries: Sequence[PendingRequest] = ()

    @override
    def take(
        self, consumer: BlockingConsumer, unavailable: Callable[[], bool]
    ) -> RequestBatch | WaitCondition | None:
        return self._session.batch_queue.take(consumer, unavailable)

    @override
    def run_batch(self, batch: RequestBatch) -> bool:
        self._entries = batch.items
        try:
            self._entries = entries = [t for t in batch.items if t.callback.start()]
            if entries:
                deliver(self._predict(entries, batch.reason))
        finally:
            self._session.batch_queue.batch_ended(batch)
        self._entries = ()
        return bool(entries)

    def _predict(
        self, entries: Sequence[PendingRequest], reason: str
    ) -> list[tuple[PendingRequest, RequestResult]]:
        session, slot = self._session, self._slot
        assert slot.instance is not None
        counters = slot.counters
        began_s = session.clock.now()
        if counters.ended_s is not None:
            counters.starved_s += max(0.0, entries[0].arrived_s - counters.ended_s)
        try:
            results = slot.instance.predict_batch(entries, session.check_wanted)
        finally:
            counters.ended_s = ended_s = session.clock.now()
            counters.busy_s += ended_s - began_s
        counters.close_reasons[reason] = counters.close_reasons.get(reason, 0) + 1
        session.queue.mark_ended([entry for entry, _ in results])
        for entry, result in results:
            counters.record_result(entry, result, began_s, ended_s)
        return results

    @override
    def instance_lost(self, error: InstanceLostError | None) -> bool:
        """Requeue the requests in flight.

        Those of the call that died are retried in calls of their own.
        """
        if error is None:
            return False
        assert self._slot.instance is not None
        died_in = self._slot.instance.died_in
        for entry in died_in:
            entry.deaths += 1
            entry.key = entry  # in a call of its own from now on, since it may have killed the instance
        entries = self._entries
        retried = [t for t in entries if not t.cancelled and t.deaths < DEATHS_MAX]
        exhausted = [t for t in entries if not t.cancelled and t.deaths >= DEATHS_MAX]
        intended = all(t.cancelled for t in died_in)
        self._fail_entries(exhausted, error)
        self._slot.alive = False
        self._session.batch_queue.requeue(retried)
        return intended

    @override
    def internal_failure(self, error: BaseException) -> None:
        """Fail the requests that have no result yet."""
        entries, self._entries = self._entries, ()
        self._fail_entries(entries, internal_error(self._session.name, error))

    def _fail_entries(self, entries: Sequence[PendingRequest], error: ModelError) -> None:
        unfinished = [entry for entry in entries if not entry.ended]
        self._session.queue.mark_ended(entries)
        now = self._session.clock.now()
        try:
            for entry in unfinished:
                self._slot.counters.record_result(entry, error, now, now)
        finally:
            deliver([(entry, error) for entry in entries])

    @override
    def instance_restarted(self) -> None:
        pass

    @override
    def instance_given_up(self) -> None:
        pass

    @override
    def close(self) -> None:
        pass
