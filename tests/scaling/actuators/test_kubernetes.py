"""The actuator of a Deployment, against an API server on loopback."""

import os
import ssl
import subprocess
import sys
import time

import psutil
import pytest
import trustme

from headrace.core.errors import ActuatorError, ConfigError
from headrace.testing import check_service
from scaling.kubernetes_server import DELETION_COST, TOKEN, Fault, KubernetesServer, Pod
from scaling.records import drained, record

pytest.importorskip("kubernetes")  # part of the dev extra
api = pytest.importorskip("headrace.scaling.actuators.kubernetes_api")
adapter = pytest.importorskip("headrace.scaling.actuators.kubernetes")
DeploymentActuator = adapter.DeploymentActuator

READS = ["GET /apis/apps/v1/namespaces/ml/deployments/workers/scale", "GET /api/v1/namespaces/ml/pods"]
SCALE_PATCH = "PATCH /apis/apps/v1/namespaces/ml/deployments/workers/scale"
REVIEW = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@pytest.fixture(autouse=True)
def no_other_credentials(monkeypatch):
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def server():
    with KubernetesServer(replicas=4) as server:
        yield server


@pytest.fixture
def kubeconfig(server, tmp_path):
    return str(server.write_kubeconfig(tmp_path / "kubeconfig"))


@pytest.fixture
def actuator(server, kubeconfig):
    actuator = DeploymentActuator("ml", "workers", kubeconfig=kubeconfig)
    actuator.start()
    server.requests.clear()
    yield actuator
    actuator.stop()


@pytest.fixture
def follower(server, kubeconfig):
    """Return the actuator of a Deployment that another autoscaler scales."""
    actuator = DeploymentActuator("ml", "workers", kubeconfig=kubeconfig, sets_replicas=False)
    actuator.start()
    server.requests.clear()
    yield actuator
    actuator.stop()


def costs(server):
    """Return the deletion cost of every pod that has one, oldest first."""
    return [int(p.annotations[DELETION_COST]) for p in server.pods.values() if p.annotations]


def idle(pods):
    """Return a record of an idle worker in each of the pods."""
    return [record(f"{pod}-1-ab", host=pod) for pod in pods]


def bring_to_five(actuator):
    """Make all requests of a round."""
    actuator.members([])
    actuator.scale(5)


def test_members_are_the_workers_in_pods_of_the_deployment(server, actuator):
    server.others["of-another-pool"] = Pod("of-another-pool", 99)
    a, b, *_ = server.active
    records = idle([a, b])
    strangers = [record("x", host="of-another-pool"), record("y", host="laptop")]
    members = actuator.members([*strangers, *records])
    assert members.registered == tuple(records)
    assert members.starting == 2


def test_pods_without_a_registered_worker_count_as_starting(server, actuator):
    server.set_replicas(6)
    assert actuator.members(idle(server.active[:1])).starting == 5
    assert actuator.members(idle(server.active)).starting == 0


def test_replicas_without_pods_count_as_starting(server, actuator):
    """The controller of the cluster has not created the pods yet, or the quota forbids them."""
    server.lagging = True
    actuator.members([])
    actuator.scale(9)
    members = actuator.members(idle(server.active))
    assert (len(members.registered), members.starting) == (4, 5)


@pytest.mark.parametrize("change", [{"deleting": True}, {"phase": "Failed"}, {"phase": "Succeeded"}])
def test_worker_of_a_pod_that_ends_is_no_member(server, actuator, change):
    records = idle(server.active)
    for name, value in change.items():
        setattr(server.pods[server.active[0]], name, value)
    assert actuator.members(records).registered == tuple(records[1:])


def test_several_workers_of_a_pod_are_one_replica(server, actuator):
    """A restarted worker has a new record while the old one is not lost yet."""
    a = server.active[0]
    members = actuator.members([record("old", host=a), record("new", host=a)])
    assert (len(members.registered), members.starting) == (2, 3)
    # The pod goes only when both may end.
    actuator.scale(0, [drained("old", host=a)])
    assert costs(server) == [-500] * 3
    assert a in server.active


