"""The chart and the manifests of kustomize: valid, equal, complete, and restricted."""

import itertools
import re
from typing import Any

import click
import pytest
import yaml

import headrace
from cases import for_each
from deploy.manifests import (
    KUSTOMIZE,
    ChartError,
    charted,
    check_all,
    kustomized,
    one,
    pods_of,
    render_manifests,
    with_components,
)
from headrace.cli.main import load_command

pytest.importorskip("helm_python")
pytestmark = pytest.mark.slow

CA_BUNDLE = "Y2hhbmdlIG1l"
COMPONENTS: dict[str, dict[str, Any]] = {
    "gpu-workers": {"worker": {"gpus": 1}},
    "keda": {"scaling": {"by": "keda"}},
    "external-metrics": {"scaling": {"by": "hpa", "caBundle": CA_BUNDLE}},
    "service-monitor": {"serviceMonitor": {"enabled": True}},
    "server-metrics": {"server": {"autoscaling": {"by": "requests"}}},
    "server-busy-share": {"server": {"autoscaling": {"by": "busy"}}},
}
"""The values of the chart that mean the same as each component."""
VALUES: dict[str, dict[str, Any]] = {
    "the defaults": {},
    **COMPONENTS,
    "a fixed number": {
        "scaling": {"by": "none"},
        "worker": {"replicas": 3},
        "server": {"autoscaling": {"enabled": False}},
    },
    "workers alone": {"api": {"enabled": False}, "server": {"enabled": False}},
    "an API alone": {"worker": {"enabled": False}, "server": {"enabled": False}},
    "everything": {
        "image": {"repository": "registry.example/headrace", "tag": "1.2.3", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "registry"}],
        "models": ["/models/churn", "spam=s3://models/spam.onnx"],
        "modelVolume": {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}},
        "cacheVolume": {"hostPath": {"path": "/var/cache/models", "type": "DirectoryOrCreate"}},
        "serviceAccount": {"annotations": {"cloud.example/role": "reader"}},
        "api": {"options": {"keep-days": 14, "events-queue": "https://sqs.example/1/events"}},
        "worker": {
            "gpus": 2,
            "nodeSelector": {"gpu": "l4"},
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "options": {"queue": ["night", "day"], "drain-grace-s": 600, "memory-bytes-max": 1073741824},
        },
        "server": {
            "gpus": 1,
            "maxSurge": 2,
            "options": {"access-log": True, "warm-up": None},
            "autoscaling": {"by": "requests", "inFlightRequests": 4, "minReplicas": 1},
        },
        "scaling": {"by": "keda", "workers": "2..20", "options": {"pool": "gpu", "target-wait-s": 600}},
        "networkPolicy": {"clients": [{"namespaceSelector": {"matchLabels": {"team": "web"}}}]},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    },
}
WRITABLE = {"/tmp", "/var/cache/headrace"}


def container_of(manifests: list[dict[str, Any]], component: str) -> dict[str, Any]:
    """Return the only container of the pods of a component."""
    template = dict(pods_of(manifests))[f"headrace-{component}"]
    (container,) = template["spec"]["containers"]
    return container


