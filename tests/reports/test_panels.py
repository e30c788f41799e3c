import math

import numpy as np
import pytest

from headrace.reports.observation import RunObservation
from headrace.reports.plots import PANELS_MAX, predictions
from reports.observation_support import scored
from reports.page_reader import Element, read_page


def _panels(*batches, times: int = 1) -> dict[str, Element]:
    seen = RunObservation(0.0)
    for turn in range(times):
        for outputs in batches:
            seen.add_batch(scored({n: np.asarray(d) for n, d in outputs.items()}), float(turn))
    found = read_page(predictions(seen))
    panels = [e for e in found.all("div") if e.attributes.get("class") == "panel"]
    return {panel.all("h3")[0].text: panel for panel in panels} | {"": found}


def _facts(panel: Element) -> dict[str, str]:
    return {e.all("dt")[0].text: e.all("dd")[0].text for e in panel.all("div") if e.all("dt")}


def test_numbers_get_a_histogram_and_statistics():
    values = np.linspace(-1, 3, 201)
    panel = _panels({"y": values})["y"]
    assert len(panel.all("svg")) == 1
    assert panel.all("svg")[0].all("rect")
    facts = _facts(panel)
    assert facts["minimum"] == "-1"
    assert facts["maximum"] == "3"
    assert float(facts["mean"]) == 1 == pytest.approx(float(facts["median"]), abs=0.002)
    assert "201 values." in panel.text


def test_sample_size_is_shown():
    panel = _panels({"y": np.random.default_rng(1).random(1024)}, times=10)["y"]
    assert "2,560 of 10,240 values sampled." in panel.text


def test_labels_are_counted_by_value():
    panel = _panels({"label": np.array([0, 1, 1, 1] * 25)})["label"]
    assert [e.text for e in panel.all("li")] == ["0 25.0 % (25)", "1 75.0 % (75)"]
    bars = [e.attributes["width"] for e in panel.all("rect")]
    assert bars == ["25.00", "75.00"]


def test_booleans_and_float_labels_are_named():
    assert "True" in _panels({"b": np.array([True, False] * 20)})["b"].text
    assert [e.text.split()[0] for e in _panels({"f": np.array([0.0, 1.5] * 20)})["f"].all("li")] == [
        "0",
        "1.5",
    ]


def test_many_labels_are_cut_to_the_most_frequent():
    values = np.concatenate([np.full(10 + i, i) for i in range(20)])[:255]
    panel = _panels({"c": values})["c"]
    assert len(panel.all("li")) == 12
    assert "more value" in panel.text


def test_many_integers_get_a_histogram_with_integer_quantiles():
    facts = _facts(_panels({"n": np.arange(256)})["n"])
    assert (facts["median"], facts["5th percentile"], facts["95th percentile"]) == ("127", "12", "243")


def test_texts_are_listed_by_frequency():
    panel = _panels({"t": np.array(["<b>ham</b>"] * 3 + ["spam"] + [""] * 2, object)})["t"]
    assert [e.text.rsplit(" ", 3)[0] for e in panel.all("li")] == ["<b>ham</b>", "(empty)", "spam"]
    assert _facts(panel)["longest"] == "10"


def test_distinct_texts_are_not_listed():
    panel = _panels(
        *[{"t": np.array([f"{'long ' * 30}{i} {j}" for j in range(30)], object)} for i in range(20)]
    )["t"]
    other = _panels(*[{"t": np.array([f"{i} {j}" for j in range(30)], object)} for i in range(20)])["t"]
    assert "distinguished by their first 80 characters" in panel.text
    assert other.all("li") == []
    assert "No text is frequent." in other.text
    assert "up to" in other.text


def test_non_finite_values_are_mentioned():
    assert (
        "1 not a number, 2 infinite"
        in _panels({"y": np.array([1.0, math.nan, math.inf, -math.inf])})["y"].text
    )
    assert "No finite value." in _panels({"y": np.array([math.nan])})["y"].text


def test_panels_cover_every_output():
    found = _panels({"wide": np.random.default_rng(0).random((50, 300)), "label": np.array([0, 1] * 25)})
    assert len(found) - 1 == PANELS_MAX
    assert list(found)[:2] == ["wide[0]", "wide[1]"]
    assert "label" in found
    assert "Only the first 8 values of a row are observed." in found[""].text
    assert "1 more column of outputs not shown." in found[""].text


def test_unobserved_outputs_are_named():
    found = _panels({"z<b>": np.zeros(3, np.complex64)})
    assert "No prediction was observed." in found[""].text
    both = _panels({"z<b>": np.zeros(3, np.complex64), "y": np.zeros(3)})
    assert "Not observed: z<b>." in both[""].text


def test_output_name_is_escaped():
    found = _panels({'"><script>alert(1)</script>': np.random.default_rng(0).random(30)})
    assert found[""].all("script") == []
    assert '"><script>alert(1)</script>' in found
