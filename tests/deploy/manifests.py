"""The manifests of deploy/kubernetes, and the schemas of Kubernetes and its operators."""

import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

KUBERNETES = "1.37"
KUSTOMIZE = Path(__file__).parent.parent.parent / "deploy" / "kubernetes"
_SCRIPT = KUSTOMIZE.parent.parent / "scripts" / "render_manifests.py"
_MODELS = {
    "keda.sh/v1alpha1": "cloudcoil.models.keda.v1alpha1",
    "monitoring.coreos.com/v1": "cloudcoil.models.prometheus_operator.v1",
}
"""The modules with the schemas of custom resources."""


def charted(values: Mapping[str, Any], *names: str) -> list[dict[str, Any]]:
    """Return the objects of the chart; `names` are the release and its namespace.

    Raise ChartError for values that the chart refuses, and for findings of Helm's linter.
    """
    return json.loads(render_manifests(json.dumps(values), *names))


class ChartError(Exception):
    """Helm reported an error."""


@functools.cache
def render_manifests(*arguments: str) -> str:
    """Return the output of the script that renders the chart. Raises ChartError."""
    # In a process of its own: Helm is written in Go, whose runtime would stay in this one.
    done = subprocess.run([sys.executable, _SCRIPT, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ChartError(done.stderr)
    return done.stdout


def check(manifest: dict[str, Any]) -> None:
    """Raise an error for a manifest that its schema does not permit, or that has an unknown field."""
    if manifest["apiVersion"] not in _MODELS:
        pytest.importorskip("kubernetes_validate").validate(manifest, KUBERNETES, strict=True)
        return
    models = pytest.importorskip(_MODELS[manifest["apiVersion"]])
    parsed = getattr(models, manifest["kind"]).model_validate(manifest)
    kept = parsed.model_dump(mode="json", by_alias=True, exclude_unset=True)
    kept |= {"apiVersion": manifest["apiVersion"], "kind": manifest["kind"]}
    assert kept == manifest, f"the schema does not have all fields of {manifest}"


def check_all(manifests: list[dict[str, Any]], of: str) -> None:
    """Raise AssertionError, which names the object, unless all fit their schemas."""
    for manifest in manifests:
        try:
            check(manifest)
        except Exception as error:
            raise AssertionError(f"{of}: {manifest['kind']}: {error}") from error


def kustomized(folder: Path) -> list[dict[str, Any]]:
    """Return the objects that kustomize builds of a folder, or skip the test without kubectl."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl, which has kustomize, is not installed")
    built = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return [document for document in yaml.safe_load_all(built.stdout) if document]


def with_components(folder: Path, *components: str, namespace: str = "headrace") -> list[dict[str, Any]]:
    """Return the objects of the base with components; `folder` is for the kustomization."""
    shutil.copytree(KUSTOMIZE, folder / "kubernetes")
    used = "".join(f"  - ../components/{name}\n" for name in components)
    overlay = folder / "kubernetes" / "overlay"
    overlay.mkdir()
    text = f"namespace: {namespace}\nresources: [../base]\n" + (f"components:\n{used}" if used else "")
    (overlay / "kustomization.yaml").write_text(text)
    return kustomized(overlay)


def pods_of(manifests: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names of the Deployments with their pod templates."""
    for manifest in manifests:
        if manifest["kind"] == "Deployment":
            yield manifest["metadata"]["name"], manifest["spec"]["template"]


def one(manifests: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """Return the only object of a kind and name."""
    (found,) = (each for each in manifests if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found