def by_identity(manifests: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return objects by their kinds and names, which differ."""
    found = {(each["kind"], each["metadata"]["name"]): each for each in manifests}
    assert len(found) == len(manifests)
    return found


def merged(*values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of several components together; they have no keys in common."""
    return {name: value for each in values for name, value in each.items()}


def test_base_is_the_rendered_chart():
    render_manifests("--check")


@pytest.mark.parametrize(
    "components",
    [(), *((name,) for name in COMPONENTS), ("gpu-workers", "keda", "service-monitor", "server-metrics")],
    ids=lambda names: "+".join(names) or "base",
)
def test_components_are_values_of_the_chart(tmp_path, components):
    values = merged(*(COMPONENTS[name] for name in components))
    built = with_components(tmp_path, *components)
    assert by_identity(built) == by_identity(charted(values))
    check_all(built, "+".join(components))


def test_components_are_all_compared():
    assert {path.name for path in (KUSTOMIZE / "components").iterdir()} == COMPONENTS.keys()


def test_overlay_of_the_example_has_its_namespace_images_and_models():
    built = kustomized(KUSTOMIZE / "overlays" / "example")
    check_all(built, "example")
    others = [each for each in built if each["kind"] != "Namespace"]
    assert {each["metadata"]["namespace"] for each in others} == {"predictions"}
    (subject,) = one(built, "RoleBinding", "headrace-scale")["subjects"]
    assert subject["namespace"] == "predictions"
    (trigger,) = one(built, "ScaledObject", "headrace-worker")["spec"]["triggers"]
    assert trigger["metadata"]["scalerAddress"] == "headrace-scale.predictions.svc:9090"
    images = {name: container_of(built, name)["image"] for name in ("api", "scale", "server", "worker")}
    tag = headrace.__version__
    plain = f"registry.example/headrace:{tag}"
    cuda = f"registry.example/headrace-cuda:{tag}"
    assert images == {"api": plain, "scale": plain, "server": plain, "worker": cuda}
    for name in ("server", "worker"):
        assert container_of(built, name)["args"][1] == "s3://churn-models/production/"


def test_external_metrics_follow_the_namespace(tmp_path):
    built = with_components(tmp_path, "external-metrics", namespace="other")
    namespaces = {each["metadata"].get("namespace") for each in built if each["kind"] != "APIService"}
    assert namespaces == {"other"}
    service = one(built, "APIService", "v1beta1.external.metrics.k8s.io")["spec"]["service"]
    assert service == {"name": "headrace-scale", "namespace": "other", "port": 443}


def test_chart_has_the_version_of_headrace():
    chart = yaml.safe_load((KUSTOMIZE / "chart" / "Chart.yaml").read_text())
    assert chart["appVersion"] == headrace.__version__


@pytest.mark.parametrize("of", VALUES)
def test_chart_renders_valid_objects(of):
    manifests = charted(VALUES[of])
    by_identity(manifests)
    check_all(manifests, of)


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("HorizontalPodAutoscaler", "averageValue", "averagevalue"),
        ("APIService", "versionPriority", "versionpriority"),
        ("ScaledObject", "cooldownPeriod", "cooldown"),
        ("ScaledObject", "type: external-push", "kind: external-push"),
        ("ServiceMonitor", "interval", "period"),
    ],
)
def test_misspelt_field_is_found(kind, old, new):
    (manifest,) = (
        each
        for component in COMPONENTS.values()
        for each in charted(component)
        if each["kind"] == kind and each["metadata"]["name"] != "headrace-server"
    )
    text = yaml.safe_dump(manifest)
    assert old in text
    with pytest.raises(AssertionError, match=new.split(":", maxsplit=1)[0].lower()):
        check_all([yaml.safe_load(text.replace(old, new))], kind)


def test_values_of_the_documentation_are_valid():
    page = (KUSTOMIZE.parent.parent / "docs" / "deployment.md").read_text()
    fences = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    assert len(fences) == 1
    for values in fences:
        check_all(charted(values), "docs/deployment.md")


def test_names_are_those_of_the_release():
    named = {"environmentSecret": "environment", "settingsSecret": "settings"}
    monitor = {"enabled": True, "keySecret": "monitor-key"}
    values = {**named, **COMPONENTS["keda"], "image": {"repository": "image"}, "serviceMonitor": monitor}
    manifests = charted(values, "churn", "ml")
    names = {each["metadata"]["name"] for each in manifests}
    assert names == {"churn", "churn-api", "churn-worker", "churn-server", "churn-scale"}
    assert {each["metadata"]["namespace"] for each in manifests} == {"ml"}
    # Only containers, a label and folders of the image have another name.
    texts = set(re.findall(r"'[^']*headrace[^']*'", str(manifests)))
    assert {text for text in texts if "/headrace" not in text} == {"'headrace'"}


@for_each(
    ("values", "what"),
    [
        ({"workers": {}}, "workers"),
        ({"worker": {"gpu": 1}}, "gpu"),
        ({"scaling": {"by": "knative"}}, "by"),
        ({"scaling": {"workers": "8"}}, "workers"),
        ({"server": {"autoscaling": {"by": "gpu"}}}, "by"),
        ({"server": {"autoscaling": {"minReplicas": 0}}}, "minReplicas"),
        ({"server": {"autoscaling": {"inFlightRequests": 0}}}, "inFlightRequests"),
        ({"server": {"autoscaling": {"busyPercent": 0}}}, "busyPercent"),
        ({"server": {"autoscaling": {"busyPercent": 100}}}, "busyPercent"),
        ({"worker": {"options": {"--queue": "a"}}}, "queue"),
        ({"models": []}, "models"),
        ({"worker": {"options": {"drain-grace-s": "1m"}}}, "drain-grace-s"),
    ],
)
def test_wrong_value_is_refused(values, what):
    with pytest.raises(ChartError, match=what):
        charted(values)


def test_external_metrics_need_a_ca():
    with pytest.raises(ChartError, match=r"scaling\.caBundle"):
        charted({"scaling": {"by": "hpa"}})


def test_options_become_arguments():
    options = {
        "keep-days": 14,
        "default-deadline-s": 12345678,
        "lease-s": 0.5,
        "allow-host": ["a.example", "b.example"],
        "region": "eu: west",
        "verbose": True,
        "no-metrics": False,
        "concurrency": None,
    }
    assert container_of(charted({"api": {"options": options}}), "api")["args"][-8:] == [
        "--log-format=json",
        "--allow-host=a.example",
        "--allow-host=b.example",
        "--default-deadline-s=12345678",
        "--keep-days=14",
        "--lease-s=0.5",
        "--region=eu: west",
        "--verbose",
    ]


