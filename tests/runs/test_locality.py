import pytest

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.runs.plan import Task
from headrace.runs.tasks import Locality

NOWHERE, EU, US = Task(0, ()), Task(1, (), "eu"), Task(2, (), "us")
TASKS = [EU, NOWHERE, US]


@for_each(
    ("region", "other", "own", "ordered"),
    [
        (None, "idle", [EU, NOWHERE, US], [EU, NOWHERE, US]),
        (None, "never", [NOWHERE], [NOWHERE]),
        ("us", "idle", [NOWHERE, US], [NOWHERE, US, EU]),
        ("us", "never", [NOWHERE, US], [NOWHERE, US]),
        ("hall-2", "idle", [NOWHERE], [NOWHERE, EU, US]),
    ],
)
def test_local_tasks_come_first(region, other, own, ordered):
    locality = Locality(region, other)
    assert [task for task in TASKS if locality.is_local(task)] == own
    assert locality.ordered(TASKS) == ordered


def test_unknown_rule_is_refused():
    with pytest.raises(ConfigError, match="idle or never, not 'always'"):
        Locality(None, "always")


def test_never_requires_a_region():
    with pytest.raises(ConfigError, match="the worker has no region"):
        Locality(None, "never").require_region()
    Locality("eu", "never").require_region()
    Locality().require_region()
