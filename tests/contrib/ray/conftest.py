"""A real Ray for each module that needs it, and the models of these tests.

This folder must not have an ``__init__.py``: ``import ray`` would find it.
"""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def ray_data() -> Iterator[Any]:
    """The module ``ray.data`` with a private cluster, never one that already runs on the machine."""
    import ray.data

    wanted: dict[str, Any] = {
        "address": "local",
        "num_cpus": 2,
        "include_dashboard": False,
        "log_to_driver": False,
        "logging_level": "ERROR",
        "object_store_memory": 100 * 1024 * 1024,
    }
    try:
        ray.init(**wanted)
    except Exception:
        # Ray waits half a minute for its start, which is too short on a busy machine.
        ray.shutdown()
        ray.init(**wanted)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield ray.data
    ray.shutdown()
