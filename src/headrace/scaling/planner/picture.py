"""Draw a plan as a PNG picture. The only module that imports matplotlib."""

from collections.abc import Callable
from io import BytesIO
from typing import Any, Final

import numpy as np

from headrace.core.errors import MissingExtraError
from headrace.scaling.planner.load import DAY_S, Seconds
from headrace.scaling.planner.plan import STEPS, PoolPlan
from headrace.scaling.planner.recommendation import seconds

try:
    # Not pyplot, which keeps figures in a state of the process.
    from matplotlib.backends.backend_agg import FigureCanvasAgg as _FigureCanvasAgg
    from matplotlib.figure import Figure as _Figure
    from matplotlib.ticker import MaxNLocator as _MaxNLocator
except ImportError as _error:
    raise MissingExtraError("plots", "the picture of a plan") from _error

FigureCanvasAgg: Any = _FigureCanvasAgg  # Most signatures of matplotlib have no types.
Figure: Any = _Figure
MaxNLocator: Any = _MaxNLocator

_WIDTH_IN: Final = 12.0
_ROW_IN: Final = 1.7
_HEAD_IN: Final = 1.3
_DOTS_PER_IN: Final = 110
_HEADROOM: Final = 1.06
_LINE: Final = "#2f6fd0"
_FILL: Final = "#a9c7f2"


def plan_picture(plan: PoolPlan) -> bytes:
    """Return a PNG picture: the backlog and the machines of each mode over time."""
    height_in = _HEAD_IN + _ROW_IN * len(plan.modes)
    drawing = Figure(figsize=(_WIDTH_IN, height_in), dpi=_DOTS_PER_IN, layout="constrained")
    _write(drawing.suptitle, f"Plan: {plan.recommendation_text}\n{_load_text(plan)}", fontsize=11)
    lines = [mode.outcome.timeline(STEPS) for mode in plan.modes]
    # Machines of all modes have one scale, so that their areas are comparable costs.
    machines_most = max(float(line.workers.max()) for line in lines)
    days = max(mode.outcome.end_s for mode in plan.modes) / DAY_S
    rows = drawing.subplots(len(plan.modes), 2, sharex=True, squeeze=False)
    for (backlog, machines), mode, line in zip(rows, plan.modes, lines, strict=True):
        outcome = mode.outcome
        end_days = outcome.end_s / DAY_S
        weight = "bold" if mode.name == plan.recommendation.mode else "normal"
        cost = f"{plan.money(outcome.cost_per_day)} a day, 95 % begin within {seconds(outcome.wait.p95_s)}"
        _write(backlog.set_title, f"{mode.title}: {cost}", loc="left", fontsize=9, weight=weight)
        _draw(backlog, line.backlog, end_days, float(line.backlog.max()))
        _draw(machines, line.workers, end_days, machines_most)
        backlog.set_ylabel("jobs", fontsize=8)
        machines.set_ylabel("machines", fontsize=8)
        machines.set_xlim(0, days)
    rows[-1][0].set_xlabel("days: jobs that are due or run", fontsize=8)
    rows[-1][1].set_xlabel("days: machines, starting ones included", fontsize=8)
    written = BytesIO()
    FigureCanvasAgg(drawing).print_png(written)
    return written.getvalue()


def _load_text(plan: PoolPlan) -> str:
    first, _, rest = plan.load_text.partition(": ")
    return f"{first}:\n{rest}"


def _write(place: Callable[..., Any], text: str, **style: Any) -> None:
    """Write a text as it is: between two dollar signs, matplotlib would read a formula."""
    place(text, **style).set_parse_math(False)


def _draw(axes: Any, values: Seconds, end_days: float, most: float) -> None:
    """Draw values in equal steps as an area."""
    edges = np.linspace(0, end_days, len(values) + 1)
    axes.stairs(values, edges, fill=True, color=_FILL)
    axes.stairs(values, edges, color=_LINE, linewidth=0.6)
    axes.set_ylim(0, max(1.0, most) * _HEADROOM)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.tick_params(labelsize=8)
    axes.grid(axis="y", linewidth=0.4)
    axes.spines[["top", "right"]].set_visible(False)
