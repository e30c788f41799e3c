"""What came of a step."""

from engine.support import request, rows, ticket
from headrace.batching.sequence import LiveSequence
from headrace.core.errors import PredictError
from headrace.core.sequence import SequenceEnd
from headrace.engine.stepper import Ending
from headrace.engine.steps.part import Part
from headrace.engine.steps.work import StepOutcome, ending_of


def test_a_step_that_fails_changed_nothing_and_says_nothing():
    part = Part(ticket(request()), {"x": rows(1)}, 1, None, which=[4])
    outcome = StepOutcome(LiveSequence("a", 1, 0, 0.0), part)
    assert (outcome.row, outcome.counts) == (4, True)
    outcome.outputs, outcome.goes_on, outcome.ends = {"y": rows(1)}, True, True
    error = PredictError("m", "odd")
    outcome.fails(error, "odd", finished=True)
    assert (outcome.outputs, outcome.goes_on, outcome.ends, outcome.counts) == (None, False, False, False)
    assert (outcome.error, outcome.why, outcome.finished) == (error, "odd", True)


def test_a_model_is_told_of_a_sequence_as_it_was_left():
    sequence = LiveSequence("a", 7, 0, 0.0)
    sequence.steps, sequence.why = 3, SequenceEnd.IDLE
    assert ending_of(sequence) == Ending(7, "a", 3, SequenceEnd.IDLE)
