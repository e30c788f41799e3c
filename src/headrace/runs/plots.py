"""Draw plots as inline SVG; their labels are text beside them, so that they scale to any width."""

import math
from collections.abc import Sequence
from itertools import count as numbers
from typing import Final

from headrace.runs.distribution import BinCounts, Distribution
from headrace.runs.markup import Html, count, duration, element, figure, join, pluralize, share
from headrace.runs.timeline import Timeline

_HEIGHT: Final = 100
_POINTS_SHOWN_MAX: Final = 120
_POINTS_WANTED: Final = 12
_BAR_MIN: Final = 0.3
"""The minimal width of the last bar, as a share of a point, so that it is visible."""
_BATCHES_A_POINT: Final = 2
"""The minimal number of batches of a point; with fewer, its rate is not meaningful."""
BARS_MAX: Final = 40
_TAILS: Final = (0.005, 0.05)
"""Shares of the values on either side that may be left out, in steps, while one bar has most of the
values.
"""
_MARGIN: Final = 2
"""A value is left out if it is further outside than this multiple of the others' range."""


def throughput(timeline: Timeline, name: str) -> Html:
    """Return a plot of records per second over time, with a strip of failures below it.

    `name` must be unique on the page.
    """
    shown = readable(timeline)
    rates = _rates(shown)
    top = nice(max(rates, default=0))
    end_s = max(shown.last_s, shown.step_s / 2)
    mean = sum(shown.records) / end_s
    desc = (
        f"{pluralize(sum(shown.records), 'record')} in {duration(end_s)}: {figure(mean)} per second on "
        f"average, at most {figure(max(rates, default=0))} per second within {duration(shown.step_s)}; "
        f"{count(sum(shown.failures))} of them failed."
    )
    widths = end_s / shown.step_s
    steps = [f"M0 {_HEIGHT}"]
    for point, rate in enumerate(rates):
        until = point + 1 if point + 1 < len(rates) else widths
        steps.append(f"V{_y(rate, top)} H{until:.3f}")
    area = element("path", d=" ".join([*steps, f"V{_HEIGHT} Z"]), class_="area")
    upper = _svg(name, ("Records per second over time", desc), widths, _grid(widths) + area)
    parts = [_y_axis((figure(top), figure(top / 2), "0")), upper]
    if any(shown.failures):
        parts += [element("div", class_="gap"), *_failure_strip(shown, widths, name + "-failed")]
    parts.append(_x_axis(("0 s", duration(end_s / 2), duration(end_s))))
    return element("div", *parts, class_="plot")


def readable(timeline: Timeline) -> Timeline:
    """Return the timeline with points few enough to draw and long enough to have a rate."""
    by = 1
    while True:
        shown = timeline.folded(by)
        points = len(shown.records)
        thin = sum(shown.batches) < _BATCHES_A_POINT * points and points > _POINTS_WANTED
        if points <= _POINTS_SHOWN_MAX and not thin:
            return shown
        by *= 2


def _rates(timeline: Timeline) -> list[float]:
    """Return the records per second of each point.

    The last point ends with the last batch; a short last point is averaged with the one before it.
    """
    rates = [records / timeline.step_s for records in timeline.records]
    if not rates:
        return rates
    last_s = timeline.last_s - timeline.step_s * (len(rates) - 1)
    if last_s >= timeline.step_s / 2:
        rates[-1] = timeline.records[-1] / last_s
    elif len(rates) > 1:
        together = sum(timeline.records[-2:]) / (timeline.step_s + max(last_s, 0.0))
        rates[-2:] = [together, together]
    else:
        rates[-1] = timeline.records[-1] / (timeline.step_s / 2)
    return rates


def _failure_strip(timeline: Timeline, widths: float, name: str) -> tuple[Html, Html]:
    most = max(timeline.failures)
    bars = join(
        _bar(min(point, max(widths - _BAR_MIN, 0)), min(point + 1, widths), value / most, "fault")
        for point, value in enumerate(timeline.failures)
        if value
    )
    title = "Failed records over time"
    desc = f"At most {count(most)} failed within {duration(timeline.step_s)}."
    base = _line(0, _HEIGHT, widths, _HEIGHT, "grid")
    return _y_axis((f"{count(most)} failed", "0")), _svg(name, (title, desc), widths, base + bars, "strip")


