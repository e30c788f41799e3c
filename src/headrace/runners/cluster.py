"""Connect to the Ray cluster of a run's workers, and query it. The only module that imports Ray."""

import logging
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

from headrace.core.errors import ConfigError, MissingExtraError
from headrace.runners.engines import reject_client_address

try:
    import ray as _ray
    import ray.exceptions as _exceptions
except ImportError as _error:
    raise MissingExtraError("ray", "a transform on Ray") from _error

ray: Any = _ray
exceptions: Any = _exceptions

_DEFAULT_LEVEL: Final = logging.INFO
"""The log level that the import of Ray sets; with any other, the user has configured it."""
_LOCAL_ADDRESS: Final = "local"
"""Ray's address for a new cluster on this machine, without usage statistics."""
_REGION_LABEL: Final = "ray.io/region"
"""The label of a node's region, by Ray's convention."""


class Cluster:
    """A connection to a Ray cluster. If this process is connected already, it stays connected.

    Args:
        address: The cluster's address. None: RAY_ADDRESS, else a cluster on this machine until `leave`.
    """

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._joined = False

    def join(self) -> None:
        """Connect, unless connected.

        Raises ConfigError for an unreachable cluster and for Ray's client.
        """
        if not ray.is_initialized():
            self._join()
        elif ray.util.client.ray.is_connected():
            reject_client_address("ray://")

    def _join(self) -> None:
        # Without an address, Ray would join the cluster that was last started on this machine.
        address = self._address or os.environ.get("RAY_ADDRESS") or _LOCAL_ADDRESS
        reject_client_address(address)
        self._joined = True
        try:
            with _quiet():
                ray.init(
                    address=address,
                    include_dashboard=False if address == _LOCAL_ADDRESS else None,
                    configure_logging=False,
                    log_to_driver=False,
                )
        except (OSError, ValueError, RuntimeError, exceptions.RayError) as error:
            raise ConfigError(f"Ray cannot be reached or started: {error}") from error

    def leave(self) -> None:
        """Disconnect, if `join` connected."""
        if self._joined:
            self._joined = False
            ray.shutdown()

    @staticmethod
    def resources() -> Mapping[str, float]:
        """Return the total resources of the cluster, by Ray's names."""
        return cast("dict[str, float]", ray.cluster_resources())


def worker_location() -> tuple[str, str | None]:
    """Return the node of the calling worker, and the region of the node's label."""
    context: Any = ray.get_runtime_context()
    return context.get_node_id(), context.get_node_labels().get(_REGION_LABEL)


def is_node_failure(node: str | None, error: Exception | None) -> bool:
    """Return True if the worker's machine failed or is unreachable, so that no task is to blame."""
    if isinstance(error, exceptions.ActorUnavailableError) or getattr(error, "preempted", False):
        return True
    # For a worker without a known node, only the message tells.
    if "its node has died" in str(error):
        return True
    nodes = cast("list[dict[str, Any]]", ray.nodes())
    return any(known["NodeID"] == node and not known["Alive"] for known in nodes)


def exit_reason(error: Exception | None) -> str:
    """Return the reason of a worker's exit: the last line of Ray's message, without its guesses."""
    if error is None:
        return "without a message"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    last_line = lines[-1] if lines else type(error).__name__
    return f"({last_line.partition(' Some common causes')[0]})"


@contextmanager
def _quiet() -> Generator[None]:
    """Suppress the warnings that Ray logs at each start, unless its log level is configured."""
    logger = logging.getLogger("ray")
    before = logger.level
    if before in {logging.NOTSET, _DEFAULT_LEVEL}:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
