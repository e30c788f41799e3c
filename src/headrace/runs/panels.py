"""Render the distribution of predictions: one panel per output column."""

import math
from collections.abc import Iterator, Sequence
from typing import Final

from headrace.runs.markup import Html, count, element, facts, figure, pluralize, section, share
from headrace.runs.observation import RunObservation
from headrace.runs.plots import histogram, value_bar
from headrace.runs.series import COLUMNS_MAX, TEXT_CHARACTERS_MAX, Series

PANELS_MAX: Final = 8
_VALUES_MAX: Final = 12


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
