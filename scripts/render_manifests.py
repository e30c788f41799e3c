"""Render the chart of deploy/kubernetes with its default values as the base of kustomize: `make manifests`.

With `--check`, report instead whether the base is up to date. With values as JSON, print the objects:

    python scripts/render_manifests.py '{"scaling": {"by": "keda"}}' [RELEASE [NAMESPACE]]
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import helm_python  # Helm itself, as a library
import yaml

CHART = Path(__file__).parent.parent / "deploy" / "kubernetes" / "chart"
BASE = CHART.parent / "base"
NAME = "headrace"
"""The release and the namespace of the base."""
_HEAD = "# Rendered from the chart by `make manifests`, not written by hand.\n"


def render(values: Mapping[str, Any], release: str = NAME, namespace: str = NAME) -> dict[str, str]:
    """Return the text of each template that has objects, by its file name.

    Raise HelmError for values that the chart refuses, and for findings of Helm's linter.
    """
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(dict(values))
        texts = chart.render(dict(values), name=release, namespace=namespace)
    report = helm_python.lint(CHART, dict(values), strict=True)
    if report["messages"] or report["errors"]:
        raise helm_python.HelmError(f"findings of the linter: {report}")
    named = {Path(path).name: f"{text.strip()}\n" for path, text in sorted(texts.items())}
    return {name: text for name, text in named.items() if name.endswith(".yaml") and objects_of(text)}


def objects_of(text: str) -> list[dict[str, Any]]:
    """Return the objects of a manifest."""
    return [document for document in yaml.safe_load_all(text) if document]


def base_files() -> dict[str, str]:
    """Return the texts of the files of the base."""
    texts = {name: _HEAD + text for name, text in render({}).items()}
    resources = "".join(f"  - {name}\n" for name in texts)
    head = f"apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: {NAME}\n"
    return {**texts, "kustomization.yaml": f"{_HEAD}{head}resources:\n{resources}"}


def main(arguments: list[str]) -> None:
    """Write the base, compare it with the chart, or print the objects for some values."""
    if arguments == ["--check"]:
        if {path.name: path.read_text() for path in BASE.iterdir()} != base_files():
            sys.exit(f"{BASE} is not what the chart renders: run `make manifests`")
    elif arguments:
        texts = render(json.loads(arguments[0]), *arguments[1:])
        print(json.dumps([each for text in texts.values() for each in objects_of(text)]))
    else:
        for path in BASE.glob("*.yaml"):
            path.unlink()
        for name, text in base_files().items():
            (BASE / name).write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
