import pytest

from headrace.core.errors import ConfigError
from headrace.transforms.locality import Locality
from headrace.transforms.plan import Task

NOWHERE, EU, US = Task(0, ()), Task(1, (), "eu"), Task(2, (), "us")
TASKS = [EU, NOWHERE, US]


@pytest.mark.parametrize(
    ("region", "other", "own", "in_turn"),
    [
        (None, "idle", [EU, NOWHERE, US], [EU, NOWHERE, US]),
        (None, "never", [NOWHERE], [NOWHERE]),
        ("us", "idle", [NOWHERE, US], [NOWHERE, US, EU]),
        ("us", "never", [NOWHERE, US], [NOWHERE, US]),
        ("hall-2", "idle", [NOWHERE], [NOWHERE, EU, US]),
    ],
)
def test_its_own_tasks_come_first_and_others_perhaps(region, other, own, in_turn):
    locality = Locality(region, other)
    assert [task for task in TASKS if locality.is_own(task)] == own
    assert locality.in_turn(TASKS) == in_turn


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="idle or never, not 'always'"):
        Locality(None, "always")


def test_never_needs_a_region_where_no_place_says_it():
    with pytest.raises(ConfigError, match="no region is declared"):
        Locality(None, "never").require_region()
    Locality("eu", "never").require_region()
    Locality().require_region()
