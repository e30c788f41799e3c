"""The thread of an instance: it loads, runs, restarts and closes the instance."""

import logging
from collections.abc import Callable
from typing import Any

from headrace.batching.adaptive import WaitCondition
from headrace.core.errors import InstanceLostError, StoppedError
from headrace.engine.backend import Backend
from headrace.engine.backend_factory import BackendFactory
from headrace.engine.batch_loop import BatchLoop
from headrace.engine.batch_queue import BlockingConsumer
from headrace.engine.inline_caller import InlineCaller
from headrace.engine.instance import Instance
from headrace.engine.model_errors import describe_error
from headrace.engine.restart_policy import RestartPolicy
from headrace.engine.session import EngineSession, InstanceSlot
from headrace.engine.steps.step_loop import StepLoop
from headrace.engine.steps.step_queue import StepQueue
from headrace.engine.work_loop import WorkLoop

_log = logging.getLogger("headrace.engine")


class InstanceWorker:
    """The body of one instance's thread, from its start to its end."""

    def __init__(
        self,
        session: EngineSession,
        slot: InstanceSlot,
        backend_factory: BackendFactory,
        make_step_queue: Callable[[EngineSession, Backend], StepQueue],
    ) -> None:
        self._session = session
        self._slot = slot
        self._backend_factory = backend_factory
        self._make_step_queue = make_step_queue

    def run(self) -> None:
        """Load the instance, then work until the queue is closed."""
        session, slot = self._session, self._slot
        try:
            self._load()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that starts the engine
            if slot.backend is not None:
                slot.backend.close()
            session.report_loaded(error)
            return
        session.report_loaded(None)
        assert slot.backend is not None
        try:
            self._work_until_closed(slot.backend)
        except BaseException as error:  # noqa: BLE001 - after a defect, no request may wait for this thread
            self._fail_internally(error)
        finally:
            slot.alive = False
            if session.inline is not None:
                session.inline.close()
            slot.backend.close()
            with session.changed:
                session.ended_instances += 1
                is_last = session.ended_instances == len(session.slots)
            if is_last:
                # Requests that an instance requeued after the others had ended.
                session.drop(session.stopped_error("before this request began"))

    def _load(self) -> None:
        session, slot = self._session, self._slot
        slot.backend = backend = self._backend_factory.load()
        slot.instance = Instance(backend, session.name, session.clock, slot.counters)
        slot.cancel_if_unwanted = slot.instance.cancel_if_unwanted
        metadata = backend.metadata
        if metadata.is_stateful:
            session.use_step_queue(lambda: self._make_step_queue(session, backend))
        session.queue.resize(rows_max=metadata.max_batch_rows, delay_s=metadata.max_batch_delay_ms / 1000)
        if self._backend_factory.is_inline(backend):
            session.inline = InlineCaller(
                slot.instance,
                backend,
                slot.counters,
                session.clock,
                before_call=session.check_wanted,
                stopped_error=session.stopped_error,
            )
        slot.restart_policy = RestartPolicy(backend, session.name, session.clock)
        slot.alive = True

    def _work_until_closed(self, backend: Backend) -> None:
        consumer = BlockingConsumer()

        def lost() -> None:
            self._slot.alive = False
            consumer.wake()

        backend.on_lost(lost)
        work_loop = self._make_work_loop(backend)
        try:
            while (batch := work_loop.take(consumer, lambda: backend.lost)) is not None:
                if not self._run_batch(work_loop, batch):
                    if not self._restart():
                        work_loop.instance_given_up()
                        return
                    work_loop.instance_restarted()
        except BaseException as error:
            work_loop.internal_failure(error)
            raise
        finally:
            work_loop.close()

    def _make_work_loop(self, backend: Backend) -> WorkLoop[Any]:
        session, slot = self._session, self._slot
        if session.step_queue is None:
            return BatchLoop(session, slot)
        work_loop = StepLoop(
            session.step_queue,
            session.slots.index(slot),
            backend,
            slot.counters,
            session.clock,
            before_step=session.check_wanted,
            name=session.name,
        )
        slot.cancel_if_unwanted = work_loop.cancel_if_unwanted
        return work_loop

    def _run_batch(self, work_loop: WorkLoop[Any], batch: Any) -> bool:
        """Run a batch. Return False if the instance died meanwhile or before."""
        assert self._slot.restart_policy is not None
        if isinstance(batch, WaitCondition):
            work_loop.instance_lost(None)
            return False
        try:
            if work_loop.run_batch(batch):
                self._slot.restart_policy.record_success()
        except InstanceLostError as error:
            if work_loop.instance_lost(error):
                # It was killed on purpose, so it restarts without delay.
                self._slot.restart_policy.record_success()
            return False
        except BaseException as error:  # noqa: BLE001 - a defect fails the batch, not the thread
            _log.exception("a batch failed with an internal error", extra={"model": self._session.name})
            work_loop.internal_failure(error)
        return True

    # Death of the process

    def _restart(self) -> bool:
        """Restart the instance. Return False if it is given up or no longer wanted."""
        session, slot = self._session, self._slot
        assert slot.restart_policy is not None

        def is_wanted() -> bool:
            return not session.queue.dropped and (
                not session.stop_requested.is_set() or session.queue.waiting()[0] > 0
            )

        try:
            slot.restart_policy.restart(session.stop_requested, is_wanted)
        except StoppedError:
            return False
        except BaseException as error:  # noqa: BLE001 - any error gives up the instance
            self._give_up(error, f"its process died and could not be restarted: {describe_error(error)}")
            return False
        slot.counters.restarts += 1
        slot.alive = True
        return True

    def _fail_internally(self, error: BaseException) -> None:
        """Give up the instance after a defect in its thread."""
        self._give_up(
            error,
            f"its thread failed with an internal error ({type(error).__name__}): see the log of headrace",
        )
        session = self._session
        if session.step_queue is not None:
            session.step_queue.retire_instance(session.slots.index(self._slot))

    def _give_up(self, error: BaseException, reason: str) -> None:
        """Retire the instance. After the last one, the session is lost for this `reason`."""
        session = self._session
        _log.error("an instance is given up", extra={"model": session.name}, exc_info=error)
        with session.changed:
            self._slot.given_up = True
            is_last = all(s.given_up for s in session.slots)
        if is_last:
            session.lost_reason = reason
            session.drop(InstanceLostError(session.name, session.lost_reason))
