"""What a model predicted, for people: a panel for each column of its outputs, with its distribution."""

import math
from collections.abc import Iterator, Sequence
from typing import Final

from headrace.transforms.markup import Html, count, counted, element, facts, figure, section, share
from headrace.transforms.observation import Observation
from headrace.transforms.plots import histogram, value_bar
from headrace.transforms.series import COLUMNS_MAX, TEXT_CHARACTERS_MAX, Series

PANELS_MAX: Final = 8
_VALUES_MAX: Final = 12


def predictions(observation: Observation) -> Html:
    """The section: one panel for each of the first columns of outputs."""
    every = observation.series
    shown = _chosen(observation)
    if not shown:
        return section("Predictions", element("p", "No prediction was looked at."))
    panels = [_panel(series, f"output-{i}") for i, series in enumerate(shown)]
    left = len(every) - len(shown)
    notes = [f"The first {COLUMNS_MAX} values of a row are looked at."] if _is_wide(every) else []
    notes += [f"{counted(left, 'more column')} of outputs not drawn."] if left else []
    if observation.unseen:
        notes.append(f"Not looked at: {', '.join(sorted(observation.unseen))}.")
    words = [element("p", " ".join(notes), class_="soft")] if notes else []
    return section("Predictions", element("div", *panels, class_="plots"), *words)


def _chosen(observation: Observation) -> Sequence[Series]:
    """Columns of all outputs, rather than all columns of the first ones."""
    outputs = [[one for one in series if one.seen] for series in observation.outputs().values()]
    places = [(column, output) for output, series in enumerate(outputs) for column in range(len(series))]
    chosen = sorted((output, column) for column, output in sorted(places)[:PANELS_MAX])
    return [outputs[output][column] for output, column in chosen]


def _is_wide(every: Sequence[Series]) -> bool:
    return any(series.label.endswith(f"[{COLUMNS_MAX - 1}]") for series in every)


def _panel(series: Series, name: str) -> Html:
    heading = element("h3", series.label)
    seen = _seen(series)
    if series.kind == "text":
        return element("div", heading, *_texts(series), seen, class_="panel")
    if not series.distribution.count:
        return element("div", heading, element("p", "No finite value."), seen, class_="panel")
    if values := _few(series):
        return element("div", heading, _bars(values, series.distribution.count), seen, class_="panel")
    return element("div", heading, *_histogram(series, name), seen, class_="panel")


def _seen(series: Series) -> Html:
    words = counted(series.rows, "value")
    if series.seen < series.rows:
        words = f"{counted(series.seen, 'value')} looked at, of {count(series.rows)}"
    odd = series.distribution
    if odd.nan or odd.infinite:
        words += f"; {count(odd.nan)} not a number, {count(odd.infinite)} infinite"
    return element("p", words + ".", class_="soft")


def _few(series: Series) -> list[tuple[str, int]]:
    """The values by themselves, where there are few, and each came often."""
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
    return made + element("p", f"{counted(left, 'more value')}.", class_="soft") if left > 0 else made


def _histogram(series: Series, name: str) -> Iterator[Html]:
    values = series.distribution
    plot, drawn = histogram(values, name)
    yield plot
    if drawn.below or drawn.above:
        yield element(
            "p",
            f"Not drawn, far outside: {count(drawn.below)} below, {count(drawn.above)} above.",
            class_="soft",
        )
    yield facts(
        (
            ("least", figure(values.minimum)),
            ("greatest", figure(values.maximum)),
            ("mean", figure(values.mean)),
            ("median", _quantile(series, 0.5)),
            ("5 % below", _quantile(series, 0.05)),
            ("5 % above", _quantile(series, 0.95)),
        )
    )


def _texts(series: Series) -> Iterator[Html]:
    texts, lengths = series.texts, series.distribution
    often = [(value or "(empty)", number) for value, number in texts.most() if number > 1 or not texts.missed]
    yield element("p", "Most frequent" if often else "No text came often.", class_="soft")
    if often:
        yield _bars(often, texts.total)
    if texts.missed:
        words = f"Counted roughly: each came up to {count(texts.missed)} times more than is said."
        yield element("p", words, class_="soft")
    if lengths.maximum > TEXT_CHARACTERS_MAX:
        words = f"Longer ones are told apart by their first {TEXT_CHARACTERS_MAX} characters."
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
