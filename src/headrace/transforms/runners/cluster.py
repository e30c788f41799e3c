"""The Ray cluster that a run's workers are placed in: joined and left, and asked what it has and has lost. The one door to ray."""

import logging
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

from headrace.core.errors import ConfigError, MissingExtraError
from headrace.transforms.runners.engines import refuse_client

try:
    import ray as _ray
    import ray.exceptions as _exceptions
except ImportError as _error:
    raise MissingExtraError("ray", "a transform on Ray") from _error

ray: Any = _ray
exceptions: Any = _exceptions

_RAYS_LEVEL: Final = logging.INFO
"""What importing it sets: nobody has said how loud it should be."""
_OWN: Final = "local"
"""Ray's word for a cluster of its own on this machine; it says nothing of it to Ray's makers."""
_REGION_LABEL: Final = "ray.io/region"
"""Of a node: where it is, by Ray's own convention."""


class Cluster:
    """The way to a cluster, which this process may have joined already: then it stays joined.

    Args:
        address: Where it is; None: where RAY_ADDRESS says, else one on this machine, until it is left.
    """

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._joined = False

    def join(self) -> None:
        """Join it, unless this process has. Raises ConfigError when it cannot be reached or started, and for Ray's client."""
        if not ray.is_initialized():
            self._join()
        elif ray.util.client.ray.is_connected():
            refuse_client("ray://")

    def _join(self) -> None:
        # Without an address, Ray would join whatever was last started on this machine.
        address = self._address or os.environ.get("RAY_ADDRESS") or _OWN
        refuse_client(address)
        self._joined = True
        try:
            with _quiet():
                ray.init(
                    address=address,
                    include_dashboard=False if address == _OWN else None,
                    configure_logging=False,
                    log_to_driver=False,
                )
        except (OSError, ValueError, RuntimeError, exceptions.RayError) as error:
            raise ConfigError(f"Ray cannot be reached or started: {error}") from error

    def leave(self) -> None:
        """Leave it, if `join` joined it."""
        if self._joined:
            self._joined = False
            ray.shutdown()

    @staticmethod
    def resources() -> Mapping[str, float]:
        """What it has altogether, by Ray's names, whether anybody uses it or not."""
        return cast("dict[str, float]", ray.cluster_resources())


def where() -> tuple[str, str | None]:
    """Of the worker that this is asked in: its node, and the region that this is labelled with."""
    context: Any = ray.get_runtime_context()
    return context.get_node_id(), context.get_node_labels().get(_REGION_LABEL)


def lost_with_others(node: str | None, error: Exception | None) -> bool:
    """Whether a worker's whole machine has gone, or it cannot be reached: then it was nothing that it did."""
    if isinstance(error, exceptions.ActorUnavailableError) or getattr(error, "preempted", False):
        return True
    # One that had not yet said where it is has only these words.
    if "its node has died" in str(error):
        return True
    nodes = cast("list[dict[str, Any]]", ray.nodes())
    return any(known["NodeID"] == node and not known["Alive"] for known in nodes)


def how_ended(error: Exception | None) -> str:
    """How a worker ended, in the last line of what Ray says, without its guesses."""
    if error is None:
        return "without a word"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = lines[-1] if lines else type(error).__name__
    return f"({said.partition(' Some common causes')[0]})"


@contextmanager
def _quiet() -> Generator[None]:
    """Ray warns at each start, on stderr, of what it chose; unless somebody has said how loud it should be."""
    logger = logging.getLogger("ray")
    before = logger.level
    if before in {logging.NOTSET, _RAYS_LEVEL}:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
