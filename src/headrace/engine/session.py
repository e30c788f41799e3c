"""One session of an engine, from a start to its stop: the state that clients and instances share."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import Final

from headrace.core.clock import Clock
from headrace.core.errors import (
    HeadraceError,
    InstanceLostError,
    OverloadedError,
    SequenceError,
    SequenceFullError,
    StoppedError,
    TooManySequencesError,
)
from headrace.core.statistics import InstanceDeath, ModelStatistics
from headrace.engine.backend import Backend
from headrace.engine.background_requests import BackgroundRequests
from headrace.engine.counters import EngineCounters, sum_counters
from headrace.engine.inline_caller import InlineCaller
from headrace.engine.instance_slot import InstanceSlot
from headrace.engine.live_traffic import LiveTraffic
from headrace.engine.outputs import ChunkedResponse, ResponseBuilder
from headrace.engine.pending_request import PendingRequest, RequestResult, deliver, stopped_error
from headrace.engine.request_queue import RequestQueue
from headrace.engine.schedule import IndependentRequests
from headrace.engine.sequences.sequence_schedule import SequenceSchedule
from headrace.engine.streams import StreamCall
from headrace.engine.tracebacks import TracebackLog

_REST_S_MAX: Final = 1.0
"""The longest wait in seconds after an inline call, which takes up to a millisecond."""


class SessionState(Enum):
    """The state of a session."""

    LOADING = auto()
    RUNNING = auto()
    STOPPING = auto()
    STOPPED = auto()


class EngineSession:
    """The queues, threads and instances from one start of an engine to its stop.

    `changed` is held, and notified, where the state, the streams or the load results change.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        changed: threading.Condition,
        instances: int,
        *,
        merge: bool,
        in_flight_max: int,
        queue_rows_max: int,
        finds_broken_model: bool = False,
        traffic: LiveTraffic | None = None,
        latency_limit_s: float | None = None,
    ) -> None:
        self.name = name
        self.clock = clock
        self.merge = merge
        """True if requests that can share a call share it."""
        self.finds_broken_model = finds_broken_model
        """True if the first requests of each instance are checked for a broken model."""
        self.traceback_log = TracebackLog(name)
        self.requests = IndependentRequests(merge=merge)
        """The schedule of a model without a `step`."""
        self.queue = RequestQueue(
            clock,
            self.requests,
            model=name,
            in_flight_max=in_flight_max,
            queue_rows_max=queue_rows_max,
            deliver_results=self.deliver_results,
            background=None
            if traffic is None
            else BackgroundRequests(traffic.share, lambda: len(self.members)),
        )
        self._traffic = traffic
        self._monitor = None if traffic is None or latency_limit_s is None else traffic.limit(latency_limit_s)
        """The monitor of the latencies of live requests, if they have a limit."""
        self.sequences: SequenceSchedule | None = None
        """The schedule of a model with a `step`; None until the model is loaded."""
        self._respond: ResponseBuilder | None = None
        self.changed = changed
        self.state = SessionState.LOADING if instances else SessionState.STOPPED
        self.slots: list[InstanceSlot] = []
        """All places of instances. The backend of the first one describes the model."""
        self.inline: InlineCaller | None = None
        """The caller of the one instance that is called on the client's thread."""
        self.stop_requested = threading.Event()
        """Set by a stop: background work and removed instances do not wait any longer."""
        self.lost_reason: str | None = None
        """The reason why no instance is left: all died and none could be restarted."""
        self.last_death: InstanceDeath | None = None
        self.began_s = 0.0
        self.counters_lock = threading.Lock()
        """Held while `counters` and `refused` change, since clients of several threads change them."""
        self.counters = EngineCounters(self._monitor)
        """Counters of requests that ended outside of an instance: withdrawn or dropped."""
        self.refused = 0
        for _ in range(instances):
            self.add_slot()

    def add_slot(self, *, is_member: bool = True) -> InstanceSlot:
        """Add the place of an instance."""
        slot = InstanceSlot(len(self.slots), EngineCounters(self._monitor), is_member=is_member)
        self.slots.append(slot)
        return slot

    def use_sequences(self, make: Callable[[], SequenceSchedule]) -> None:
        """Replace the schedule of the queue, for a model with a `step`."""
        with self.changed:
            if self.sequences is None:
                self.sequences = self.queue.schedule = make()

    def use_response_builder(self, backend: Backend) -> ResponseBuilder:
        """Return the response builder of all instances, made for the first of them."""
        with self.changed:
            if self._respond is None:
                self._respond = ResponseBuilder(backend.check, backend.metadata)
            return self._respond

    def background_share(self) -> float:
        """Return the share of the time that background work may use."""
        return 1.0 if self._traffic is None else self._traffic.share()

    def rest(self, busy_s: float) -> None:
        """Wait after an inline call for background work, so that it keeps to its share of the time."""
        share = self.background_share()
        if share < 1.0:
            self.clock.sleep(min(busy_s * (1.0 / share - 1.0), _REST_S_MAX), self.stop_requested)

    def close_store(self) -> None:
        """Close the checkpoint store, and withdraw the latency limit, after the last instance."""
        if self._monitor is not None:
            self._monitor.close()
        sequences = self.sequences
        if sequences is None:
            return
        if sequences.state_deletes is not None:
            sequences.state_deletes.close()
        if sequences.store is not None:
            sequences.store.close()

    def record_death(self, error: InstanceLostError) -> None:
        """Record the death of an instance that was not intended. Any thread."""
        at_ms = round(time.time() * 1000)
        self.last_death = InstanceDeath(self.name, error.cause or "", error.why, at_ms)

    # Threads

    def start_threads(self, run: Callable[[InstanceSlot], None]) -> None:
        """Start a thread for each instance. If one cannot be started, the others end."""
        try:
            for slot in self.slots:
                self.start_thread(slot, run)
        except BaseException:
            self.queue.close()
            raise

    def start_thread(self, slot: InstanceSlot, run: Callable[[InstanceSlot], None]) -> None:
        """Start the thread of an instance."""
        name = f"headrace-{self.name}-{slot.number}"
        thread = threading.Thread(target=run, args=(slot,), name=name, daemon=True)
        thread.start()
        slot.thread = thread

    def wait_until_loaded(self) -> None:
        """Return when every instance is ready; from then on, requests are accepted.

        Raises the first instance's error, or StoppedError. Then no thread of an instance is left.
        """
        with self.changed:
            self.changed.wait_for(lambda: all(slot.is_loaded for slot in self.slots))
            error = next((slot.load_error for slot in self.slots if slot.load_error is not None), None)
            if error is None and self.state is SessionState.LOADING:
                self.began_s = self.clock.now()
                self.set_state(SessionState.RUNNING)
                return
        self.queue.close()
        self.join_threads()
        raise error or StoppedError(f"model {self.name} was stopped while it loaded")

    def begin(self) -> None:
        """Return when requests are accepted. After an error, which is raised, the session has ended."""
        try:
            self.wait_until_loaded()
            if self.sequences is not None and self.sequences.store is not None:
                self.sequences.store.start()
        except BaseException:
            self.queue.drop()
            self.close_store()
            self.set_state(SessionState.STOPPED)
            raise

    def set_state(self, state: SessionState) -> None:
        """Change the state, and tell those who wait for it."""
        with self.changed:
            self.state = state
            self.changed.notify_all()

    def join_threads(self) -> None:
        """Wait for the threads, except the current one."""
        for slot in self.slots:
            if slot.thread is not None and slot.thread is not threading.current_thread():
                slot.thread.join()

    def report_loaded(self, slot: InstanceSlot, error: BaseException | None = None) -> None:
        """Record that an instance is ready, or that it ended with the error of its load."""
        with self.changed:
            slot.load_error, slot.is_ended = error, error is not None
            slot.is_loaded, slot.is_member = True, error is None
            self.changed.notify_all()
        self._drop_after_last()

    def report_ended(self, slot: InstanceSlot) -> None:
        """Record the end of an instance. No request waits after the last one."""
        with self.changed:
            slot.is_ended = True
            if not slot.is_member and slot.number:
                # The model of a removed instance is not needed any longer.
                slot.backend = None
            self.changed.notify_all()
        self._drop_after_last()

    def _drop_after_last(self) -> None:
        if all(slot.is_ended for slot in self.slots):
            # Requests that an instance requeued after the others had ended.
            self.drop(stopped_error(self.name, "before this request began"))

    @property
    def members(self) -> list[InstanceSlot]:
        """The slots of the instances that serve, without those that are being added or removed."""
        return [slot for slot in self.slots if slot.is_member]

    # Requests

    def cancel_unwanted_calls(self) -> None:
        """Cancel the calls in progress that no client wants any more, after a client has left."""
        for slot in self.slots:
            slot.cancel_if_unwanted()

    def drop(self, error: BaseException) -> None:
        """Fail all waiting and all later requests."""
        if waiting := self.queue.drop():
            self.deliver_results([(entry, error) for entry in waiting])

    def deliver_results(self, results: Sequence[tuple[PendingRequest, RequestResult]]) -> None:
        """Mark, count and deliver results without an instance. Any thread."""
        self.queue.mark_ended([entry for entry, _ in results])
        now = self.clock.now()
        with self.counters_lock:
            for entry, result in results:
                if not entry.ended:
                    continue
                if isinstance(result, BaseException):
                    self.counters.record_failure(now - entry.arrived_s, rows=entry.rows)
                else:
                    self.counters.record_success(now - entry.arrived_s, rows=0, failed_rows=0)
        deliver(results)
        if any(isinstance(result, SequenceError) for _, result in results):
            # A step of a sequence that has ended may be in progress.
            self.cancel_unwanted_calls()

    def count_refused(self, entry: PendingRequest, error: HeadraceError) -> None:
        """Count a request that its sequence refused."""
        with self.counters_lock:
            if isinstance(error, (SequenceFullError, TooManySequencesError)):
                self.refused += 1
            else:
                self.counters.record_failure(0.0, rows=entry.rows)

    def statistics(self, version: str | None) -> ModelStatistics:
        """Return all counters since the start and the current gauges. Any thread."""
        requests, rows, oldest_s, running = self.queue.waiting()
        ended_s = max(
            (s.counters.ended_s for s in self.slots if s.counters.ended_s is not None), default=None
        )
        now = self.clock.now()
        ago_s = 0.0 if ended_s is None else now - ended_s
        base = ModelStatistics(
            self.name,
            version or "",
            instances=len(self.members),
            last_inference_ms=0 if ended_s is None else round((time.time() - ago_s) * 1000),
            cancelled=self.queue.cancelled,
            refused=self.refused,
            uptime_s=now - self.began_s if self.state is SessionState.RUNNING else 0.0,
            waiting_requests=requests,
            waiting_rows=rows,
            oldest_waiting_s=oldest_s,
            in_flight=requests + running,
            held_requests=self.queue.held_requests,
            background_share=self.background_share(),
            open_streams=sum(len(s.streams) for s in self.slots),
            sequences=None if self.sequences is None else self.sequences.statistics(),
        )
        summed = sum_counters([*(s.counters for s in self.slots), self.counters], base)
        return replace(summed, busy_s=sum(s.counters.busy_until(now) for s in self.slots))

    # Streams

    def reserve_slot(
        self, call: StreamCall, streams_max: int, response: ChunkedResponse | None = None
    ) -> InstanceSlot:
        """Add a stream to the instance with the fewest streams, and return its slot.

        The chunks of a `response` come from its own instance. Raises StoppedError, and
        OverloadedError while `streams_max` streams are open.
        """
        with self.changed:
            # From here on, a stop waits for this stream or cancels it.
            if self.state is not SessionState.RUNNING:
                raise stopped_error(self.name, "it is stopping")
            slot = next((s for s in self.slots if response in s.unopened), None) or min(
                self.members, key=lambda s: (not s.alive, len(s.streams))
            )
            if response is not None:
                slot.unopened.discard(response)
            if sum(len(s.streams) for s in self.slots) < streams_max:
                slot.streams.add(call)
                return slot
        with self.counters_lock:
            self.refused += 1
        raise OverloadedError(
            f"model {self.name}: {streams_max} streams are open, the limit (streams_max): retry later",
            retry_after_s=1.0,
        )

    def release_stream(self, slot: InstanceSlot, call: StreamCall) -> None:
        """Remove a stream that has ended and that its client has closed."""
        with self.counters_lock:
            slot.counters.stream_items += call.items
        with self.changed:
            slot.streams.discard(call)
            self.changed.notify_all()

    def end(self, *, drain: bool) -> None:
        """Finish the accepted requests, or fail them; return when the threads have ended."""
        if drain:
            with self.changed:
                # `abort` ends this wait, too.
                self.changed.wait_for(lambda: self.queue.dropped or not any(s.streams for s in self.slots))
            self.queue.close()
        else:
            self.abort()
        with self.changed:
            self.stop_requested.set()
            self.changed.notify_all()
        for slot in self.slots:
            slot.restart_now.set()
        self.join_threads()
        self.close_store()
        self.set_state(SessionState.STOPPED)

    def abort(self) -> None:
        """End the open streams and fail the waiting requests."""
        with self.changed:
            streams = [stream for slot in self.slots for stream in slot.streams]
        for stream in streams:
            stream.cancel(stopped_error(self.name, "while this stream was open"))
        self.drop(stopped_error(self.name, "before this request began"))
        with self.changed:
            self.changed.notify_all()  # wakes a stop that waits for streams
