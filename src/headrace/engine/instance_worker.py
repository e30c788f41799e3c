"""The thread of an instance: it loads, runs, restarts and closes the instance."""

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from headrace.batching.adaptive import WaitCondition
from headrace.core.clock import Clock, RetryPolicy
from headrace.core.errors import ConfigError, InstanceLostError, StoppedError
from headrace.engine.backend import Backend
from headrace.engine.backend_factory import BackendFactory
from headrace.engine.batch_caller import BatchCaller
from headrace.engine.batch_loop import BatchLoop, Committer, RequestCommitter
from headrace.engine.broken_model import BrokenModelCheck
from headrace.engine.inline_caller import InlineCaller
from headrace.engine.instance_slot import InstanceSlot
from headrace.engine.local_backend import LocalBackend
from headrace.engine.model_methods import describe_error
from headrace.engine.request_queue import BlockingConsumer
from headrace.engine.resizing import wait_for_streams
from headrace.engine.sequences.instance_steps import InstanceSteps
from headrace.engine.sequences.sequence_schedule import SequenceSchedule
from headrace.engine.sequences.step_committer import StepCommitter
from headrace.engine.session import EngineSession

_log = logging.getLogger("headrace.engine")
STARTS_MAX: Final = 5
"""Number of failed starts in a row after which an instance is given up."""
BACKOFF: Final = RetryPolicy(retry_s=float("inf"), first_delay_s=0.1, delay_max_s=10.0)


class RestartPolicy:
    """The restarts of one lost instance, with increasing delays, until it is given up.

    The first death is followed by a restart at once. Deaths and failed starts in a row, without a
    successful call in between, wait ever longer, so that a broken model does not keep the machine
    busy. `start` starts the instance again, in one attempt. All of it runs in the instance's thread.
    """

    def __init__(self, start: Callable[[], None], model: str, clock: Clock) -> None:
        self._start = start
        self._model = model
        self._clock = clock
        self.deaths = 0
        """Number of deaths in a row. Set it to 0 after a successful call, which resets the delays."""

    def restart(self, wake: threading.Event, is_wanted: Callable[[], bool]) -> None:
        """Restart the instance. Raises the last start's error after STARTS_MAX failures.

        Raises StoppedError once `is_wanted` returns False. `wake` ends a wait, so that `is_wanted`
        is called again.
        """
        self.deaths += 1
        _log.warning("an instance died and is restarted", extra={"model": self._model, "deaths": self.deaths})
        failed_starts = 0
        while True:
            self._wait(self.deaths + failed_starts - 1, wake)
            if not is_wanted():
                raise StoppedError(f"model {self._model} is stopping, and no request waits for the instance")
            try:
                self._start()
            except Exception as error:
                failed_starts += 1
                if failed_starts == STARTS_MAX:
                    raise
                _log.warning(
                    "an instance could not be restarted: %s",
                    describe_error(error),
                    extra={"model": self._model},
                )
            else:
                return

    def _wait(self, failures: int, wake: threading.Event) -> None:
        """Wait for the delay after this number of deaths and failed starts in a row."""
        if not failures:
            return
        delay_s = BACKOFF.delay_s(failures, float("inf"), 1.0)
        assert delay_s is not None
        self._clock.sleep(delay_s, wake)


