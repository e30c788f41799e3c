"""Loads: their figures, and the refusal of impossible values."""

import numpy as np
import pytest

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.scaling.planner.load import DAY_S, MONDAY_MS, Load


def seconds(*values):
    return np.array(values, dtype=np.float64)


def load_of(**values):
    return Load(
        **{"arrived_s": seconds(0, 5), "run_s": seconds(1, 2), "span_s": DAY_S, **values},
    )


def test_load_has_its_figures():
    load = load_of(span_s=2 * DAY_S)
    assert (load.busy_s, load.days, load.began_at_ms) == (3.0, 2.0, MONDAY_MS)
    assert load.due is load.arrived_s


def test_monday_is_one():
    at = np.datetime64(MONDAY_MS, "ms")
    assert at.astype(object).isoweekday() == 1
    assert MONDAY_MS % 86_400_000 == 0


def test_later_due_times_need_no_order_of_arrivals():
    load = load_of(arrived_s=seconds(5, 0), due_s=seconds(5, 5))
    assert load.due.tolist() == [5, 5]


@for_each(
    ("values", "message"),
    [
        ({"arrived_s": seconds(), "run_s": seconds()}, "a load needs jobs"),
        ({"arrived_s": seconds(1)}, "a load needs jobs"),
        ({"run_s": seconds(1)}, "a load needs jobs"),
        ({"due_s": seconds(9)}, "a load needs jobs"),
        ({"arrived_s": np.zeros((2, 1)), "run_s": np.ones((2, 1))}, "a load needs jobs"),
        ({"arrived_s": seconds(0, np.inf)}, "finite"),
        ({"arrived_s": seconds(0, np.nan)}, "finite"),
        ({"run_s": seconds(1, np.inf)}, "finite"),
        ({"run_s": seconds(np.nan, 1)}, "finite"),
        ({"due_s": seconds(9, np.inf)}, "finite"),
        ({"arrived_s": seconds(5, 0)}, "ascend from 0"),
        ({"arrived_s": seconds(-1, 0)}, "ascend from 0"),
        ({"due_s": seconds(9, 8)}, "ascend from 0"),
        ({"arrived_s": seconds(-1, 5), "due_s": seconds(0, 5)}, "ascend from 0"),
        ({"due_s": seconds(0, 4)}, "due before its arrival"),
        ({"run_s": seconds(1, 0)}, "above 0"),
        ({"run_s": seconds(1, -1)}, "above 0"),
        ({"span_s": 0.0}, "span more than 0"),
        ({"span_s": np.nan}, "span more than 0"),
        ({"span_s": np.inf}, "span more than 0"),
        ({"began_at_ms": -1}, "from 1970"),
    ],
)
def test_impossible_load_is_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        load_of(**values)
