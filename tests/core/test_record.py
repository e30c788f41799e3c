"""Records: dataclasses, and what they keep of frozen ones."""

import copy
import pickle
from dataclasses import fields, replace

from headrace.core.record import record


@record
class Point:
    """Two numbers."""

    x: int
    y: int = 0


def test_a_record_is_a_dataclass_with_slots():
    point = Point(1)
    assert (point, [f.name for f in fields(point)]) == (Point(1, 0), ["x", "y"])
    assert replace(point, y=2) == Point(1, 2)
    assert not hasattr(point, "__dict__")


def test_a_record_can_be_copied_and_pickled():
    point = Point(1, 2)
    assert copy.deepcopy(point) == pickle.loads(pickle.dumps(point)) == point
