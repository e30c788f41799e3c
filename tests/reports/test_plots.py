import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.reports.distribution import Distribution
from headrace.reports.observation import Timeline
from headrace.reports.plots import BARS_MAX, histogram, nice, readable, throughput, value_bar
from reports.page_reader import read_page


def _timeline(*events) -> Timeline:
    timeline = Timeline()
    for at_s, records, failures in events:
        timeline.add(at_s, records=records, failures=failures)
    return timeline


def _steady(seconds: float, each_s: float = 0.01, records: int = 1000, failures: int = 0) -> Timeline:
    return _timeline(*((i * each_s, records, failures) for i in range(1, round(seconds / each_s) + 1)))


def _values(values) -> Distribution:
    distribution = Distribution()
    distribution.add(np.asarray(values, np.float64))
    return distribution


def _path(found) -> list[tuple[float, float]]:
    """Return the height and the end of each step."""
    d = found.all("path")[0].attributes["d"]
    return [(100 - float(y), float(x)) for y, x in re.findall(r"V([\d.]+) H([\d.]+)", d)]


def test_steady_rate_is_a_level_line():
    found = read_page(throughput(_steady(6.0, 1 / 128), "t"))
    labels = [e.text for e in found.all("span")]
    assert labels[:3] == ["200,000", "100,000", "0"]
    heights = [height for height, _ in _path(found)]
    assert all(height == pytest.approx(64, abs=9) for height in heights)
    assert "768,000 records in 6.0 s: 128,000 per second" in found.all("desc")[0].text


@for_each("seconds", [6.01, 6.04, 6.06])
def test_short_last_point_has_its_own_rate(seconds):
    heights = [height for height, _ in _path(read_page(throughput(_steady(seconds, 1 / 512), "t")))]
    assert heights[-1] == pytest.approx(heights[0], rel=0.1)


def test_pause_has_rate_zero():
    steps = _path(
        read_page(
            throughput(
                _timeline(*((t, 100, 0) for t in [*np.arange(0, 1, 0.01), *np.arange(3, 4, 0.01)])), "t"
            )
        )
    )
    assert min(height for height, _ in steps[:-1]) == 0


def test_plot_ends_with_the_last_batch():
    found = read_page(throughput(_steady(2.03), "t"))
    width = float(found.all("svg")[0].attributes["viewbox"].split()[2])
    assert _path(found)[-1][1] == pytest.approx(width, abs=0.002)
    assert width * readable(_steady(2.03)).step_s == pytest.approx(2.03, abs=0.001)


def test_failures_are_marked_at_their_time():
    events = [(i * 0.01, 100, 5 if 500 <= i < 510 else 0) for i in range(1000)]
    found = read_page(throughput(_timeline(*events), "t"))
    _, strip = found.all("svg")
    width = float(strip.attributes["viewbox"].split()[2])
    places = [
        (float(e.attributes["x"]) / width, float(e.attributes["width"]) / width) for e in strip.all("rect")
    ]
    assert places
    assert all(x > 0.45 and x + wide < 0.55 for x, wide in places)
    assert "50 of them failed" in found.all("desc")[0].text


def test_plot_without_failures_has_no_strip():
    assert len(read_page(throughput(_steady(3.0), "t")).all("svg")) == 1


@given(
    st.lists(st.tuples(st.floats(0, 5000), st.integers(0, 5000), st.integers(0, 3)), min_size=1, max_size=60)
)
def test_any_timeline_fits_its_plot(events):
    found = read_page(throughput(_timeline(*sorted(events)), "t"))
    width = float(found.all("svg")[0].attributes["viewbox"].split()[2])
    assert all(0 <= height <= 100.01 and x <= width + 0.002 for height, x in _path(found))
    for e in found.all("rect"):
        assert float(e.attributes["x"]) >= 0
        assert float(e.attributes["x"]) + float(e.attributes["width"]) <= max(width, 1) + 0.02


def test_points_are_few_and_have_batches():
    assert len(readable(_steady(14.0)).records) <= 120
    slow = readable(_timeline(*((i * 0.9, 100, 0) for i in range(60))))
    assert min(slow.batches[:-1]) >= 1


def test_histogram_has_bars_and_labels():
    plot, drawn = histogram(_values([0.0] * 30 + [1.0] * 10 + [2.0] * 20), "h")
    found = read_page(plot)
    bars = found.all("rect")
    assert len(bars) == sum(1 for n in drawn.counts if n) == 3
    assert [round(float(e.attributes["height"])) for e in bars] == [100, 33, 67]
    assert "60 values from 0 to 2" in found.all("desc")[0].text
    assert [e.text for e in found.all("span")][:3] == ["50.0 %", "25.0 %", "0 %"]


def test_outliers_are_left_out():
    values = np.random.default_rng(5).normal(0, 1, 5000)
    _, drawn = histogram(_values([*values, 1e4, -2e4]), "h")
    assert (drawn.below, drawn.above) == (1, 1)
    assert drawn.width * len(drawn.counts) < 100


def test_range_without_outliers_is_complete():
    _, drawn = histogram(_values(np.random.default_rng(5).random(5000)), "h")
    assert (drawn.below, drawn.above) == (0, 0)
    assert sum(drawn.counts) == 5000


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=50))
def test_any_values_fit_the_histogram(values):
    plot, drawn = histogram(_values(values), "h")
    assert 1 <= len(drawn.counts) <= BARS_MAX
    assert sum(drawn.counts) + drawn.below + drawn.above == len(values)
    for e in read_page(plot).all("rect"):
        assert float(e.attributes["height"]) <= 100


def test_plots_have_unique_ids():
    found = read_page(throughput(_steady(3.0, failures=1), "a") + histogram(_values([1, 2]), "b")[0])
    for svg in found.all("svg"):
        ids = svg.attributes["aria-labelledby"].split()
        assert [e.name for e in svg.children[:2]] == ["title", "desc"]
        assert [e.attributes["id"] for e in svg.children[:2]] == ids
        assert svg.attributes["role"] == "img"
    ids = [e.attributes["id"] for e in found.everything() if "id" in e.attributes]
    assert len(ids) == len(set(ids)) == 6


def test_value_bar_length_is_its_share():
    (bar,) = read_page(value_bar(1, 4)).all("rect")
    assert bar.attributes["width"] == "25.00"


@given(st.floats(1e-6, 1e12))
def test_nice_numbers_are_near_and_not_less(value):
    assert value <= nice(value) <= 2.001 * value


def test_zero_has_a_scale():
    assert nice(0) == 1
