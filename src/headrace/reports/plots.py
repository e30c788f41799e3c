"""Draw plots as inline SVG, and the panels of the predictions: one for each output column.

The labels are text beside the plots, so that they scale to any width.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import count as numbers
from typing import Final

from headrace.reports.distribution import COLUMNS_MAX, TEXT_CHARACTERS_MAX, BinCounts, Distribution, Series
from headrace.reports.markup import (
    Html,
    count,
    duration,
    element,
    facts,
    figure,
    join,
    pluralize,
    section,
    share,
)
from headrace.reports.observation import RunObservation, Timeline

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
PANELS_MAX: Final = 8
_VALUES_MAX: Final = 12


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
    upper = _steps(rates, top, widths, name, ("Records per second over time", desc))
    parts = [_y_axis((figure(top), figure(top / 2), "0")), upper]
    if any(shown.failures):
        parts += [element("div", class_="gap"), *_failure_strip(shown, widths, name + "-failed")]
    parts.append(_x_axis(("0 s", duration(end_s / 2), duration(end_s))))
    return element("div", *parts, class_="plot")


def step_plot(
    values: Sequence[float], top: float, name: str, labels: tuple[str, str], axis: Sequence[str]
) -> Html:
    """Return a plot of values over time, in equal steps.

    Args:
        values: The value of each step.
        top: The value at the upper edge of the plot, above 0.
        name: A name that is unique on the page.
        labels: The title and the description of the plot.
        axis: The labels below the plot, from its start to its end.
    """
    drawn = _steps(values, top, len(values), name, labels)
    parts = (_y_axis((figure(top), figure(top / 2), "0")), drawn, _x_axis(axis))
    return element("div", *parts, class_="plot")


def _steps(values: Sequence[float], top: float, widths: float, name: str, labels: tuple[str, str]) -> Html:
    """Return an area under values over time. A step is 1 wide; the last one ends at `widths`."""
    steps = [f"M0 {_HEIGHT}"]
    for point, value in enumerate(values):
        until = point + 1 if point + 1 < len(values) else widths
        steps.append(f"V{_y(value, top)} H{until:.3f}")
    area = element("path", d=" ".join([*steps, f"V{_HEIGHT} Z"]), class_="area")
    return _svg(name, labels, widths, _grid(widths) + area)


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


def predictions(observation: RunObservation) -> Html:
    """Return the section with a panel for each of the first output columns."""
    all_series = observation.series
    shown = _selected_series(observation)
    if not shown:
        return section("Predictions", element("p", "No prediction was observed."))
    panels = [_panel(series, f"output-{i}") for i, series in enumerate(shown)]
    left = len(all_series) - len(shown)
    notes = [f"Only the first {COLUMNS_MAX} values of a row are observed."] if _is_wide(all_series) else []
    notes += [f"{pluralize(left, 'more column')} of outputs not shown."] if left else []
    if observation.unseen:
        notes.append(f"Not observed: {', '.join(sorted(observation.unseen))}.")
    words = [element("p", " ".join(notes), class_="soft")] if notes else []
    return section("Predictions", element("div", *panels, class_="plots"), *words)


def _selected_series(observation: RunObservation) -> Sequence[Series]:
    """Return columns of all outputs, instead of all columns of the first outputs."""
    outputs = [[one for one in series if one.seen] for series in observation.outputs().values()]
    places = [(column, output) for output, series in enumerate(outputs) for column in range(len(series))]
    chosen = sorted((output, column) for column, output in sorted(places)[:PANELS_MAX])
    return [outputs[output][column] for output, column in chosen]


def _is_wide(all_series: Sequence[Series]) -> bool:
    return any(series.label.endswith(f"[{COLUMNS_MAX - 1}]") for series in all_series)


def _panel(series: Series, name: str) -> Html:
    heading = element("h3", series.label)
    seen = _sample_note(series)
    if series.kind == "text":
        return element("div", heading, *_texts(series), seen, class_="panel")
    if not series.distribution.count:
        return element("div", heading, element("p", "No finite value."), seen, class_="panel")
    if values := _frequent_values(series):
        return element("div", heading, _bars(values, series.distribution.count), seen, class_="panel")
    return element("div", heading, *_histogram(series, name), seen, class_="panel")


def _sample_note(series: Series) -> Html:
    words = pluralize(series.rows, "value")
    if series.seen < series.rows:
        words = f"{count(series.seen)} of {pluralize(series.rows, 'value')} sampled"
    odd = series.distribution
    if odd.nan or odd.infinite:
        words += f"; {count(odd.nan)} not a number, {count(odd.infinite)} infinite"
    return element("p", words + ".", class_="soft")


def _frequent_values(series: Series) -> list[tuple[str, int]]:
    """Return the values with their counts if there are few different ones, each frequent; else nothing."""
    found = series.distribution.distinct
    if found is None or (len(found) > 2 and series.distribution.count < 5 * len(found)):
        return []
    chosen = sorted(found, key=lambda value: (-found[value], value))
    if len(chosen) <= _VALUES_MAX:
        chosen.sort()
    return [(_value(series, value), found[value]) for value in chosen]


def _value(series: Series, value: float) -> str:
    if series.kind == "bool":
        return str(bool(value))
    return count(int(value)) if series.kind == "integer" else f"{value:.6g}"


def _bars(values: list[tuple[str, int]], whole: int) -> Html:
    shown = [
        element(
            "li",
            element(
                "p", element("span", value), element("span", f"{share(number, whole)} ({count(number)})")
            ),
            value_bar(number, whole),
        )
        for value, number in values[:_VALUES_MAX]
    ]
    made = element("ul", *shown, class_="values")
    left = len(values) - _VALUES_MAX
    return made + element("p", f"{pluralize(left, 'more value')}.", class_="soft") if left > 0 else made


def _histogram(series: Series, name: str) -> Iterator[Html]:
    values = series.distribution
    plot, drawn = histogram(values, name)
    yield plot
    if drawn.below or drawn.above:
        yield element(
            "p",
            f"Not shown, far outside: {count(drawn.below)} below, {count(drawn.above)} above.",
            class_="soft",
        )
    yield facts(
        (
            ("minimum", figure(values.minimum)),
            ("maximum", figure(values.maximum)),
            ("mean", figure(values.mean)),
            ("median", _quantile(series, 0.5)),
            ("5th percentile", _quantile(series, 0.05)),
            ("95th percentile", _quantile(series, 0.95)),
        )
    )


def _texts(series: Series) -> Iterator[Html]:
    texts, lengths = series.texts, series.distribution
    often = [
        (value or "(empty)", number)
        for value, number in texts.most_frequent()
        if number > 1 or not texts.missed
    ]
    yield element("p", "Most frequent" if often else "No text is frequent.", class_="soft")
    if often:
        yield _bars(often, texts.total)
    if texts.missed:
        words = f"Approximate counts: each may be up to {count(texts.missed)} higher."
        yield element("p", words, class_="soft")
    if lengths.maximum > TEXT_CHARACTERS_MAX:
        words = f"Longer texts are distinguished by their first {TEXT_CHARACTERS_MAX} characters."
        yield element("p", words, class_="soft")
    yield facts(
        (
            ("shortest", figure(lengths.minimum)),
            ("median length", _quantile(series, 0.5)),
            ("longest", figure(lengths.maximum)),
        )
    )


def _quantile(series: Series, share: float) -> str:
    found = series.distribution.quantile(share)
    return figure(found if series.kind == "float" else math.floor(found))