def test_surplus_pods_are_members_and_no_reason_to_add_replicas(server, actuator):
    """The controller of the cluster has not deleted any pod yet, or a rollout has doubled them."""
    server.lagging = True
    records = idle(server.active)
    server.set_replicas(2)
    members = actuator.members(records)
    assert (len(members.registered), members.starting) == (4, 0)
    actuator.scale(1)
    assert server.replicas == 2
    actuator.scale(1, records[:3])
    assert server.replicas == 1


def test_all_pages_of_pods_are_read(server, actuator, monkeypatch):
    monkeypatch.setattr(api, "PODS_PER_PAGE", 3)
    server.set_replicas(10)
    assert len(actuator.members(idle(server.active)).registered) == 10
    assert server.requests.count(READS[1]) == 4


def test_number_of_pods_is_bounded(server, actuator, monkeypatch):
    monkeypatch.setattr(api, "PODS_MAX", 3)
    with pytest.raises(ActuatorError, match="Deployment ml/workers has more than 3 pods"):
        actuator.members([])


def test_size_of_a_response_is_bounded(server, actuator, monkeypatch):
    monkeypatch.setattr(api, "RESPONSE_BYTES_MAX", 1000)
    with pytest.raises(ActuatorError, match="more than 1000 bytes"):
        actuator.members([])


def test_drained_pods_are_the_ones_that_go(server, actuator):
    """Without costs the newest pods would go."""
    records = idle(server.active)
    a, b, c, d = server.active
    actuator.members(records)
    actuator.scale(2, [drained(records[0].info.name, host=a), drained(records[2].info.name, host=c)])
    assert server.active == [b, d]
    assert actuator.members(records).registered == (records[1], records[3])


def test_costs_are_set_before_the_replicas(server, actuator):
    records = idle(server.active)
    actuator.members(records)
    server.requests.clear()
    actuator.scale(3, records[:1])
    assert server.requests == [
        f"PATCH /api/v1/namespaces/ml/pods/{records[0].info.host}",
        READS[0],
        SCALE_PATCH,
    ]


def test_busy_pod_never_goes(server, actuator):
    """Not even if the number leaves no room for it."""
    a, b, c, d = server.active
    records = [record("a", host=a), record("b", host=b, running=2), record("d", host=d, running=1)]
    actuator.members(records)
    actuator.scale(0, [drained("a", host=a)])
    assert server.active == [b, d]
    assert costs(server) == [-1000, 2, -500, 1]
    assert server.pods[c].deleting


def test_starting_pod_goes_before_an_idle_worker(server, actuator):
    """The newest pod has a worker, the oldest has none yet."""
    _a, b, c, d = server.active
    actuator.members([record("b", host=b, running=1), record("c", host=c), record("d", host=d)])
    actuator.scale(3)
    assert server.active == [b, c, d]


def test_costs_follow_the_jobs(server, actuator):
    a, b, c, d = server.active
    others = [record("c", host=c, running=1), record("d", host=d)]
    actuator.members([record("a", host=a, running=3), record("b", host=b), *others])
    actuator.scale(3, [record("d", host=d)])
    assert costs(server) == [3, 1, -1000]
    server.remove_deleted()
    # The busy worker has become idle, and a drain was taken back.
    server.pods[b].annotations[DELETION_COST] = "-1000"
    actuator.members([record("a", host=a), record("b", host=b, running=1), *others])
    actuator.scale(2, [record("c", host=c)])
    assert costs(server) == [0, 1, -1000]
    assert server.active == [a, b]


def test_cost_of_an_ended_worker_is_set_without_a_change_of_the_number(server, actuator):
    """A pending pod went in its place. The next change takes it."""
    records = idle(server.active)
    actuator.members(records)
    server.requests.clear()
    actuator.scale(4, records[1:2])
    assert server.requests == [f"PATCH /api/v1/namespaces/ml/pods/{records[1].info.host}"]
    assert costs(server) == [-1000]


def test_quiet_round_sends_only_reads(server, actuator):
    records = [record(pod, host=pod, running=2) for pod in server.active]
    for _ in range(2):
        actuator.members(records)
        actuator.scale(4)
    assert server.requests == READS * 2


