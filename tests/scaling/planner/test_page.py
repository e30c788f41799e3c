"""The page of a plan: its sections, its table, its plots, and nothing that is loaded."""

import re

import pytest

from cases import for_each
from headrace.scaling.planner.machine import Machine
from headrace.scaling.planner.page import STEPS, plan_page
from headrace.scaling.planner.plan import COLUMNS
from reports.page_reader import read_page
from scaling.planner.plans import plan_of, policy


@pytest.fixture(scope="module")
def plan():
    return plan_of(policy("1..8"), arrivals="even")


@pytest.fixture(scope="module")
def page(plan):
    return read_page(plan_page(plan))


def steps(panel, number):
    """Return the height of each step of a plot of a panel, as a share of its axis."""
    path = panel.all("path")[number].attributes["d"]
    return [1 - float(height) / 100 for height in re.findall(r"V([\d.]+) H", path)]


def test_page_has_the_recommendation_and_the_load(plan, page):
    assert [heading.text for heading in page.all("h1")] == ["Plan: scale-to-zero (asynchronous)"]
    assert page.all("title")[0].text == "Plan: scale-to-zero (asynchronous)"
    assert plan.load_text in page.all("header")[0].text
    first, *others = page.section("Recommendation").all("li")
    commands = [code.text for code in first.all("code")]
    assert commands == ["headrace up", "headrace scale --workers 0..8"]
    assert [f"`{command}`" in plan.recommendation.reasons[0] for command in commands] == [True, True]
    assert [item.text for item in others] == list(plan.recommendation.reasons[1:])
    assert [heading.text for heading in page.all("h2")] == ["Recommendation", "Modes", "Over time", "Machine"]


def test_table_has_the_rows_of_the_plan(plan, page):
    head, *rows = [
        [cell.text for cell in row.children] for row in page.section("Modes").all("table")[0].all("tr")
    ]
    assert [name.lower() for name in head] == [name.lower() for name in COLUMNS]
    assert [tuple(row) for row in rows] == plan.rows()
    classes = [
        cell.attributes.get("class") for cell in page.section("Modes").all("tbody")[0].all("tr")[0].children
    ]
    assert classes == [None, None, *["n"] * 8]


def test_each_mode_has_plots_of_its_backlog_and_machines(plan, page):
    panels = [part for part in page.section("Over time").all("div") if part.attributes["class"] == "panel"]
    assert [panel.all("h3")[0].text for panel in panels] == [mode.title for mode in plan.modes]
    assert [len(panel.all("svg")) for panel in panels] == [2, 2, 2, 2]
    always_on, zero, night, _ = panels
    assert len(steps(zero, 0)) == STEPS
    # All machines have the scale of the largest number.
    assert steps(always_on, 1) == pytest.approx([1 / 8] * STEPS, abs=1e-4)
    assert max(steps(night, 1)) == 1
    assert [label.text for label in night.all("span")][:3] == ["100", "50", "0"]
    labels = [part.text for panel in panels for part in panel.all("desc")]
    assert labels[1] == "1 on average, at most 1 at one time."
    assert labels[0] == "At most 1 job at a time, in a sample of each 4 min 48 s."
    ids = [part.attributes["id"] for part in page.everything() if "id" in part.attributes]
    assert len(ids) == len(set(ids))


def test_axis_ends_with_the_last_job(page, plan):
    night = [part for part in page.section("Over time").all("div") if part.attributes["class"] == "x"][4]
    end_days = plan.modes[2].outcome.end_s / 86_400
    assert [label.text for label in night.children] == [
        "0 days",
        f"{end_days / 2:.3g} days",
        f"{end_days:.3g} days",
    ]


@for_each(("price_per_h", "price"), [(2.5, "$2.50"), (0.736, "$0.736")])
def test_machine_is_described(price_per_h, price):
    machine = Machine(price_per_h, 4, 0.5, 90.0, start_billed=False, interruptions_per_h=0.25)
    page = read_page(plan_page(plan_of(machine=machine, wait_s_max=900.0)))
    section = page.section("Machine")
    assert dict(
        zip((e.text for e in section.all("dt")), (e.text for e in section.all("dd")), strict=True)
    ) == {
        "Price for an hour": price,
        "Concurrent jobs": "4",
        "Batch gain": "0.5",
        "Start": "1 min 30 s, not billed",
        "Interruptions an hour": "0.25",
        "Longest acceptable wait": "15 min",
    }


def test_missed_limit_is_marked(page):
    assert page.all("h1")[0].attributes["class"] == "good"
    late = read_page(plan_page(plan_of(arrivals="burst")))
    assert late.all("h1")[0].attributes["class"] == "warn"


def test_page_is_self_contained_and_escapes_texts():
    content = plan_page(plan_of(currency="<script>")).decode()
    assert "<script" not in content
    assert "&lt;script&gt;" in content
    assert not re.search(r"\b(?:src|href)=|url\(|@import", content)
    assert "default-src 'none'" in content
    assert len(content) < 200_000
