"""The documentation, the dashboards and the rules match the metrics of real servers and ledgers."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from cases import for_each
from headrace.core import Model
from headrace.server.jobs.metrics import LEDGER_FAMILIES, PROCESS_FAMILIES, WORKER_FAMILIES
from headrace.server.metrics import FAMILIES
from headrace.testing import EchoModel
from server.jobs.scraped import all_sources, scrape
from server.support_observe import definition, infer, serving

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "observability.md"
BOARD = ROOT / "deploy" / "grafana" / "headrace.json"
JOB_BOARD = ROOT / "deploy" / "grafana" / "headrace-jobs.json"
PROMETHEUS = ROOT / "deploy" / "prometheus"
SCRAPE = PROMETHEUS / "prometheus.yml"
RULES = PROMETHEUS / "headrace.rules.yml"
RULE_TESTS = PROMETHEUS / "headrace.rules.test.yml"
JOB_FAMILIES = (*LEDGER_FAMILIES, *PROCESS_FAMILIES, *WORKER_FAMILIES)
ROWS = {
    BOARD: (
        *("Traffic", "Latency", "Batches", "Queue", "Instances", "Streams", "Sequences", "Responses"),
        "Process",
    ),
    JOB_BOARD: ("Jobs", "Backlog", "Times", "Tenants", "Workers", "Ledger and notifications"),
}

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
    requests, and of a job server with all kinds of jobs.
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
        found = [*served.scrape(), *scrape(*all_sources())]
    labels: dict[str, set[str]] = {}
    for name, pairs in found:
        labels.setdefault(name, set()).update(label for label, _ in pairs)
    return labels


def rules(group=None):
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for each in groups if group in (None, each["name"]) for rule in each["rules"]]


def board_expressions(path: Path) -> list[str]:
    board = json.loads(path.read_text())
    return [
        *(target["expr"] for panel in board["panels"] for target in panel.get("targets", [])),
        *(v["query"]["query"] for v in board["templating"]["list"] if v["type"] == "query"),
    ]


def expressions() -> list[str]:
    return [*board_expressions(BOARD), *board_expressions(JOB_BOARD), *(rule["expr"] for rule in rules())]


def names_in(texts: list[str], declared: set[str]) -> set[str]:
    """Return the metrics that expressions name, of a histogram by any of its samples."""
    used = {name for text in texts for name in _NAME.findall(text)}
    return {name if name in declared else re.sub("_(bucket|sum|count)$", "", name) for name in used}


def test_dashboard_and_rules_use_exposed_metrics(exposed):
    used = {name for text in expressions() for name in _NAME.findall(text)}
    assert used - exposed.keys() == set()
    for board, families in ((BOARD, FAMILIES), (JOB_BOARD, JOB_FAMILIES)):
        declared = {family.name for family in families}
        missing = declared - names_in(board_expressions(board), declared)
        assert missing == set(), "the board leaves metrics out"


def test_dashboard_and_rules_use_existing_labels(exposed):
    known = {"instance", "job", "le", *(label for f in (*FAMILIES, *JOB_FAMILIES) for label in f.labels)}
    for text in expressions():
        for name, inside in _LABELLED.findall(text):
            assert set(_LABEL.findall(inside)) <= exposed[name] | {"instance"}, text
        grouped = {
            label.strip() for inside in _BY.findall(text) for label in inside.split(",") if label.strip()
        }
        assert grouped <= known, text


@for_each(("path", "rows"), ROWS.items())
def test_dashboard_is_importable(path, rows):
    """Panels have unique ids, disjoint positions, a data source variable, and legends for codes."""
    board = json.loads(path.read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert board["id"] is None
    assert {p["datasource"]["uid"] for p in panels if p["type"] != "row"} == {"${datasource}"}
    variables = {v["name"]: v for v in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    used = {name for text in board_expressions(path) for name in re.findall(r"\$(\w+)", text)} - {
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
    assert titles == list(rows)


def test_rules_are_complete():
    assert len({rule["alert"] for rule in rules()}) == len(rules())
    for rule in rules():
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert set(rule["annotations"]) == {"summary", "description"}
        named = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        kept = {label.strip() for inside in _BY.findall(rule["expr"]) for label in inside.split(",")}
        assert not kept or named <= kept, f"{rule['alert']} names labels that its expression drops"


def test_scrape_config_names_the_rules():
    config = yaml.safe_load(SCRAPE.read_text())
    assert config["rule_files"] == [RULES.name]
    assert config["scrape_configs"][0]["static_configs"] == [{"targets": ["localhost:8082"]}]


def test_every_alert_of_jobs_has_a_unit_test():
    cases = [
        case for test in yaml.safe_load(RULE_TESTS.read_text())["tests"] for case in test["alert_rule_test"]
    ]
    fired = {case["alertname"] for case in cases if case.get("exp_alerts")}
    assert fired == {rule["alert"] for rule in rules("headrace-jobs")}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")
@pytest.mark.parametrize(
    "arguments",
    [("check", "rules", RULES.name), ("check", "config", SCRAPE.name), ("test", "rules", RULE_TESTS.name)],
    ids=" ".join,
)
def test_promtool_accepts_the_files(arguments):
    done = subprocess.run(
        ["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _table(name: str) -> list[str]:
    text = PAGE.read_text()
    begin = text.index("\n", text.index(f"<!-- {name}: begin")) + 1
    return text[begin : text.index(f"<!-- {name}: end -->")].splitlines()


@for_each(("table", "families"), [("metrics", FAMILIES), ("metrics of jobs", JOB_FAMILIES)])
def test_documented_table_matches_exposed_metrics(exposed, table, families):
    rows = [
        f"| `{f.name}` | {f.kind} | {', '.join(f'`{label}`' for label in f.labels)} | {f.description} |"
        for f in families
    ]
    assert _table(table) == ["| metric | kind | labels | what it is |", "| --- | --- | --- | --- |", *rows]
    for family in families:
        name = f"{family.name}_count" if family.kind == "histogram" else family.name
        assert exposed[name] == set(family.labels)
