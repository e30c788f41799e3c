"""The documentation, the dashboard and the rules match the metrics of a real server."""

import json
import re
from pathlib import Path

import pytest
import yaml

from headrace.core import Model
from headrace.server.metrics import FAMILIES
from headrace.testing import EchoModel
from server.support_observe import definition, infer, serving

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "observability.md"
BOARD = ROOT / "deploy" / "grafana" / "headrace.json"
SCRAPE = ROOT / "deploy" / "prometheus" / "prometheus.yml"
RULES = ROOT / "deploy" / "prometheus" / "headrace.rules.yml"

_NAME = re.compile(r"\b(?:headrace|process)_[a-z_]+\b")
_LABELLED = re.compile(r"(\w+)\{([^}]*)\}")
_LABEL = re.compile(r'(\w+)\s*(?:=|!)=?~?\s*"')
_BY = re.compile(r"\b(?:by|ignoring|on|without)\s*\(([^)]*)\)")


class Words(Model):
    async def predict_stream(self, requests):
        async for _ in requests:
            yield [1.0]
            raise ValueError("no more words")


class Tally(Model):
    def step(self, states, x):
        for state in states:
            state["calls"] = state.get("calls", 0) + 1
        return x


@pytest.fixture(scope="module")
def exposed():
    """Return the sample names with their labels, of a server that has handled all kinds of
    requests.
    """
    models = (
        definition(EchoModel, isolation="thread"),
        definition(Words, "w"),
        definition(Tally, "t", isolation="thread"),
    )
    with serving(*models) as served:
        assert served.request("/v2/models/m/infer", infer(1.0)).status == 200
        assert served.request("/v2/models/w/infer_stream", infer(1.0)).status == 200
        assert served.request("/v2/models/t/infer", infer(1.0)).status == 200
        assert served.request("/v2/models/nobody").status == 404
        found = served.scrape()
    labels: dict[str, set[str]] = {}
    for name, pairs in found:
        labels.setdefault(name, set()).update(label for label, _ in pairs)
    return labels


def expressions() -> list[str]:
    board = json.loads(BOARD.read_text())
    rules = yaml.safe_load(RULES.read_text())
    queries = [v["query"]["query"] for v in board["templating"]["list"] if v["type"] == "query"]
    return [
        *(target["expr"] for panel in board["panels"] for target in panel.get("targets", [])),
        *queries,
        *(rule["expr"] for group in rules["groups"] for rule in group["rules"]),
    ]


def test_dashboard_and_rules_use_exposed_metrics(exposed):
    used = {name for text in expressions() for name in _NAME.findall(text)}
    assert used - exposed.keys() == set()
    declared = {f.name for f in FAMILIES}
    shown = {name if name in declared else re.sub("_(bucket|sum|count)$", "", name) for name in used}
    assert declared - shown == set(), "the board leaves metrics out"


def test_dashboard_and_rules_use_existing_labels(exposed):
    known = {"instance", "le", *(label for f in FAMILIES for label in f.labels)}
    for text in expressions():
        for name, inside in _LABELLED.findall(text):
            assert set(_LABEL.findall(inside)) <= exposed[name] | {"instance"}, text
        grouped = {
            label.strip() for inside in _BY.findall(text) for label in inside.split(",") if label.strip()
        }
        assert grouped <= known, text


def test_dashboard_is_importable():
    """Panels have unique ids, disjoint positions, a data source variable, and legends for codes."""
    board = json.loads(BOARD.read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert board["id"] is None
    assert {p["datasource"]["uid"] for p in panels if p["type"] != "row"} == {"${datasource}"}
    variables = {v["name"]: v for v in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    used = {name for text in expressions() for name in re.findall(r"\$(\w+)", text)} - {
        "__rate_interval",
        "labels",
    }
    assert used <= variables.keys()
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        taken = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        cells |= taken
    titles = [panel["title"] for panel in panels if panel["type"] == "row"]
    assert titles == [
        "Traffic",
        "Latency",
        "Batches",
        "Queue",
        "Instances",
        "Streams",
        "Sequences",
        "Responses",
        "Process",
    ]


def test_rules_are_complete():
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert set(rule["annotations"]) == {"summary", "description"}
        named = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        kept = {label.strip() for inside in _BY.findall(rule["expr"]) for label in inside.split(",")}
        assert not kept or named <= kept, f"{rule['alert']} names labels that its expression drops"


def test_scrape_config_names_the_rules():
    scrape = yaml.safe_load(SCRAPE.read_text())
    assert scrape["rule_files"] == [RULES.name]
    assert scrape["scrape_configs"][0]["static_configs"] == [{"targets": ["localhost:8082"]}]


def _table() -> list[str]:
    text = PAGE.read_text()
    begin = text.index("\n", text.index("<!-- metrics: begin")) + 1
    return text[begin : text.index("<!-- metrics: end -->")].splitlines()


def test_documented_table_matches_exposed_metrics(exposed):
    rows = [
        f"| `{f.name}` | {f.kind} | {', '.join(f'`{label}`' for label in f.labels)} | {f.description} |"
        for f in FAMILIES
    ]
    assert _table() == ["| metric | kind | labels | what it is |", "| --- | --- | --- | --- |", *rows]
    for family in FAMILIES:
        name = f"{family.name}_count" if family.kind == "histogram" else family.name
        assert exposed[name] == set(family.labels)
