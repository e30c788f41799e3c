from cases import for_each
from headrace.core.block import Failure, FailureKind, Position
from headrace.runs.output import reason_of


@for_each(
    ("why", "reason"),
    [
        ("", "decode: "),
        ('column 3: "x" is not a number', 'decode: column 3: "…" is not a number'),
        ("column 3 (\"age\"): 'it\\'s' is 5 wide", 'decode: column 3 ("age"): "…" is N wide'),
        ("has 12 columns, 3 expected", "decode: has 12 columns, 3 expected"),
        ("value -1.5e-7 and v2 of x86", "decode: value N and v2 of x86"),
        ("first line\nsecond", "decode: first line"),
        ("memory://in/a.csv is gone; the rest of memory://in/a.csv", "decode: … is gone; the rest of …"),
        ("day.csv in memory://in/a.csv ends", "decode: … in … ends"),
        ("é" * 300, "decode: " + "é" * 192),
    ],
)
def test_reason_omits_values_of_the_record(why, reason):
    failure = Failure(Position("memory://in/a.csv", "day.csv"), FailureKind.DECODE, why)
    assert reason_of(failure) == reason


def test_column_numbers_are_kept_in_order():
    failure = Failure(Position("o"), FailureKind.MODEL, "column 2 is more than column 1 by 7")
    assert reason_of(failure) == "model: column 2 is more than column 1 by N"
