"""Traces: forms of times, headers, order, days, and errors that name the line."""

from datetime import UTC, datetime, timedelta, timezone
from io import BytesIO, StringIO, TextIOWrapper

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import ConfigError, DataError
from headrace.scaling.planner import traces
from headrace.scaling.planner.arrivals import DAYS_MAX, RUN_S_MIN, LoadOptions, traced_load
from headrace.scaling.planner.load import DAY_S
from headrace.scaling.planner.traces import ARRIVED, LINE_CHARACTERS_MAX, RUN, read_trace
from levels import examples

AT_S = 1_769_850_000.0
"""2026-01-31T09:00:00Z."""
MIDNIGHT_MS = 1_769_817_600_000


def traced(text, **options):
    return traced_load(StringIO(text), "trace.csv", LoadOptions(**options))


def refused(text, error=DataError, **options):
    with pytest.raises(error) as caught:
        traced(text, **options)
    return str(caught.value)


ZONES = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-11))])


def moment(drawn):
    second, microsecond, zone = drawn
    return datetime.fromtimestamp(second, zone).replace(microsecond=microsecond)


WRITERS = {
    "seconds": lambda at: f"{at.timestamp():.6f}",
    "milliseconds": lambda at: f"{at.timestamp() * 1000:.3f}",
    "iso": lambda at: at.isoformat(),
    "iso with a space": lambda at: at.isoformat(" "),
    "utc without zone": lambda at: at.astimezone(UTC).replace(tzinfo=None).isoformat(),
    "zulu": lambda at: at.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z",
}


@settings(max_examples=examples(3))
@given(
    jobs=st.lists(
        st.tuples(
            st.tuples(st.integers(1_735_689_600, 1_800_000_000), st.integers(0, 999_999), ZONES).map(moment),
            st.floats(0.001, 1e6) | st.none(),
            st.sampled_from(sorted(WRITERS)),
        ),
        min_size=1,
        max_size=30,
    ),
    header=st.sampled_from(["", "arrived,run_seconds\n", "\ufeffTimestamp, Duration\n", "ts,run-s\r\n\r\n"]),
)
def test_written_traces_are_read_back(jobs, header):
    lines = [f"{WRITERS[form](at)},{'' if run_s is None else repr(run_s)}\n" for at, run_s, form in jobs]
    load = traced(header + "".join(lines), run_s=7.0)
    order = sorted(range(len(jobs)), key=lambda place: jobs[place][0].timestamp())
    times_s = np.array([jobs[place][0].timestamp() for place in order])
    assert load.arrived_s + load.began_at_ms / 1000 == pytest.approx(times_s, abs=2e-6)
    assert sorted(load.run_s) == sorted(7.0 if run_s is None else run_s for _, run_s, _ in jobs)
    assert load.began_at_ms % 86_400_000 == load.span_s % DAY_S == 0
    assert 0 <= load.arrived_s[0] < DAY_S
    assert load.span_s - DAY_S <= load.arrived_s[-1] < load.span_s
    assert (np.diff(load.arrived_s) >= 0).all()


@for_each(
    "text",
    [
        f"{AT_S:.0f}", f"{AT_S}", f"{AT_S * 1000:.0f}", "2026-01-31T09:00:00Z", "2026-01-31T09:00:00",
        "2026-01-31 09:00", "2026-01-31T10:00:00+01:00", "20260131T090000", "  2026-01-31T09:00:00.000000Z  ",
        '"2026-01-31 09:00:00"', "1.76985e9",
    ],
)  # fmt: skip
def test_forms_of_a_time(text):
    load = traced(f"{text}\n", run_s=5.0)
    assert (load.arrived_s.tolist(), load.began_at_ms, load.days) == ([32_400], MIDNIGHT_MS, 1)


def test_milliseconds_begin_in_1973():
    assert read_trace(StringIO("99999999999\n100000000000\n"), "t").arrived_s.tolist() == [99999999999, 1e8]


