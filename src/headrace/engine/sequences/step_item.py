"""One step of one sequence in a call of the model, and its outcome."""

from typing_extensions import override

from headrace.batching.sequence import LiveSequence
from headrace.core.sequence import SequenceInfo
from headrace.engine.backend import CallResult
from headrace.engine.batch_caller import CallItem
from headrace.engine.model_errors import describe_error
from headrace.engine.outputs import Outputs
from headrace.engine.sequences.row_request import RowRequest
from headrace.engine.stepper import SequenceEnding, StepOrder

StepSequence = LiveSequence[RowRequest]


class StepItem(CallItem):
    """One step: a row of outputs or an error, and the model's flags."""

    __slots__ = (
        "checkpoint",
        "done",
        "ends",
        "finished",
        "held",
        "rescheduled",
        "restore",
        "row",
        "row_request",
        "save",
        "sequence",
        "silent",
        "state_changed",
        "undone",
        "why",
        "withdrawn",
    )

    # A step that was taken ends: done, or failed by the model.
    can_be_withdrawn = False

    def __init__(self, sequence: StepSequence, row_request: RowRequest) -> None:
        super().__init__(row_request.entry, row_request.step_tensors(), 1, is_whole=True)
        self.sequence = sequence
        self.row_request = row_request
        self.row = row_request.request_row
        self.why = ""
        """The text of the error, for clients that accept missing rows."""
        self.state_changed = True
        """True if the step changed the state."""
        self.rescheduled = self.silent = self.ends = False
        self.finished = False
        """True if its row request is complete, whatever rows are left."""
        self.withdrawn = False
        """True if its row request can be retried, and ends no sequence."""
        self.held = False
        self.restore: bytes | None = None
        """The checkpoint to begin the step with, if the instance does not have the state."""
        self.save = False
        self.undone = False
        self.checkpoint: bytes | None = None
        self.done: bool | None = None
        """True if the step completed its row request; None until the step is committed."""

    @property
    def is_last(self) -> bool:
        """True if the step ends its sequence, by the model or by its client."""
        row_request = self.row_request
        return self.ends or (
            row_request.ends and not self.rescheduled and row_request.row == row_request.rows - 1
        )

    @override
    def order(self) -> StepOrder:
        sequence, row_request = self.sequence, self.row_request
        end = row_request.ends and row_request.row == row_request.rows - 1
        return StepOrder(
            sequence.number,
            sequence.id,
            sequence.steps,
            row_request.again,
            end,
            row_request.parameters,
            self.restore,
            self.save,
            row_request.number,
        )

    @override
    def is_wanted(self, now: float) -> bool:
        return self.row_request.is_wanted(now)

    @override
    def request_row(self, row: int) -> int:
        return self.row

    @override
    def add_outputs(self, outputs: Outputs, called: CallResult, at: int) -> None:
        self.outputs.append(outputs)
        self.rescheduled, self.silent, self.ends = called.flags[at]
        self.checkpoint = called.checkpoints[at]

    def undo(self) -> None:
        """Undo a step that was done on an outdated state: it is done again."""
        self.undone = True
        self._discard_outputs()

    @override
    def withdraw(self, error: BaseException) -> None:
        """End it with an error; its sequence continues as if the row request had not been sent."""
        self.fail(error, describe_error(error), finished=True)
        self.withdrawn = True

    @override
    def fail(self, error: BaseException, why: str, *, finished: bool) -> None:
        """Fail the step: its state is unchanged, or loaded again."""
        self.error, self.why, self.finished = error, why, finished
        self._discard_outputs()

    def _discard_outputs(self) -> None:
        self.state_changed = self.rescheduled = self.ends = False
        self.outputs.clear()


def sequence_ending(sequence: StepSequence) -> SequenceEnding:
    """Return the ending of a sequence, for the model."""
    assert sequence.end_reason is not None
    return SequenceEnding(sequence.number, sequence.id, sequence.steps, sequence.end_reason)


def sequence_info(sequence: StepSequence, now: float) -> SequenceInfo:
    """Return the current figures of a sequence."""
    return SequenceInfo(
        sequence.id,
        stage=str(sequence.stage),
        instance=sequence.instance,
        steps=sequence.steps,
        requests=len(sequence.waiting) + (sequence.current is not None),
        age_s=now - sequence.started_s,
        idle_s=now - sequence.idle_since_s if sequence.current is None else 0.0,
    )
