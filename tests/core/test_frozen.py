"""Statically frozen dataclasses."""

import copy
import pickle
from dataclasses import fields, replace

from headrace.core.frozen import statically_frozen


@statically_frozen
class Point:
    """A class with two numbers."""

    x: int
    y: int = 0


def test_class_is_a_dataclass_with_slots():
    point = Point(1)
    assert (point, [f.name for f in fields(point)]) == (Point(1, 0), ["x", "y"])
    assert replace(point, y=2) == Point(1, 2)
    assert not hasattr(point, "__dict__")


def test_instance_can_be_copied_and_pickled():
    point = Point(1, 2)
    assert copy.deepcopy(point) == pickle.loads(pickle.dumps(point)) == point