def test_repeated_end_sends_no_request(server, actuator):
    """The controller of the cluster has not deleted the pod yet."""
    server.lagging = True
    records = idle(server.active)
    actuator.members(records)
    actuator.scale(3, records[:1])
    server.requests.clear()
    actuator.scale(3, records[:1])
    assert server.requests == []
    actuator.members(records)
    actuator.scale(3, records[:1])
    assert server.requests == READS


def test_new_pods_are_wanted_with_one_request(server, actuator):
    actuator.members([record("a", host=server.active[0], running=1)])
    server.requests.clear()
    actuator.scale(7)
    assert len(server.active) == 7
    assert server.requests == [READS[0], SCALE_PATCH]


def test_pool_goes_to_zero_and_comes_back(server, actuator):
    records = idle(server.active)
    actuator.members(records)
    actuator.scale(0, records)
    assert server.active == []
    server.remove_deleted()
    assert actuator.members(records) == adapter.Members(())
    actuator.scale(2)
    server.run_pods()
    assert len(server.active) == 2


# A Deployment that another autoscaler scales


def test_members_are_the_same_if_another_autoscaler_sets_the_replicas(server, follower):
    records = idle(server.active[:3])
    members = follower.members(records)
    assert (members.registered, members.starting) == (tuple(records), 1)
    assert server.requests == READS


def test_idle_pods_go_first_if_another_autoscaler_removes_some(server, follower):
    """Without costs the newest pods would go."""
    a, b, c, d = server.active
    running = {a: 0, b: 1, c: 0, d: 3}
    follower.members([record(pod, host=pod, running=jobs) for pod, jobs in running.items()])
    server.requests.clear()
    follower.scale(2)
    assert server.requests == [f"PATCH /api/v1/namespaces/ml/pods/{pod}" for pod in (b, d)]
    assert (server.replicas, costs(server)) == (4, [1, 3])
    server.set_replicas(2)
    assert server.active == [b, d]


def test_pods_of_drained_workers_go_before_those_without_a_worker_and_idle_ones(server, follower):
    a, b, c, d = server.active
    registered = [record("b", host=b, running=2, drained_by="ops"), drained("c", host=c), record("d", host=d)]
    follower.members(registered)
    follower.scale(3)
    assert costs(server) == [-500, 2, -1000]
    for left in ([a, b, d], [b, d], [b]):
        server.set_replicas(len(left))
        assert server.active == left


@pytest.mark.parametrize("workers", [4, 5])
def test_no_cost_is_set_if_no_pod_is_to_go(server, follower, workers):
    a, b, *_ = server.active
    follower.members([record("a", host=a, running=1), drained("b", host=b)])
    server.requests.clear()
    follower.scale(workers)
    assert (server.requests, server.replicas) == ([], 4)


def test_only_costs_that_changed_are_set_while_pods_are_to_go(server, follower):
    """The other autoscaler waits for its own window before it removes pods."""
    pods = server.active

    def patched(*running):
        """Return the numbers of the pods whose costs two equal rounds set."""
        server.requests.clear()
        for _ in range(2):
            follower.members(
                [record(pod, host=pod, running=jobs) for pod, jobs in zip(pods, running, strict=True)]
            )
            follower.scale(2)
        return [pods.index(each.rpartition("/")[2]) for each in server.requests if each.startswith("PATCH")]

    assert patched(1, 2, 0, 0) == [0, 1]
    assert patched(1, 2, 0, 0) == []
    assert patched(1, 1, 0, 1) == [1, 3]
    assert patched(0, 1, 0, 1) == [0]
    assert [server.pods[pod].cost for pod in pods] == [0, 1, 0, 1]


def test_costs_follow_replicas_that_another_autoscaler_changed(server, follower):
    follower.members([])
    follower.scale(4)
    server.set_replicas(6)
    follower.members([record("a", host=server.active[0], running=1)])
    follower.scale(4)
    assert (costs(server), server.replicas) == ([1] + [-500] * 5, 6)


def test_costs_without_a_count_are_refused(server, follower):
    with pytest.raises(ActuatorError, match="count the members"):
        follower.scale(0)


