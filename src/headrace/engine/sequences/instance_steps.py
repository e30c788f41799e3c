"""The steps and the states of one instance, as the schedule of its sequences learns of them."""

from collections.abc import Sequence

from headrace.engine.sequences.row_request import RowRequest, StepItem, StepSequence
from headrace.engine.sequences.sequence_schedule import SequenceSchedule
from headrace.engine.stepper import SequenceEnding


class InstanceSteps:
    """The changes that one instance makes to the schedule of its sequences.

    Each method takes the lock of the queue. Those that end requests deliver their results, except
    `end_steps`: its caller delivers them with the results of the steps.
    """

    def __init__(self, schedule: SequenceSchedule, instance: int) -> None:
        self._schedule = schedule
        self._instance = instance
        self._table = schedule.table
        self._ready = schedule.ready[instance]
        self._endings = schedule.endings[instance]
        self._lock = schedule.lock
        self._now = schedule.clock.now

    def end_steps(self, outcomes: Sequence[StepItem]) -> None:
        """End the steps that were taken, and set `done` of each outcome.

        Missing states were handled before (`state_loaded`, `state_missing`).
        """
        with self._lock:
            now = self._now()
            for o in outcomes:
                o.done = self._table.end_step(
                    o.sequence,
                    now,
                    state_changed=o.state_changed,
                    reschedule=o.rescheduled,
                    end_sequence=o.ends,
                    finish_request=o.finished,
                    hold=o.held,
                    redo=o.undone,
                    withdraw_request=o.withdrawn,
                )
            self._ready.end(len(outcomes), len(outcomes), now)
            self._schedule.collect_ended()

    def state_loaded(self, sequence: StepSequence, steps: int) -> None:
        """Record that the state of a sequence is loaded, for the step that was taken."""
        with self._lock:
            self._table.state_loaded(sequence, steps)

    def state_missing(self, sequence: StepSequence) -> bool:
        """Handle a step whose state could not be loaded. Return True if the sequence restarts.

        If it does not, its requests end.
        """
        with self._lock:
            now = self._now()
            starts_sequence = self._table.state_missing(sequence, now)
            if not starts_sequence:
                self._ready.end(1, 1, now)
                self._schedule.collect_ended()
        self._schedule.deliver_ended()
        return starts_sequence

    def unload_state(self, sequence: StepSequence) -> None:
        """Mark the state of a sequence to be loaded before its next step."""
        with self._lock:
            self._table.unload_state(sequence)

    def return_endings(self, endings: Sequence[SequenceEnding]) -> None:
        """Return endings that were not reported to the model, for the restarted instance."""
        with self._lock:
            self._endings[:0] = endings

    def state_corrupted(self, taken: Sequence[StepSequence], others: Sequence[StepSequence]) -> None:
        """End the sequences whose states are unknown, and the taken steps without a result."""
        with self._lock:
            now = self._now()
            for sequence in others:
                self._table.state_corrupted(sequence, now, stepping=False)
            for sequence in taken:
                if self._table.state_corrupted(sequence, now, stepping=True):
                    self._ready.end(1, 1, now)
            self._schedule.collect_ended()
        self._schedule.deliver_ended()

    # Deaths of the instance

    def instance_lost(self, stepping: Sequence[StepSequence], exhausted: Sequence[RowRequest]) -> None:
        """Record the death of the instance during these steps.

        Row requests that are `exhausted` end.
        """
        with self._lock:
            self._ready.forget_running()
            # The instance takes no steps, and no endings are reported, until it is restarted.
            self._table.set_available(self._instance, available=False)
            now = self._now()
            self._table.instance_lost(self._instance, stepping, now)
            for row_request in exhausted:
                if row_request.sequence is not None:
                    self._table.withdraw(row_request.sequence, row_request, now)
            self._schedule.collect_ended()
        self._schedule.deliver_ended()

    def instance_restarted(self) -> None:
        """Record the restart of the instance."""
        with self._lock:
            self._table.set_available(self._instance, available=True)

    def retire_instance(self) -> None:
        """Record that the instance is given up."""
        with self._lock:
            self._ready.forget_running()
            self._table.retire_instance(self._instance, self._now())
            self._schedule.collect_ended()
            self._endings.clear()
        self._schedule.deliver_ended()
