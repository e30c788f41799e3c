"""A pytest plugin: the three levels of tests, ``make test``, ``make test-all`` and ``make soak``.

The option ``--level`` selects tests and sets how much each of them does. Without the option every named
test runs, with the amounts of ``make test-all``.
"""

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import settings

Amount = TypeVar("Amount", int, str)

VARIABLE = "HEADRACE_TEST_LEVEL"
LEVELS = ("test", "all", "soak")
EXAMPLES = {"test": 20, "all": 50, "soak": 1000}
"""Hypothesis examples of each property test."""
TESTS = Path(__file__).parent
DOCS = TESTS.parent / "docs"
SLOW_FOLDERS = {"benchmarks", "contrib", "examples", "extras", "faults", "integration"}
"""Folders that ``make test`` does not even import."""
SERVER_FIXTURES = {"postgres", "postgres_url", "s3_server", "valkey_server", "rabbit_server", "moto_server"}
DAY = "HEADRACE_TEST_DAY"
DAYS = 3
SLOW_MARKS = ("slow", "soak", "postgres", "s3")


def level() -> str:
    """Return the level of this run: "test", "all" or "soak"."""
    return os.environ.get(VARIABLE, "all")


def soaking() -> bool:
    """Return True if this run is ``make soak``, which takes the largest amounts."""
    return level() == "soak"


def by_level(test: Amount, thorough: Amount, soak: Amount) -> Amount:
    """Return the amount (kills, rounds, rows) for this run's level."""
    return {"test": test, "all": thorough, "soak": soak}[level()]


def examples(factor: float) -> int:
    """Return `factor` times the level's usual number of hypothesis examples, at least 3.

    For ``@settings(max_examples=examples(0.2))`` where one example is expensive, or
    ``examples(3)`` where bugs are rare and examples are cheap.
    """
    return max(3, round(EXAMPLES[level()] * factor))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that `make test`, `make test-all` and `make soak` select tests by."""
    parser.addoption(
        "--level", choices=LEVELS, help="tests to select, and how much each does (see tests/levels.py)"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Set the level, hypothesis' profile for it, and the default handling of Ctrl-C."""
    os.environ[VARIABLE] = config.getoption("--level") or "all"
    # Test processes inherit the day, so that a run over midnight selects the same tests in each of them.
    os.environ.setdefault(DAY, str(time.localtime().tm_yday))
    for name, examples in EXAMPLES.items():
        if name == "soak":
            settings.register_profile(name, max_examples=examples, deadline=None, print_blob=True)
        else:  # derandomized, so that a failure repeats
            settings.register_profile(name, max_examples=examples, deadline=None, derandomize=True)
    settings.load_profile(level())
    # A shell ignores Ctrl-C for background processes and their children inherit that. Tests send Ctrl-C.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Spare `make test` the imports of folders that it leaves out."""
    slow = collection_path.parent == TESTS and collection_path.name in SLOW_FOLDERS
    return True if slow and config.getoption("--level") == "test" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what the level leaves out."""
    chosen = config.getoption("--level")
    if chosen is None:
        return
    left_out = [item for item in items if not _belongs(item, chosen)]
    if chosen == "all":
        left_out += _of_other_days(items)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(map(id, left_out))
        items[:] = [item for item in items if id(item) not in gone]


def _belongs(item: pytest.Item, chosen: str) -> bool:
    """Return True if the level runs the test."""
    if chosen == "soak":
        return True
    if chosen == "all":
        return not item.get_closest_marker("soak")
    if item.get_closest_marker("smoke"):
        return True
    if DOCS in item.path.parents:  # a folder named on the command line is collected in any case
        return False
    servers = SERVER_FIXTURES.intersection(getattr(item, "fixturenames", ()))
    return not servers and not any(item.get_closest_marker(mark) for mark in SLOW_MARKS)


def _of_other_days(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the fault tests, and the tests marked `in_turn`, whose turn is another day.

    Each of them runs every third day: one of three neighbours in a file, from a place by the file's name.
    """
    places: Counter[Path] = Counter()
    others: list[pytest.Item] = []
    for item in items:
        if item.path.match("faults/test_fault_*.py") or item.get_closest_marker("in_turn"):
            places[item.path] += 1
            if (places[item.path] + len(item.path.name) - int(os.environ[DAY])) % DAYS:
                others.append(item)
    return others