def test_cost_that_cannot_be_set_is_reported_and_repeated(server, follower):
    a, b, *_ = server.active
    for _ in range(2):
        follower.members([record("a", host=a, running=1), record("b", host=b, running=1)])
        server.fail("PATCH", b, Fault(status=500))
        with pytest.raises(ActuatorError, match=r"set the deletion cost of pod .*500"):
            follower.scale(1)
    follower.scale(1)
    assert costs(server) == [1, 1, -500, -500]


# Failures


def test_pods_that_have_gone_since_the_count_are_no_error(server, actuator):
    records = idle(server.active)
    actuator.members(records)
    del server.pods[records[0].info.host]
    actuator.scale(3, records[:1])
    assert server.replicas == 3


def test_change_by_hand_during_a_round_wins_and_is_reported(server, actuator):
    records = idle(server.active)
    actuator.members(records)
    server.set_replicas(6)
    with pytest.raises(ActuatorError, match="changed from 4 to 6 while they were to become 3"):
        actuator.scale(3, records[:1])
    assert server.replicas == 6
    actuator.members(records)
    actuator.scale(3, records[:1])
    assert server.replicas == 3


def test_conflict_is_reported_and_the_next_round_succeeds(server, actuator):
    """Something else changes the Deployment between the last read and the change."""
    actuator.members([])

    def change_meanwhile():
        server.version += 1

    server.on_scale_patch = change_meanwhile
    with pytest.raises(ActuatorError, match="cannot set 5 replicas of Deployment ml/workers: 409 Conflict"):
        actuator.scale(5)
    assert server.replicas == 4
    server.on_scale_patch = None
    actuator.members([])
    actuator.scale(5)
    assert server.replicas == 5


def test_status_changes_between_the_reads_are_no_conflict(server, actuator):
    """The version of the Deployment changes whenever a pod becomes ready."""
    actuator.members([])
    server.run_pods()
    actuator.scale(5)
    assert server.replicas == 5


@pytest.mark.parametrize("end", ["/scale", "/pods"])
def test_outage_of_a_read_is_reported(server, actuator, end):
    server.fail("GET", end, Fault(status=500))
    with pytest.raises(ActuatorError, match=r"500 .*the fault of a test; the next round repeats it"):
        actuator.members([])
    assert len(server.requests) <= 2  # no retries
    assert actuator.members([]).starting == 4


def test_scaling_without_a_count_is_refused(server, actuator):
    """Costs of an old count could end a busy pod."""
    actuator.members([])
    server.fail("GET", "/scale", Fault(status=503))
    with pytest.raises(ActuatorError):
        actuator.members([])
    with pytest.raises(ActuatorError, match="count the members"):
        actuator.scale(0)
    assert server.replicas == 4


def test_outage_of_a_change_is_reported_and_repeated(server, actuator):
    records = idle(server.active)
    for end in (records[0].info.host, "/scale"):
        actuator.members(records)
        server.fail("PATCH", end, Fault(status=500))
        with pytest.raises(ActuatorError, match="500"):
            actuator.scale(3, records[:1])
        assert server.replicas == 4
    actuator.members(records)
    actuator.scale(3, records[:1])
    assert records[0].info.host not in server.active


def test_change_whose_response_is_lost_is_not_made_twice(server, actuator):
    records = idle(server.active)
    actuator.members(records)
    server.fail("PATCH", "/scale", Fault(status=504, after=True))
    with pytest.raises(ActuatorError, match="504"):
        actuator.scale(3, records[:1])
    server.remove_deleted()
    server.requests.clear()
    assert len(actuator.members(records).registered) == 3
    actuator.scale(3)
    assert server.requests == READS


@pytest.mark.parametrize(("method", "end"), [("GET", "/scale"), ("GET", "/pods"), ("PATCH", "/scale")])
def test_server_that_hangs_is_not_waited_for(server, kubeconfig, method, end):
    actuator = DeploymentActuator("ml", "workers", kubeconfig=kubeconfig, timeout_s=0.5)
    actuator.start()
    server.fail(method, end, Fault(hang=True))
    began_s = time.monotonic()
    with pytest.raises(
        ActuatorError, match=r"127\.0\.0\.1:\d+ did not respond \(limit 0\.5 s\): .*timed out"
    ):
        bring_to_five(actuator)
    assert time.monotonic() - began_s < 10
    actuator.stop()