def test_span_has_whole_days_up_to_the_midnight_after_the_last_arrival():
    load = traced("2026-01-31T23:59:59.999\n2026-02-02\n", run_s=5.0)
    assert (load.began_at_ms, load.days) == (MIDNIGHT_MS, 3)
    assert load.arrived_s.tolist() == pytest.approx([DAY_S - 0.001, 2 * DAY_S])
    assert traced("0\n", run_s=5.0).span_s == DAY_S


def test_unsorted_lines_are_sorted_and_equal_ones_keep_their_order():
    load = traced("2026-01-31,1\n2026-01-30,2\n2026-01-31,3\n2026-01-30,4\n2026-01-31,5\n")
    assert load.run_s.tolist() == [2, 4, 1, 3, 5]


@for_each("name", ARRIVED)
def test_header_names_the_arrivals(name):
    load = traced(f"id,{name.upper().replace('_', ' ')},note\n7,{AT_S},9\n", run_s=5.0)
    assert (load.arrived_s.tolist(), load.run_s.tolist()) == ([32_400], [5])


@for_each(("name", "unit_s"), RUN.items())
def test_header_names_the_run_times(name, unit_s):
    load = traced(f"{name},x,arrived\n3000,0,{AT_S}\n")
    assert load.run_s.tolist() == [3000 * unit_s]
    assert unit_s == (0.001 if name.endswith("_ms") else 1)


def test_first_known_name_of_a_header_counts():
    load = traced(f"created,arrived,seconds,run_s\n0,{AT_S},7,8\n")
    assert (load.arrived_s.tolist(), load.run_s.tolist()) == ([32_400], [8])
    assert traced(f"arrived,arrived\n{AT_S},0\n", run_s=1.0).began_at_ms == MIDNIGHT_MS


def test_second_column_of_another_name_has_no_run_times():
    assert traced(f"arrived,price\n{AT_S},9\n", run_s=5.0).run_s.tolist() == [5]


def test_empty_lines_are_skipped():
    assert len(traced(f"\n \n,\n{AT_S},5\n\n{AT_S},6").run_s) == 2


def test_missing_run_times_are_drawn_and_others_stay():
    lines = "".join(f"{AT_S},{'' if place % 2 else 3}\n" for place in range(2000))
    load = traced(lines, run_s=100.0, run_p95_s=200.0)
    assert set(load.run_s[::2]) == {3}
    assert len(set(load.run_s[1::2])) == 1000
    assert load.run_s[1::2].mean() == pytest.approx(100, rel=0.1)
    assert (traced(lines, run_s=100.0, run_p95_s=200.0, seed=1).run_s[1::2] != load.run_s[1::2]).all()


def test_run_time_of_zero_is_a_millisecond():
    assert traced(f"{AT_S},0\n").run_s.tolist() == [RUN_S_MIN] == [0.001]


def test_missing_run_time_names_its_line():
    assert refused(f"arrived,run_s\n{AT_S},1\n{AT_S},\n{AT_S}\n", ConfigError) == (
        "trace.csv, line 3: has no run time: add a second column or a column run_seconds, or set run_s"
    )
    assert refused(f"{AT_S}\n", ConfigError).startswith("trace.csv, line 1: has no run time")


