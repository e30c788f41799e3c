"""The picture of a plan, as PNG."""

from io import BytesIO

import numpy as np
import pytest

from scaling.planner.plans import plan_of, policy

pytest.importorskip("matplotlib", reason="needs the extra plots")
Image = pytest.importorskip("PIL.Image", reason="needs the extra image")


def pixels(content):
    return np.asarray(Image.open(BytesIO(content)).convert("RGB"), np.int16)


def test_picture_has_a_row_for_each_mode():
    from headrace.scaling.planner.picture import plan_picture

    three, four = pixels(plan_picture(plan_of())), pixels(plan_picture(plan_of(policy("1..8"))))
    assert three.shape[1] == four.shape[1] == 1320
    assert four.shape[0] - three.shape[0] == 187
    assert (three[0] == 255).all()


def test_areas_show_the_machines():
    """The right half is filled by one machine of eight, all of the time."""
    from headrace.scaling.planner.picture import plan_picture

    found = pixels(plan_picture(plan_of(arrivals="even")))
    is_filled = (abs(found - [0xA9, 0xC7, 0xF2]) < 8).all(axis=2)
    always_on = is_filled[: found.shape[0] // 2, 700:]
    columns = always_on.any(axis=0)
    assert columns.sum() > 500
    assert 10 < np.median(always_on.sum(axis=0)[columns]) < 30


def test_dollar_signs_are_no_formula():
    """Between two dollar signs, matplotlib would read a formula, which may be invalid."""
    from headrace.scaling.planner.picture import plan_picture

    assert plan_picture(plan_of(currency="$_{")).startswith(b"\x89PNG")


def test_picture_leaves_no_state_of_pyplot():
    import sys

    from headrace.scaling.planner.picture import plan_picture

    sys.modules.pop("matplotlib.pyplot", None)
    plan_picture(plan_of())
    assert "matplotlib.pyplot" not in sys.modules