def test_controller_has_the_queues_and_slots_of_the_workers():
    values = {"worker": {"options": {"queue": ["night", "day"], "concurrency": 2}}}
    assert {"--queue=night", "--queue=day", "--slots=2"} <= set(
        container_of(charted(values), "scale")["args"]
    )
    given = {**values, "scaling": {"options": {"slots": 3}}}
    arguments = container_of(charted(given), "scale")["args"]
    assert [each for each in arguments if each.startswith("--slots")] == ["--slots=3"]


@pytest.mark.parametrize("of", VALUES)
def test_commands_accept_their_arguments(of):
    for name, template in pods_of(charted(VALUES[of])):
        for container in template["spec"]["containers"]:
            command, *arguments = container["args"]
            loaded = load_command(command)
            if isinstance(loaded, click.Group):
                loaded = loaded.commands[arguments.pop(0)]
            context = loaded.make_context(command, list(arguments))
            assert context.params["log_format"] == "json", name


def test_misspelt_option_is_no_argument():
    values = {"worker": {"options": {"concurrent": 2}}}
    with pytest.raises(click.NoSuchOption):
        load_command("work").make_context("work", container_of(charted(values), "worker")["args"][1:])


@pytest.mark.parametrize("of", VALUES)
def test_pods_meet_the_restricted_standard(of):
    """The Pod Security Standard `restricted`, and a root file system that cannot be written."""
    for _, template in pods_of(charted(VALUES[of])):
        spec = template["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & spec.keys()
        settings = spec["securityContext"]
        assert settings["runAsNonRoot"] is True
        assert settings["runAsUser"] == 10001
        assert settings["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["enableServiceLinks"] is False
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            }
            assert {"memory"} <= container["resources"]["limits"].keys()
            writable = {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")}
            assert writable <= WRITABLE


@pytest.mark.parametrize("of", VALUES)
def test_references_between_objects_exist(of):
    manifests = charted(VALUES[of])
    names = by_identity(manifests).keys()
    templates = dict(pods_of(manifests))
    for name, template in templates.items():
        spec = template["spec"]
        assert ("ServiceAccount", spec["serviceAccountName"]) in names
        (container,) = spec["containers"]
        assert [v["name"] for v in spec["volumes"]] == [m["name"] for m in container["volumeMounts"]]
        ports = {port["name"] for port in container.get("ports", [])}
        for probe in (container.get(f"{kind}Probe", {}) for kind in ("startup", "readiness", "liveness")):
            for handler in (probe.get("httpGet"), probe.get("tcpSocket")):
                assert handler is None or handler["port"] in ports, name
    for manifest in manifests:
        _check_references(manifest, templates)


def _check_references(manifest: dict[str, Any], templates: dict[str, Any]) -> None:
    """Check that an object names pods, ports and Deployments that exist."""
    spec = manifest.get("spec", {})
    if "scaleTargetRef" in spec:
        assert spec["scaleTargetRef"]["name"] in templates
    if manifest["kind"] in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
        selector = spec.get("podSelector") or spec["selector"]
        labels = selector.get("matchLabels", selector)
        (template,) = (each for each in templates.values() if each["metadata"]["labels"] == labels)
        ports = {port["name"] for port in template["spec"]["containers"][0].get("ports", [])}
        if manifest["kind"] == "Service":
            assert {port["targetPort"] for port in spec["ports"]} <= ports
        if manifest["kind"] == "NetworkPolicy":
            # Each port is open to somebody.
            assert {port["port"] for rule in spec["ingress"] for port in rule["ports"]} == ports


@pytest.mark.parametrize("of", VALUES)
def test_each_deployment_has_a_budget_and_a_network_policy(of):
    manifests = charted(VALUES[of])
    for kind in ("PodDisruptionBudget", "NetworkPolicy"):
        assert {each["metadata"]["name"] for each in manifests if each["kind"] == kind} == set(
            dict(pods_of(manifests))
        )


def test_only_monitoring_and_keda_reach_ports_that_need_no_key():
    manifests = charted(merged(COMPONENTS["keda"]))
    sources: dict[str, set[str]] = {}
    for policy in (each for each in manifests if each["kind"] == "NetworkPolicy"):
        for rule, source in itertools.chain.from_iterable(
            ((rule, str(source)) for source in rule["from"]) for rule in policy["spec"]["ingress"]
        ):
            for port in rule["ports"]:
                sources.setdefault(port["port"], set()).add(source)

    def namespace(name: str) -> set[str]:
        return {str({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}})}

    assert sources["metrics"] == namespace("monitoring")
    assert sources["keda"] == namespace("keda")
    assert sources["http"] == sources["rest"] == sources["grpc"] == {str({"podSelector": {}})}


@for_each(
    ("values", "grace_s", "component"),
    [
        ({}, 85, "api"),
        ({"api": {"options": {"drain-grace-s": 60}}}, 115, "api"),
        ({}, 80, "worker"),
        ({"worker": {"options": {"drain-grace-s": 600}}}, 650, "worker"),
        ({}, 55, "server"),
        ({"server": {"options": {"drain-notice-s": 30}}}, 75, "server"),
    ],
)
def test_pods_may_drain(values, grace_s, component):
    template = dict(pods_of(charted(values)))[f"headrace-{component}"]
    assert template["spec"]["terminationGracePeriodSeconds"] == grace_s


@for_each(
    ("by", "verbs"),
    [("headrace", ["get", "patch"]), ("keda", ["get"]), ("hpa", ["get"])],
)
def test_controller_has_the_rights_that_it_needs(by, verbs):
    role = one(charted({"scaling": {"by": by, "caBundle": CA_BUNDLE}}), "Role", "headrace-scale")
    assert role["rules"] == [
        {
            "apiGroups": ["apps"],
            "resources": ["deployments/scale"],
            "resourceNames": ["headrace-worker"],
            "verbs": verbs,
        },
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "patch"]},
    ]


