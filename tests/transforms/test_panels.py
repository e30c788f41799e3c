import math

import numpy as np
import pytest

from headrace.transforms.observation import Observation
from headrace.transforms.panels import PANELS_MAX, predictions
from transforms.observing import scored
from transforms.page_reader import Element, read_page


def _panels(*batches, times: int = 1) -> dict[str, Element]:
    seen = Observation(0.0)
    for turn in range(times):
        for outputs in batches:
            seen.batch(scored({n: np.asarray(d) for n, d in outputs.items()}), float(turn))
    found = read_page(predictions(seen))
    panels = [e for e in found.all("div") if e.attributes.get("class") == "panel"]
    return {panel.all("h3")[0].text: panel for panel in panels} | {"": found}


def _facts(panel: Element) -> dict[str, str]:
    return {e.all("dt")[0].text: e.all("dd")[0].text for e in panel.all("div") if e.all("dt")}


def test_numbers_get_a_histogram_and_what_it_is_of():
    values = np.linspace(-1, 3, 201)
    panel = _panels({"y": values})["y"]
    assert len(panel.all("svg")) == 1
    assert panel.all("svg")[0].all("rect")
    facts = _facts(panel)
    assert facts["least"] == "-1"
    assert facts["greatest"] == "3"
    assert float(facts["mean"]) == 1 == pytest.approx(float(facts["median"]), abs=0.002)
    assert "201 values." in panel.text


def test_of_how_many_values_it_is_is_said():
    panel = _panels({"y": np.random.default_rng(1).random(1024)}, times=10)["y"]
    assert "2,560 values looked at, of 10,240." in panel.text


def test_labels_are_counted_by_value():
    panel = _panels({"label": np.array([0, 1, 1, 1] * 25)})["label"]
    assert [e.text for e in panel.all("li")] == ["0 25.0 % (25)", "1 75.0 % (75)"]
    bars = [e.attributes["width"] for e in panel.all("rect")]
    assert bars == ["25.00", "75.00"]


def test_truth_values_and_labels_as_floats_have_their_names():
    assert "True" in _panels({"b": np.array([True, False] * 20)})["b"].text
    assert [e.text.split()[0] for e in _panels({"f": np.array([0.0, 1.5] * 20)})["f"].all("li")] == [
        "0",
        "1.5",
    ]


def test_many_labels_are_cut_the_most_frequent_first():
    values = np.concatenate([np.full(10 + i, i) for i in range(20)])[:255]
    panel = _panels({"c": values})["c"]
    assert len(panel.all("li")) == 12
    assert "more value" in panel.text


def test_whole_numbers_in_plenty_get_a_histogram_with_whole_quantiles():
    facts = _facts(_panels({"n": np.arange(256)})["n"])
    assert (facts["median"], facts["5 % below"], facts["5 % above"]) == ("127", "12", "243")


def test_texts_are_listed_by_frequency():
    panel = _panels({"t": np.array(["<b>ham</b>"] * 3 + ["spam"] + [""] * 2, object)})["t"]
    assert [e.text.rsplit(" ", 3)[0] for e in panel.all("li")] == ["<b>ham</b>", "(empty)", "spam"]
    assert _facts(panel)["longest"] == "10"


def test_texts_that_are_all_different_are_not_listed():
    panel = _panels(
        *[{"t": np.array([f"{'long ' * 30}{i} {j}" for j in range(30)], object)} for i in range(20)]
    )["t"]
    other = _panels(*[{"t": np.array([f"{i} {j}" for j in range(30)], object)} for i in range(20)])["t"]
    assert "told apart by their first 80 characters" in panel.text
    assert other.all("li") == []
    assert "No text came often." in other.text
    assert "up to" in other.text


def test_what_is_not_finite_is_said():
    assert (
        "1 not a number, 2 infinite"
        in _panels({"y": np.array([1.0, math.nan, math.inf, -math.inf])})["y"].text
    )
    assert "No finite value." in _panels({"y": np.array([math.nan])})["y"].text


def test_of_many_columns_some_of_each_output_are_drawn():
    found = _panels({"wide": np.random.default_rng(0).random((50, 300)), "label": np.array([0, 1] * 25)})
    assert len(found) - 1 == PANELS_MAX
    assert list(found)[:2] == ["wide[0]", "wide[1]"]
    assert "label" in found
    assert "The first 8 values of a row are looked at." in found[""].text
    assert "1 more column of outputs not drawn." in found[""].text


def test_outputs_that_cannot_be_looked_at_are_named():
    found = _panels({"z<b>": np.zeros(3, np.complex64)})
    assert "No prediction was looked at." in found[""].text
    both = _panels({"z<b>": np.zeros(3, np.complex64), "y": np.zeros(3)})
    assert "Not looked at: z<b>." in both[""].text


def test_a_name_cannot_break_out():
    found = _panels({'"><script>alert(1)</script>': np.random.default_rng(0).random(30)})
    assert found[""].all("script") == []
    assert '"><script>alert(1)</script>' in found