def test_absent_server_is_reported(server, kubeconfig, actuator):
    server.__exit__()
    actuator.stop()
    with pytest.raises(ActuatorError, match=r"cannot read the scale of Deployment ml/workers: .*refused"):
        actuator.start()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"<html>a proxy</html>", "sent no object of Kubernetes"),
        (b"{}", "sent no object of Kubernetes"),
        (b'{"metadata": {}, "spec": {}, "status": {}}', "no selector of pods"),
    ],
)
def test_strange_response_is_reported(server, actuator, body, reason):
    server.fail("GET", "/scale", Fault(body=body))
    with pytest.raises(ActuatorError, match=reason):
        actuator.members([])


@pytest.mark.parametrize(
    ("forbidden", "what"),
    [
        (("get", "deployments/scale"), 'read the scale of .*403 .*cannot get resource "deployments/scale"'),
        (("list", "pods"), 'list the pods of .*403 .*cannot list resource "pods"'),
        (("patch", "deployments/scale"), "does not allow the account to patch deployments/scale, "),
        (("patch", "pods"), "does not allow the account to patch pods, "),
    ],
)
def test_start_names_the_missing_rights(server, kubeconfig, forbidden, what):
    server.forbidden.add(forbidden)
    actuator = DeploymentActuator("ml", "workers", kubeconfig=kubeconfig)
    with pytest.raises(ActuatorError, match=what) as caught:
        actuator.start()
    assert "Deployment ml/workers" in str(caught.value)
    assert str(caught.value).endswith(
        "allow its account to get and patch deployments/scale, and to list and patch pods, in namespace ml"
    )
    with pytest.raises(ActuatorError, match="is not running"):
        actuator.members([])


@pytest.mark.parametrize(
    ("forbidden", "what"),
    [
        (("get", "deployments/scale"), 'read the scale of .*403 .*cannot get resource "deployments/scale"'),
        (("list", "pods"), 'list the pods of .*403 .*cannot list resource "pods"'),
        (("patch", "pods"), "does not allow the account to patch pods, "),
    ],
)
def test_start_names_the_rights_that_costs_need(server, kubeconfig, forbidden, what):
    server.forbidden.add(forbidden)
    actuator = DeploymentActuator("ml", "workers", kubeconfig=kubeconfig, sets_replicas=False)
    with pytest.raises(ActuatorError, match=what) as caught:
        actuator.start()
    assert str(caught.value).endswith(
        "allow its account to get deployments/scale, and to list and patch pods, in namespace ml"
    )


def test_costs_need_no_right_to_scale(server, kubeconfig):
    server.forbidden.add(("patch", "deployments/scale"))
    actuator = DeploymentActuator("ml", "workers", kubeconfig=kubeconfig, sets_replicas=False)
    actuator.start()
    assert server.requests == [*READS, REVIEW]
    server.forbidden.add(("patch", "pods"))
    actuator.members([record("a", host=server.active[0], running=1)])
    with pytest.raises(ActuatorError, match=r"403 .*to get deployments/scale, and to list and patch pods"):
        actuator.scale(3)
    actuator.stop()


def test_controller_that_only_sets_costs_is_replaced_soon(kubeconfig):
    assert DeploymentActuator("ml", "workers", kubeconfig=kubeconfig).call_s_max == 60.0
    actuator = DeploymentActuator("ml", "workers", kubeconfig=kubeconfig, timeout_s=7.0, sets_replicas=False)
    assert actuator.call_s_max == 7.0


def test_rights_may_be_lost_later(server, actuator):
    actuator.members([])
    server.forbidden.add(("patch", "deployments/scale"))
    with pytest.raises(ActuatorError, match=r"403 .*to get and patch deployments/scale"):
        actuator.scale(5)


def test_start_works_without_reviews_of_rights(server, kubeconfig):
    server.reviews = False
    actuator = DeploymentActuator("ml", "workers", kubeconfig=kubeconfig)
    actuator.start()
    assert REVIEW in server.requests
    actuator.stop()