def test_only_the_controller_calls_the_api_of_kubernetes():
    for name, template in pods_of(charted({})):
        assert template["spec"]["automountServiceAccountToken"] is (name == "headrace-scale")
    assert one(charted({}), "ServiceAccount", "headrace")["automountServiceAccountToken"] is False


def test_replicas_of_scaled_deployments_are_left_to_their_scalers():
    of = {name: one(charted({}), "Deployment", f"headrace-{name}")["spec"] for name in ("worker", "server")}
    assert "replicas" not in of["worker"]
    assert "replicas" not in of["server"]
    fixed = charted(VALUES["a fixed number"])
    assert one(fixed, "Deployment", "headrace-worker")["spec"]["replicas"] == 3
    assert one(fixed, "Deployment", "headrace-server")["spec"]["replicas"] == 2


def test_other_autoscalers_have_the_range_of_the_workers():
    values: dict[str, Any] = {"scaling": {"by": "keda", "workers": "2..20", "options": {"pool": "gpu"}}}
    spec = one(charted(values), "ScaledObject", "headrace-worker")["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (2, 20)
    assert spec["triggers"][0]["metadata"] == {
        "scalerAddress": "headrace-scale.headrace.svc:9090",
        "pool": "gpu",
    }
    values["scaling"] |= {"by": "hpa", "caBundle": CA_BUNDLE, "workers": "0..20"}
    spec = one(charted(values), "HorizontalPodAutoscaler", "headrace-worker")["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (1, 20)
    assert spec["metrics"][0]["external"]["metric"]["selector"] == {"matchLabels": {"pool": "gpu"}}


@for_each(
    ("autoscaling", "metric"),
    [
        (
            {},
            {
                "type": "Resource",
                "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}},
            },
        ),
        (
            {"by": "requests", "inFlightRequests": 5},
            {
                "type": "Pods",
                "pods": {
                    "metric": {"name": "headrace_in_flight_requests"},
                    "target": {"type": "AverageValue", "averageValue": "5"},
                },
            },
        ),
        *(
            (
                {"by": "busy", **percent},
                {
                    "type": "Pods",
                    "pods": {
                        "metric": {"name": "headrace_busy_share"},
                        "target": {"type": "AverageValue", "averageValue": target},
                    },
                },
            )
            for percent, target in (({}, "700m"), ({"busyPercent": 5}, "50m"))
        ),
    ],
)
def test_server_is_scaled_by_one_metric(autoscaling, metric):
    values = {"server": {"autoscaling": {"minReplicas": 1, "maxReplicas": 9, **autoscaling}}}
    spec = one(charted(values), "HorizontalPodAutoscaler", "headrace-server")["spec"]
    assert spec["metrics"] == [metric]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (1, 9)


def test_pods_with_gpus_have_the_image_with_cuda_and_tolerate_their_nodes():
    manifests = charted({"server": {"gpus": 2}})
    server = dict(pods_of(manifests))["headrace-server"]["spec"]
    assert server["containers"][0]["image"] == f"headrace-cuda:{headrace.__version__}"
    assert server["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 2, "memory": "2Gi"}
    assert server["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    worker = dict(pods_of(manifests))["headrace-worker"]["spec"]
    assert "tolerations" not in worker
    assert worker["containers"][0]["resources"]["limits"] == {"memory": "2Gi"}