class InstanceWorker:
    """The body of one instance's thread, from its start to its end."""

    def __init__(
        self,
        session: EngineSession,
        slot: InstanceSlot,
        backend_factory: BackendFactory,
        make_sequences: Callable[[EngineSession, Backend], SequenceSchedule],
    ) -> None:
        self._session = session
        self._slot = slot
        self._backend_factory = backend_factory
        self._make_sequences = make_sequences
        self._restarts = RestartPolicy(self._start_again, session.name, session.clock)
        self._broken_model_check = BrokenModelCheck() if session.finds_broken_model else None

    def run(self) -> None:
        """Load the instance, then work until the queue is closed."""
        session, slot = self._session, self._slot
        try:
            self._load()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that starts the engine
            if slot.backend is not None:
                slot.backend.close()
            session.report_loaded(slot, error)
            return
        session.report_loaded(slot)
        assert slot.backend is not None
        try:
            while self._work(slot.backend):
                pass
        except BaseException as error:  # noqa: BLE001 - after a defect, no request may wait for this thread
            self._fail_internally(error)
        finally:
            slot.alive = False
            self._close_inline()
            wait_for_streams(session, slot)
            slot.backend.close()
            session.report_ended(slot)

    def _load(self) -> None:
        session, slot = self._session, self._slot
        slot.backend = backend = self._backend_factory.load()
        metadata = backend.metadata
        if metadata.is_stateful:
            session.use_sequences(lambda: self._make_sequences(session, backend))
        session.queue.add_instance(slot.number)
        session.queue.resize(rows_max=metadata.max_batch_rows, delay_s=metadata.max_batch_delay_ms / 1000)
        if self._backend_factory.is_inline(backend):
            session.inline = InlineCaller(
                self._make_caller(backend),
                self._make_request_committer(backend),
                backend,
                slot.counters,
                session.clock,
            )
        slot.alive = True

    def _make_caller(self, backend: Backend) -> BatchCaller:
        session, slot = self._session, self._slot
        caller = BatchCaller(
            backend,
            session.name,
            session.clock,
            slot.counters,
            end_error=session.queue.end_error,
            traceback_log=session.traceback_log,
            broken_model_check=self._broken_model_check,
        )
        slot.cancel_if_unwanted = caller.cancel_if_unwanted
        return caller

    def _make_request_committer(self, backend: Backend) -> RequestCommitter:
        session = self._session
        return RequestCommitter(
            session.queue,
            session.requests,
            backend,
            self._slot.counters,
            session.clock,
            unopened=self._slot.unopened,
            respond=session.use_response_builder(backend),
        )

    def _work(self, backend: Backend) -> bool:
        """Work until the queue is closed. Return True if a restart replaced the backend instead."""
        consumer = BlockingConsumer()
        backend.on_lost(partial(self._report_lost, backend, consumer))
        committer = self._make_committer(backend)
        session, slot = self._session, self._slot
        loop = BatchLoop(
            session.queue,
            self._make_caller(backend),
            committer,
            slot.counters,
            session.clock,
            backend=backend,
            instance=slot.number,
        )
        try:
            while (taken := loop.take(consumer)) is not None:
                if isinstance(taken, WaitCondition):
                    is_alive = self._is_alive_after(loop, None)
                else:
                    try:
                        if loop.run_batch(taken):
                            self._restarts.deaths = 0
                        is_alive = True
                    except BaseException as error:  # noqa: BLE001 - a defect fails the batch, not the thread
                        is_alive = self._is_alive_after(loop, error)
                if is_alive:
                    continue
                if not self._restart():
                    committer.instance_given_up()
                    return False
                committer.instance_restarted()
                if slot.backend is not backend:
                    return True
        except BaseException as error:
            loop.internal_failure(error)
            raise
        finally:
            loop.close()
        return False

    def _report_lost(self, backend: Backend, consumer: BlockingConsumer) -> None:
        """Stop taking batches for a backend that was lost. Any thread."""
        # Another thread may be late to report the loss of a backend that was replaced meanwhile.
        if self._slot.backend is backend:
            self._slot.alive = False
        consumer.wake()

    def _make_committer(self, backend: Backend) -> Committer:
        session, slot = self._session, self._slot
        if session.sequences is None:
            return self._make_request_committer(backend)
        return StepCommitter(
            session.queue,
            session.sequences,
            backend,
            slot.counters,
            session.clock,
            instance=slot.number,
        )

    def _is_alive_after(self, loop: BatchLoop, error: BaseException | None) -> bool:
        """Handle the error of a batch, or the loss of the instance without a call.

        Return False if the instance has died.
        """
        if error is not None and not isinstance(error, InstanceLostError):
            _log.error(
                "a batch failed with an internal error", extra={"model": self._session.name}, exc_info=error
            )
            loop.internal_failure(error)
            return True
        self._slot.alive = False
        if loop.instance_lost(error):
            # It was killed on purpose, so it restarts without delay.
            self._restarts.deaths = 0
        elif (death := self._death(error)) is not None:
            self._session.record_death(death)
        return False

    def _death(self, error: InstanceLostError | None) -> InstanceLostError | None:
        """Return the explanation of a death: that of the call, or of the backend without a call."""
        backend = self._slot.backend
        return error if error is not None or backend is None else backend.loss

    # Loss of the instance

    def _restart(self) -> bool:
        """Restart the instance. Return False if it is given up or no longer wanted."""
        session, slot = self._session, self._slot

        def is_wanted() -> bool:
            queue = session.queue
            # The others do the work of a removed instance.
            if queue.dropped or queue.end_drain(slot.number):
                return False
            return not session.stop_requested.is_set() or queue.waiting()[0] > 0 or queue.held_requests > 0

        self._close_inline()
        session.inline = None
        if not self._can_be_replaced():
            return False
        try:
            self._restarts.restart(slot.restart_now, is_wanted)
        except StoppedError:
            return False
        except BaseException as error:  # noqa: BLE001 - any error gives up the instance
            self._give_up(error, f"its process died and could not be restarted: {describe_error(error)}")
            return False
        slot.counters.restarts += 1
        slot.alive = True
        return True

    def _close_inline(self) -> None:
        """End the inline calls of this instance, if it is called inline."""
        inline = self._session.inline
        if inline is not None and inline.backend is self._slot.backend:
            inline.close()

    def _can_be_replaced(self) -> bool:
        """Return False, and give up the instance, if it is in a thread and no process can load it."""
        backend = self._slot.backend
        if not isinstance(backend, LocalBackend) or backend.lost_reason is None:
            return True
        try:
            self._backend_factory.check_replaceable(backend)
        except ConfigError as error:
            self._give_up(error, f"{backend.lost_reason}. It gets none: {error}")
            return False
        return True

    def _start_again(self) -> None:
        """Start the lost instance again, in one attempt: a local one in a process of its own."""
        slot, backend = self._slot, self._slot.backend
        assert backend is not None
        if not isinstance(backend, LocalBackend) or backend.lost_reason is None:
            backend.restart()
            return
        slot.backend = self._backend_factory.replace(backend)
        _log.warning(
            "an instance in a thread was loaded again in a process of its own",
            extra={"model": self._session.name},
        )

    def _fail_internally(self, error: BaseException) -> None:
        """Give up the instance after a defect in its thread."""
        self._give_up(
            error,
            f"its thread failed with an internal error ({type(error).__name__}): see the log of headrace",
        )
        session = self._session
        if session.sequences is not None:
            InstanceSteps(session.sequences, self._slot.number).retire_instance()

    def _give_up(self, error: BaseException, reason: str) -> None:
        """Retire the instance. After the last one, the session is lost for this `reason`."""
        session = self._session
        _log.error("an instance is given up: %s", reason, extra={"model": session.name}, exc_info=error)
        with session.changed:
            self._slot.given_up = True
            is_last = all(s.given_up for s in session.members)
        if is_last:
            session.lost_reason = reason
            session.drop(InstanceLostError(session.name, session.lost_reason))
