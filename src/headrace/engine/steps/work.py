"""What an instance takes at once of a model with a `step`, and what came of each step."""

from headrace.batching.sequence import LiveSequence
from headrace.core.record import record
from headrace.core.sequence import SequenceInfo
from headrace.engine.outputs import Outputs
from headrace.engine.stepper import Ending
from headrace.engine.steps.part import Part

Live = LiveSequence[Part]


@record
class StepWork:
    """Steps for one call of the model, none twice of a sequence; and sequences that are over, of which it is told first."""

    steps: tuple[tuple[Live, Part], ...] = ()
    endings: tuple[Ending, ...] = ()
    reason: str = ""


class StepOutcome:
    """What came of one step: a row of outputs, or an error; and what the model said of it."""

    __slots__ = (
        "counts",
        "done",
        "ends",
        "error",
        "finished",
        "goes_on",
        "held",
        "outputs",
        "part",
        "restore",
        "row",
        "save",
        "saved",
        "sequence",
        "silent",
        "undone",
        "why",
        "withdrawn",
    )

    def __init__(self, sequence: Live, part: Part) -> None:
        self.sequence = sequence
        self.part = part
        self.row = part.index
        self.outputs: Outputs | None = None
        self.error: BaseException | None = None
        self.why = ""
        """The error, for whoever takes answers with rows missing."""
        self.counts = True
        """Whether the state is another now."""
        self.goes_on = self.silent = self.ends = False
        self.finished = False
        """Whether its part is over, whatever rows are left."""
        self.withdrawn = False
        """Whether its part can be asked again, and ends no sequence."""
        self.held = False
        self.restore: bytes | None = None
        """The checkpoint that the step begins with, where the state is not there."""
        self.save = False
        self.undone = False
        self.saved: bytes | None = None
        self.done: bool | None = None
        """Whether its part came to its end by it; None until its sequence knows what came of it."""

    @property
    def is_last(self) -> bool:
        """Whether its sequence is over with it, by the model or by its client."""
        part = self.part
        return self.ends or (part.ends and not self.goes_on and part.row == part.rows - 1)

    def undo(self) -> None:
        """It was done on a state that was not the last one: it is to be done again."""
        self.undone, self.counts = True, False
        self.outputs, self.goes_on, self.ends = None, False, False

    def fails(self, error: BaseException, why: str, *, finished: bool, withdrawn: bool = False) -> None:
        """It came to nothing: the state is what it was, or is to be brought anew."""
        self.withdrawn = withdrawn
        self.error, self.why, self.counts, self.finished = error, why, False, finished
        self.outputs, self.goes_on, self.ends = None, False, False


def ending_of(sequence: Live) -> Ending:
    """What the model is told of a sequence that is over."""
    assert sequence.why is not None
    return Ending(sequence.number, sequence.id, sequence.steps, sequence.why)


def info_of(sequence: Live, now: float) -> SequenceInfo:
    """How it stands."""
    return SequenceInfo(
        sequence.id,
        stage=str(sequence.stage),
        instance=sequence.place,
        steps=sequence.steps,
        requests=len(sequence.waiting) + (sequence.current is not None),
        age_s=now - sequence.started_s,
        idle_s=now - sequence.touched_s if sequence.current is None else 0.0,
    )
