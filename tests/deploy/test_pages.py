"""The triggers of KEDA in the documentation fit its schema."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt

from deploy.manifests import check_all

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parent.parent.parent / "docs"


def manifests():
    """Return the objects of the fences of all pages with their pages, and their triggers as objects."""
    for page in sorted(DOCS.rglob("*.md")):
        for token in MarkdownIt().parse(page.read_text()):
            if token.type == "fence" and token.info == "yaml":
                for document in yaml.safe_load_all(token.content):
                    if (manifest := manifest_of(document)) is not None:
                        yield page.name, manifest


def manifest_of(document: Any) -> dict[str, Any] | None:
    if isinstance(document, dict) and "apiVersion" in document:
        return document
    triggers = document.get("triggers") if isinstance(document, dict) else document
    if not isinstance(triggers, list):
        return None
    spec = {"scaleTargetRef": {"name": "worker"}, "triggers": triggers}
    return {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": "w"}, "spec": spec}


def test_manifests_of_the_documentation_are_valid():
    found = list(manifests())
    for page, manifest in found:
        check_all([manifest], page)
    assert {page for page, _ in found} == {"jobs.md", "scaling.md"}
