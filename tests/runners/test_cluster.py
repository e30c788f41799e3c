"""Joining and leaving a cluster, and the meaning of Ray's errors. test_ray.py has real clusters."""

import logging
from typing import Any

import pytest
import ray

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.runners.cluster import Cluster, exit_reason, is_node_failure

pytestmark = pytest.mark.slow


@pytest.fixture
def calls(monkeypatch) -> list[dict[str, Any]]:
    """The arguments of `ray.init` calls, and {} for `ray.shutdown`; nothing is started."""
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: calls.append(options))
    monkeypatch.setattr(ray, "shutdown", lambda: calls.append({}))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return calls


@for_each(
    ("address", "environ", "used"),
    [
        (None, None, "local"),
        (None, "10.0.0.1:6379", "10.0.0.1:6379"),
        ("10.0.0.2:6379", "10.0.0.1:6379", "10.0.0.2:6379"),
    ],
)
def test_missing_address_joins_no_running_cluster(calls, monkeypatch, address, environ, used):
    """Ray itself would join the cluster that was last started on this machine."""
    if environ:
        monkeypatch.setenv("RAY_ADDRESS", environ)
    Cluster(address).join()
    assert calls.pop()["address"] == used
    assert calls == []


def test_joined_cluster_is_left_once(calls):
    cluster = Cluster(None)
    cluster.leave()
    assert calls == []
    cluster.join()
    cluster.leave()
    cluster.leave()
    assert len(calls) == 2
    assert calls[1] == {}


def test_cluster_joined_before_stays_joined(calls, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    cluster = Cluster("10.0.0.1:6379")
    cluster.join()
    cluster.leave()
    assert calls == []


def test_failed_join_is_an_error_and_left(calls, monkeypatch):
    """Ray may have started a part of the cluster."""

    def init(**_: Any) -> None:
        raise ConnectionError("nobody there")

    monkeypatch.setattr(ray, "init", init)
    cluster = Cluster(None)
    with pytest.raises(ConfigError, match="cannot be reached or started: nobody there"):
        cluster.join()
    cluster.leave()
    assert calls == [{}]


def test_ray_client_is_refused(calls, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with pytest.raises(ConfigError, match="ray://head:10001"):
        Cluster(None).join()
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray.util.client.ray, "is_connected", lambda: True)
    with pytest.raises(ConfigError, match="ray://"):
        Cluster(None).join()
    assert calls == []


@for_each(
    ("configured", "effective"),
    [(logging.INFO, logging.ERROR), (logging.DEBUG, logging.DEBUG), (logging.WARNING, logging.WARNING)],
)
def test_start_is_quiet_unless_the_log_level_is_set(calls, monkeypatch, configured, effective):
    logger = logging.getLogger("ray")
    levels: list[int] = []
    monkeypatch.setattr(ray, "init", lambda **_: levels.append(logger.level))
    before = logger.level
    logger.setLevel(configured)
    try:
        Cluster(None).join()
        assert (levels, logger.level) == ([effective], configured)
    finally:
        logger.setLevel(before)


def test_node_failures_are_recognized(monkeypatch):
    known = [{"NodeID": "n1", "Alive": False}, {"NodeID": "n2", "Alive": True}]
    monkeypatch.setattr(ray, "nodes", lambda: known)
    error = ray.exceptions.RayActorError
    died = error(error_msg="its worker process has died")
    assert [is_node_failure(node, died) for node in ("n1", "n2", None)] == [True, False, False]
    # For a worker that had not started, only the message tells.
    assert is_node_failure(None, error(error_msg="The actor died because its node has died."))
    assert is_node_failure("n2", error(error_msg="its worker process has died", preempted=True))
    assert is_node_failure("n2", ray.exceptions.ActorUnavailableError("", b"\0" * 16))
    assert not is_node_failure("n2", None)


def test_exit_reason_is_the_last_line_of_rays_message():
    words = "The actor died.\n\tclass_name: Actor\nIt was killed. Some common causes include: many\n \n"
    assert exit_reason(ray.exceptions.RayActorError(error_msg=words)) == "(It was killed.)"
    assert exit_reason(ValueError()) == "(ValueError)"
    assert exit_reason(None) == "without a message"