def histogram(distribution: Distribution, name: str) -> tuple[Html, BinCounts]:
    """Return a histogram and its bars. If a few values lie far outside, they are left out."""
    drawn = _visible_bins(distribution)
    most, bars = max(drawn.counts), len(drawn.counts)
    places = [drawn.low, drawn.low + drawn.width * bars / 2, drawn.low + drawn.width * bars]
    median = distribution.quantile(0.5)
    at = (median - drawn.low) / drawn.width
    desc = (
        f"{pluralize(distribution.count, 'value')} from {figure(distribution.minimum)} to "
        f"{figure(distribution.maximum)}; the dashed line is the median, {figure(median)}."
    )
    body = _grid(bars) + join(
        _bar(i + 0.08, i + 0.92, n / most, "bar") for i, n in enumerate(drawn.counts) if n
    )
    body += _line(at, 0, at, _HEIGHT, "mark")
    svg = _svg(name, ("Histogram", desc), bars, body)
    shares = (share(most, distribution.count), share(most / 2, distribution.count), "0 %")
    return element("div", _y_axis(shares), svg, _x_axis([figure(p, 3) for p in places]), class_="plot"), drawn


def _visible_bins(distribution: Distribution) -> BinCounts:
    found = distribution.histogram(BARS_MAX, distribution.minimum, distribution.maximum)
    for tail in _TAILS:
        if max(found.counts) * 2 < distribution.count:
            break
        found = distribution.histogram(BARS_MAX, *_range(distribution, tail))
    return found


def _range(distribution: Distribution, tail: float) -> tuple[float, float]:
    """Return the range of the values without far outliers."""
    low, high = distribution.quantile(tail), distribution.quantile(1 - tail)
    least, greatest = distribution.minimum, distribution.maximum
    margin = max(high - low, distribution.width) * _MARGIN
    return (least if least > low - margin else low), (greatest if greatest < high + margin else high)


def value_bar(part: int, whole: int) -> Html:
    """Return a share of a whole as a bar. The caller adds its label as text."""
    rect = element("rect", x="0", y="0", width=f"{100 * part / max(whole, 1):.2f}", height="1", class_="bar")
    return element("svg", rect, viewBox="0 0 100 1", preserveAspectRatio="none", aria_hidden="true")


def nice(value: float) -> float:
    """Return the smallest of 1, 2, 2.5, 4, 5, 6, 8 and 10, times a power of ten, from `value` on."""
    if value <= 0:
        return 1.0
    power = math.floor(math.log10(value))
    for exponent in numbers(power):
        for step in (1, 2, 2.5, 4, 5, 6, 8):
            found = step * 10.0**exponent
            if found >= value:
                return found
    raise AssertionError("a larger step always exists")


def _svg(name: str, labels: tuple[str, str], width: float, body: Html, class_: str | None = None) -> Html:
    title, desc = (
        element("title", labels[0], id=f"{name}-title"),
        element("desc", labels[1], id=f"{name}-desc"),
    )
    return element(
        "svg",
        title + desc + body,
        class_=class_,
        viewBox=f"0 0 {max(width, 1e-3):.3f} {_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
    )


def _y(value: float, top: float) -> str:
    return f"{_HEIGHT * (1 - value / top):.2f}"


def _bar(begin: float, end: float, tall: float, class_: str) -> Html:
    """Return a bar from `begin` to `end`; `tall` is a share of the height. Every bar is visible."""
    height = max(_HEIGHT * tall, 1)
    place = {"x": f"{begin:.2f}", "y": f"{_HEIGHT - height:.2f}"}
    return element("rect", **place, width=f"{end - begin:.2f}", height=f"{height:.2f}", class_=class_)


def _line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Html:
    return element("line", x1=f"{x1:.3f}", y1=f"{y1:g}", x2=f"{x2:.3f}", y2=f"{y2:g}", class_=class_)


def _grid(width: float) -> Html:
    return join(_line(0, y, width, y, "grid") for y in (0, _HEIGHT / 2, _HEIGHT))


def _y_axis(labels: Sequence[str]) -> Html:
    return element("div", *(element("span", label) for label in labels), class_="y", aria_hidden="true")


def _x_axis(labels: Sequence[str]) -> Html:
    return element("div", *(element("span", label) for label in labels), class_="x", aria_hidden="true")
