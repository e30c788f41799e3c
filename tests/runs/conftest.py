from collections.abc import Iterator

import pytest

from headrace.engine.engine import Engine
from headrace.storage.resolve import Stores
from runs.support import engine


@pytest.fixture(scope="session")
def shared() -> Iterator[Engine]:
    """An engine for tests that do not count its calls."""
    with engine() as started:
        yield started


@pytest.fixture
def stores() -> Stores:
    return Stores()
