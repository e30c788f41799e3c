"""Render a plan as an HTML page: the recommendation, the modes, and their backlogs and machines over time."""

from collections.abc import Sequence
from typing import Final

from headrace.reports.markup import Figure, Html, document, element, facts, figure, pluralize, section, table
from headrace.reports.plots import nice, step_plot
from headrace.scaling.planner.load import DAY_S
from headrace.scaling.planner.modes import PoolMode
from headrace.scaling.planner.outcome import PoolTimeline
from headrace.scaling.planner.plan import COLUMNS, STEPS, PoolPlan
from headrace.scaling.planner.recommendation import money, seconds

_TEXT_COLUMNS: Final = 2


def plan_page(plan: PoolPlan) -> bytes:
    """Return the page as UTF-8: one self-contained file without scripts."""
    chosen = plan.recommendation
    title = f"Plan: {plan.recommendation_text}"
    return document(
        title,
        element(
            "header",
            element("h1", title, class_="good" if chosen.is_in_time else "warn"),
            element("p", f"{plan.load_text}."),
        ),
        section(
            "Recommendation",
            element("ul", *(element("li", *_with_code(reason)) for reason in chosen.reasons)),
        ),
        section(
            "Modes",
            _table(plan),
            element("p", "A wait is the time from the arrival of a job to its start.", class_="soft"),
        ),
        section("Over time", element("div", *_panels(plan), class_="plots")),
        section("Machine", facts(_machine(plan))),
    )


def _with_code(text: str) -> Sequence[Html | str]:
    """Return the parts of a text, with those between backticks as code."""
    parts = text.split("`")
    return [element("code", part) if number % 2 else part for number, part in enumerate(parts)]


def _table(plan: PoolPlan) -> Html:
    heads = [head if head in ("p95", "p99") else head[0].upper() + head[1:] for head in COLUMNS]
    rows = [[*row[:_TEXT_COLUMNS], *(Figure(cell) for cell in row[_TEXT_COLUMNS:])] for row in plan.rows()]
    return table("Costs, waits and machines of each mode", heads, rows)


def _panels(plan: PoolPlan) -> Sequence[Html]:
    lines = [mode.outcome.timeline(STEPS) for mode in plan.modes]
    # Machines of all modes have one scale, so that their areas are comparable costs.
    top = nice(round(max(float(line.workers.max()) for line in lines), 6))
    return [
        _panel(mode, line, top, number)
        for number, (mode, line) in enumerate(zip(plan.modes, lines, strict=True))
    ]


def _panel(mode: PoolMode, line: PoolTimeline, top: float, number: int) -> Html:
    outcome = mode.outcome
    most = float(line.backlog.max())
    axis = ("0 days", _day(outcome.end_s / 2), _day(outcome.end_s))
    backlog = (
        f"Backlog: {mode.name}",
        f"At most {pluralize(round(most), 'job')} at a time, in a sample of each {seconds(line.step_s)}.",
    )
    machines = (
        f"Machines: {mode.name}",
        f"{figure(float(line.workers.mean()))} on average, at most {outcome.workers_max:,} at one time.",
    )
    return element(
        "div",
        element("h3", mode.title),
        element("p", "Jobs that are due or run", class_="soft"),
        step_plot(line.backlog.tolist(), nice(most), f"backlog-{number}", backlog, axis),
        element("p", "Machines", class_="soft"),
        step_plot(line.workers.tolist(), top, f"machines-{number}", machines, axis),
        class_="panel",
    )


def _machine(plan: PoolPlan) -> Sequence[tuple[str, str]]:
    machine = plan.machine
    decimals = max(2, len(f"{machine.price_per_h:g}".partition(".")[2]))
    return (
        ("Price for an hour", money(machine.price_per_h, plan.currency, decimals=decimals)),
        ("Concurrent jobs", f"{machine.concurrency:,}"),
        ("Batch gain", f"{machine.batch_gain:g}"),
        ("Start", f"{seconds(machine.start_s)}, {'billed' if machine.start_billed else 'not billed'}"),
        ("Interruptions an hour", f"{machine.interruptions_per_h:g}"),
        ("Longest acceptable wait", seconds(plan.recommendation.wait_s_max)),
    )


def _day(at_s: float) -> str:
    return f"{at_s / DAY_S:.3g} days"
