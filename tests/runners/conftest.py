"""Leave the tests that import Ray or Beam to `make test-all`, which installs them."""

from pathlib import Path

import pytest

from runs.conftest import shared, stores

__all__ = ["shared", "stores"]

NEED_ENGINES = {"test_beam.py", "test_cluster.py", "test_ray.py"}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.getoption("--level") == "test" and collection_path.name in NEED_ENGINES else None