@for_each(
    ("text", "message"),
    [
        ("", "trace.csv has no job: each line must begin with a time"),
        ("arrived,run_s\n\n", "trace.csv has no job"),
        ("2026-13-01\n", "trace.csv, line 1: must begin with a time from 1970 on"),
        ("id,run_s\n", "or be a header that names a column arrived (or arrived_at"),
        (f"{AT_S}\n\nyesterday\n", "trace.csv, line 3: column 1 must be a time from 1970 on, in seconds or "),
        ("a,arrived\n1\n", "trace.csv, line 2: column 2 must be a time"),
        (f"{AT_S},1,2\n", "trace.csv, line 1: must have at most 2 columns, not 3"),
        (f"arrived\n{AT_S},1\n", "trace.csv, line 2: must have 1 column, not 2"),
        (f"{AT_S},long\n", "trace.csv, line 1: column 2 must be seconds of 0 or more, not 'long'"),
        (f"{AT_S},-1\n", "column 2 must be seconds of 0 or more, not '-1'"),
        (f"{AT_S},nan\n", "column 2 must be seconds of 0 or more, not 'nan'"),
        (f"{AT_S},inf\n", "column 2 must be seconds of 0 or more, not 'inf'"),
        (f"ts,run_ms\n{AT_S},-1\n", "column 2 must be milliseconds of 0 or more"),
        (f"{AT_S}\n-1\n", "line 2: column 1 must be"),
        (f"{AT_S}\nnan\n", "line 2: column 1 must be"),
        (f"{AT_S}\ninf\n", "line 2: column 1 must be"),
        (f"{AT_S}\n1e14\n", "line 2: column 1 must be"),
        (f"{AT_S}\n1969-12-31\n", "line 2: column 1 must be"),
        (f"{AT_S}\n0001-01-01T00:00+23:59\n", "line 2: column 1 must be"),
        (f'{AT_S},"1\n2"\n', "trace.csv, line 1: a quote must end on its line"),
        (f'{AT_S},"1', "trace.csv, line 1: a quote must end on its line"),
        (f'{AT_S},"1"2\n', "trace.csv, line 1: "),
        (f"{AT_S}\r{AT_S}\n", "trace.csv, line 1: new-line character"),
        (
            f"{AT_S}\n{'9' * (LINE_CHARACTERS_MAX + 1)}\n",
            "trace.csv, line 2: must have at most 4,096 characters",
        ),
        (f"{AT_S},1\n2026-01-31,{'9' * 400}\n", "line 2: column 2 must be seconds of 0 or more, not '99999"),
        (
            "1970-01-01,1\n2026-01-31,1\n",
            "trace.csv: the arrivals from 1970-01-01 to 2026-01-31 span more than 1,000 days: take",
        ),
    ],
)
def test_invalid_trace_is_refused(text, message):
    found = refused(text)
    assert message in found
    assert found.startswith("trace.csv")
    assert len(found) < 400


def test_days_are_bounded():
    assert traced(f"0,1\n{(DAYS_MAX - 1) * DAY_S},1\n").days == DAYS_MAX
    refused(f"0,1\n{DAYS_MAX * DAY_S},1\n")


def test_lines_are_bounded(monkeypatch):
    monkeypatch.setattr(traces, "LINES_MAX", 3)
    assert len(traced(f"{AT_S},1\n" * 3).run_s) == 3
    assert refused(f"{AT_S},1\n" * 4) == "trace.csv: must have at most 3 lines: take fewer days"


def test_longest_line_is_read():
    line = f"{AT_S},{'0' * (LINE_CHARACTERS_MAX - len(str(AT_S)) - 3)}1\n"
    assert len(line) == LINE_CHARACTERS_MAX
    assert traced(line).run_s.tolist() == [1]


def test_no_more_is_read_than_the_longest_line():
    class Endless(StringIO):
        def readline(self, size=-1):
            assert 0 < size <= LINE_CHARACTERS_MAX + 1
            return "0" * size

    with pytest.raises(DataError, match="line 1: must have at most 4,096 characters"):
        traced_load(Endless(), "trace.csv", LoadOptions())


def test_bytes_that_are_no_text_are_refused():
    file = TextIOWrapper(BytesIO(b"0\n" + b"\xff\n"), encoding="utf-8")
    with pytest.raises(DataError, match=r"^trace\.csv, after line \d: is not text in UTF-8$"):
        traced_load(file, "trace.csv", LoadOptions(run_s=1.0))


@settings(max_examples=examples(1.5))
@given(
    st.text(st.characters(codec="utf-8"), max_size=60)
    | st.text('0123456789-:TZ+.,"\n\r eé\0', max_size=40)
    | st.lists(st.sampled_from(["0", "1e9", ",", "\n", '"', "arrived", "run_s", "2026-01-31", "x"])).map(
        "".join
    )
)
def test_any_text_is_read_or_refused(text):
    try:
        load = traced(text, run_s=1.0)
    except DataError:
        return
    assert len(load.run_s) <= text.count("\n") + text.count("\r") + 1