def test_unknown_deployment_is_reported(server, kubeconfig):
    with pytest.raises(ActuatorError, match=r"Deployment ml/other: 404 .*check the name and the namespace"):
        DeploymentActuator("ml", "other", kubeconfig=kubeconfig).start()


def test_wrong_credentials_are_reported(server, tmp_path):
    path = server.write_kubeconfig(tmp_path / "kubeconfig", token="old")
    with pytest.raises(ActuatorError, match=r"401 .*renew the credentials"):
        DeploymentActuator("ml", "workers", kubeconfig=str(path)).start()


@pytest.mark.parametrize(
    ("namespace", "name"), [("", "w"), ("ml", ""), ("ml", "a/b"), ("Ml", "w"), ("ml", "w\n")]
)
def test_malformed_names_are_refused(namespace, name):
    with pytest.raises(ConfigError, match=r"is no name of a (namespace|Deployment)"):
        DeploymentActuator(namespace, name)


@pytest.mark.parametrize("content", [None, "", "a: [", "kind: Config", "[]"])
def test_missing_credentials_are_a_configuration_error(monkeypatch, tmp_path, content):
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(ConfigError, match=r"no credentials for Kubernetes: .*kubeconfig.* cannot be used"):
        DeploymentActuator("ml", "workers").start()


def test_kubeconfig_is_found_by_the_variable_and_in_the_home_folder(server, monkeypatch, tmp_path):
    folder = tmp_path / ".kube"
    folder.mkdir()
    path = server.write_kubeconfig(folder / "config")
    for name, value in (("KUBECONFIG", str(path)), ("HOME", str(tmp_path))):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            actuator = DeploymentActuator("ml", "workers")
            actuator.start()
            actuator.stop()


def test_credentials_of_the_pod_come_first(monkeypatch, tmp_path):
    """A pod has a token, the certificate of the server, and its address in variables."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "kubeconfig").write_text("wrong")
    loader = pytest.importorskip("kubernetes.config.incluster_config")
    monkeypatch.setattr(loader, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(loader, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with KubernetesServer(replicas=2, tls=context) as server:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
        actuator = DeploymentActuator("ml", "workers")
        actuator.start()
        assert actuator.members([]).starting == 2
        actuator.stop()
        # A named kubeconfig comes before them.
        with pytest.raises(ConfigError):
            DeploymentActuator("ml", "workers", kubeconfig=str(tmp_path / "kubeconfig")).start()


def test_start_reads_once(server, kubeconfig):
    actuator = DeploymentActuator("ml", "workers", kubeconfig=kubeconfig)
    actuator.start()
    actuator.start()
    assert server.requests == [*READS, REVIEW, REVIEW]
    actuator.stop()


def test_stop_closes_the_connections(server, kubeconfig):
    actuator = DeploymentActuator("ml", "workers", kubeconfig=kubeconfig)

    def connections():
        found = psutil.Process().net_connections("tcp")
        return [each for each in found if each.raddr and each.raddr.port == server.port]

    actuator.start()
    # The other ends are in this process too, but their remote port is another.
    assert len(connections()) == 1
    client = actuator._open._client  # the end of its life would close its connections too
    actuator.stop()
    assert connections() == []
    client.close()


def test_actuator_is_a_service_that_chooses(server, kubeconfig):
    check_service(lambda: DeploymentActuator("ml", "workers", kubeconfig=kubeconfig))
    actuator = DeploymentActuator("ml", "workers", kubeconfig=kubeconfig)
    assert (actuator.ends_chosen, actuator.scaled_by_others) == (True, False)


def test_actuator_of_costs_is_a_service_that_cannot_choose(server, kubeconfig):
    def follower():
        return DeploymentActuator("ml", "workers", kubeconfig=kubeconfig, sets_replicas=False)

    check_service(follower)
    assert (follower().ends_chosen, follower().scaled_by_others) == (False, True)


def test_missing_package_names_its_extra():
    code = (
        "import sys; sys.modules['kubernetes'] = None\n"
        "from headrace.core.errors import MissingExtraError\n"
        "try:\n    import headrace.scaling.actuators.kubernetes\n"
        "except MissingExtraError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert "pip install 'headrace[kubernetes]'" in done.stdout
