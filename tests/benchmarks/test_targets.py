"""targets.py: met and missed targets, and the exit code."""

import io
import json

import pytest
from rich.console import Console
from targets import Target, report_targets, spread


def target(ratio, bound, at_least=True):
    return Target("rows", "rows/s", "2 against 1", ratio, bound, at_least, "1 to 2")


@pytest.mark.parametrize(
    ("ratio", "bound", "at_least", "met"),
    [
        (0.8, 0.8, True, True),
        (0.79, 0.8, True, False),
        (400, 400, False, True),
        (401, 400, False, False),
        (0.1, None, True, True),
    ],
)
def test_target_is_met_up_to_its_bound(ratio, bound, at_least, met):
    assert target(ratio, bound, at_least).met is met


@pytest.mark.parametrize(("ratio", "code"), [(0.9, 0), (0.7, 1)])
def test_exit_code_is_1_if_a_target_is_missed(tmp_path, ratio, code):
    console = Console(file=io.StringIO(), width=120)
    found = report_targets(
        console, [target(ratio, 0.8), target(0, None)], 3, tmp_path / "new" / "found.json", figures={"a": 1}
    )
    assert found == code
    written = json.loads((tmp_path / "new" / "found.json").read_text())
    assert [one["met"] for one in written["targets"]] == [code == 0, True]
    assert written["figures"] == {"a": 1}
    assert ("yes" if code == 0 else "no") in console.file.getvalue()


def test_spread_has_three_digits():
    assert spread([3391.2, 0.12345, 12.0]) == "0.123 to 3,391"
