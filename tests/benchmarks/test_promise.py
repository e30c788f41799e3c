"""promise.py: what is kept, what is broken, and what the exit code says of it."""

import io
import json

import pytest
from promise import Promise, close, spread
from rich.console import Console


def promise(ratio, bound, at_least=True):
    return Promise("rows", "rows/s", "2 against 1", ratio, bound, at_least, "1 to 2")


@pytest.mark.parametrize(
    ("ratio", "bound", "at_least", "kept"),
    [
        (0.8, 0.8, True, True),
        (0.79, 0.8, True, False),
        (400, 400, False, True),
        (401, 400, False, False),
        (0.1, None, True, True),
    ],
)
def test_a_promise_is_kept_up_to_its_bound(ratio, bound, at_least, kept):
    assert promise(ratio, bound, at_least).kept is kept


@pytest.mark.parametrize(("ratio", "code"), [(0.9, 0), (0.7, 1)])
def test_the_exit_code_says_whether_all_are_kept(tmp_path, ratio, code):
    console = Console(file=io.StringIO(), width=120)
    found = close(
        console, [promise(ratio, 0.8), promise(0, None)], 3, tmp_path / "new" / "found.json", figures={"a": 1}
    )
    assert found == code
    kept = json.loads((tmp_path / "new" / "found.json").read_text())
    assert [one["kept"] for one in kept["promises"]] == [code == 0, True]
    assert kept["figures"] == {"a": 1}
    assert ("yes" if code == 0 else "no") in console.file.getvalue()


def test_a_spread_is_readable():
    assert spread([3391.2, 0.12345, 12.0]) == "0.123 to 3,391"
