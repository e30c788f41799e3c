"""Work of an instance of a model with a `step`: the steps of one call, and the outcome of each."""

from headrace.batching.sequence import LiveSequence
from headrace.core.frozen import statically_frozen
from headrace.core.sequence import SequenceInfo
from headrace.engine.outputs import Outputs
from headrace.engine.stepper import SequenceEnding
from headrace.engine.steps.row_request import RowRequest

StepSequence = LiveSequence[RowRequest]


@statically_frozen
class StepWork:
    """The steps of one call, of different sequences, and the endings to report to the model first."""

    steps: tuple[tuple[StepSequence, RowRequest], ...] = ()
    endings: tuple[SequenceEnding, ...] = ()
    reason: str = ""


class StepOutcome:
    """The outcome of one step: a row of outputs or an error, and the model's flags."""

    __slots__ = (
        "checkpoint",
        "done",
        "ends",
        "error",
        "finished",
        "held",
        "outputs",
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

    def __init__(self, sequence: StepSequence, row_request: RowRequest) -> None:
        self.sequence = sequence
        self.row_request = row_request
        self.row = row_request.request_row
        self.outputs: Outputs | None = None
        self.error: BaseException | None = None
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

    def undo(self) -> None:
        """Undo a step that was done on an outdated state: it is done again."""
        self.undone, self.state_changed = True, False
        self.outputs, self.rescheduled, self.ends = None, False, False

    def fail(self, error: BaseException, why: str, *, finished: bool, withdrawn: bool = False) -> None:
        """Fail the step: its state is unchanged, or loaded again."""
        self.withdrawn = withdrawn
        self.error, self.why, self.state_changed, self.finished = error, why, False, finished
        self.outputs, self.rescheduled, self.ends = None, False, False


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
