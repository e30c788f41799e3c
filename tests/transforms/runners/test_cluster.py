"""How a cluster is joined and left, and what Ray's errors mean. Work on real clusters is in test_ray.py."""

import logging
from typing import Any

import pytest
import ray

from headrace.core.errors import ConfigError
from headrace.transforms.runners.cluster import Cluster, how_ended, lost_with_others


@pytest.fixture
def asked(monkeypatch) -> list[dict[str, Any]]:
    """What `ray.init` was asked, and `ray.shutdown` as an empty dict; nothing is started."""
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: asked.append(options))
    monkeypatch.setattr(ray, "shutdown", lambda: asked.append({}))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return asked


@pytest.mark.parametrize(
    ("address", "environ", "used"),
    [(None, None, "local"), (None, "10.0.0.1:6379", "10.0.0.1:6379"), ("10.0.0.2:6379", "10.0.0.1:6379", "10.0.0.2:6379")],
)  # fmt: skip
def test_without_an_address_no_cluster_is_joined_by_chance(asked, monkeypatch, address, environ, used):
    """Ray itself would join whatever was last started on this machine."""
    if environ:
        monkeypatch.setenv("RAY_ADDRESS", environ)
    Cluster(address).join()
    assert [options["address"] for options in asked] == [used]


def test_what_was_joined_is_left_once(asked):
    cluster = Cluster(None)
    cluster.leave()
    assert asked == []
    cluster.join()
    cluster.leave()
    cluster.leave()
    assert len(asked) == 2
    assert asked[1] == {}


def test_what_others_joined_stays_joined(asked, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    cluster = Cluster("10.0.0.1:6379")
    cluster.join()
    cluster.leave()
    assert asked == []


def test_one_that_cannot_be_joined_says_so_and_is_left(asked, monkeypatch):
    """Ray may have started half of it."""

    def init(**_: Any) -> None:
        raise ConnectionError("nobody there")

    monkeypatch.setattr(ray, "init", init)
    cluster = Cluster(None)
    with pytest.raises(ConfigError, match="cannot be reached or started: nobody there"):
        cluster.join()
    cluster.leave()
    assert asked == [{}]


def test_rays_client_is_refused_however_it_is_named(asked, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with pytest.raises(ConfigError, match="ray://head:10001"):
        Cluster(None).join()
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray.util.client.ray, "is_connected", lambda: True)
    with pytest.raises(ConfigError, match="ray://"):
        Cluster(None).join()
    assert asked == []


@pytest.mark.parametrize(
    ("said", "heard"),
    [(logging.INFO, logging.ERROR), (logging.DEBUG, logging.DEBUG), (logging.WARNING, logging.WARNING)],
)
def test_it_begins_quietly_unless_somebody_said_how_loud(asked, monkeypatch, said, heard):
    logger = logging.getLogger("ray")
    levels: list[int] = []
    monkeypatch.setattr(ray, "init", lambda **_: levels.append(logger.level))
    before = logger.level
    logger.setLevel(said)
    try:
        Cluster(None).join()
        assert (levels, logger.level) == ([heard], said)
    finally:
        logger.setLevel(before)


def test_what_took_others_with_it_is_no_tasks_fault(monkeypatch):
    known = [{"NodeID": "n1", "Alive": False}, {"NodeID": "n2", "Alive": True}]
    monkeypatch.setattr(ray, "nodes", lambda: known)
    error = ray.exceptions.RayActorError
    died = error(error_msg="its worker process has died")
    assert [lost_with_others(node, died) for node in ("n1", "n2", None)] == [True, False, False]
    # One that had not begun: only Ray's words tell where it was.
    assert lost_with_others(None, error(error_msg="The actor died because its node has died."))
    assert lost_with_others("n2", error(error_msg="its worker process has died", preempted=True))
    assert lost_with_others("n2", ray.exceptions.ActorUnavailableError("", b"\0" * 16))
    assert not lost_with_others("n2", None)


def test_how_a_worker_ended_is_the_last_that_ray_says_without_its_guesses():
    words = "The actor died.\n\tclass_name: Actor\nIt was killed. Some common causes include: many\n \n"
    assert how_ended(ray.exceptions.RayActorError(error_msg=words)) == "(It was killed.)"
    assert how_ended(ValueError()) == "(ValueError)"
    assert how_ended(None) == "without a word"
