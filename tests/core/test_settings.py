"""Settings declared on fields: their names, bounds, choices and messages."""

from dataclasses import dataclass
from math import inf, nan
from typing import Annotated, Literal

import pytest

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.core.settings import Setting, check, declared_settings, format_size, parse_size


@dataclass(frozen=True, slots=True)
class Example:
    rows_max: Annotated[int, Setting("Limit of rows.", least=1, most=9)] = 4
    wait_s: Annotated[float | None, Setting("Wait in seconds.", above=0, most=inf, default="no limit")] = None
    mode: Annotated[Literal["a", "b"], Setting("Mode.", name="example_mode")] = "a"
    part_bytes: Annotated[int, Setting("Size of a part.", least=1)] = 1 << 20
    ports: Annotated[tuple[int, ...], Setting("Ports.", option="port", least=1)] = (443,)
    strict: Annotated[bool, Setting("Refuse.")] = False
    plain: int = 3

    def __post_init__(self) -> None:
        check(self)


SETTINGS = {declared.field: declared for declared in declared_settings(Example)}


def test_declared_fields_are_settings_in_their_order():
    assert list(SETTINGS) == ["rows_max", "wait_s", "mode", "part_bytes", "ports", "strict"]
    wait, mode = SETTINGS["wait_s"], SETTINGS["mode"]
    assert (wait.type, wait.optional, wait.default, wait.unit) == (float, True, None, "seconds")
    assert (mode.name, mode.option) == ("example_mode", "--example-mode")
    assert (mode.choices, SETTINGS["ports"].item, SETTINGS["ports"].option) == (("a", "b"), int, "--port")
    assert (SETTINGS["part_bytes"].is_size, SETTINGS["rows_max"].is_size) == (True, False)


@for_each(
    ("values", "message"),
    [
        ({"rows_max": 0}, "rows_max must be a whole number from 1 to 9, not 0"),
        ({"rows_max": 10}, "rows_max must be a whole number from 1 to 9, not 10"),
        ({"rows_max": True}, "rows_max must be a whole number from 1 to 9, not True"),
        ({"rows_max": 1.5}, "rows_max must be a whole number"),
        ({"rows_max": None}, "rows_max must be a whole number"),
        ({"rows_max": 10**5000}, "rows_max must be a whole number from 1 to 9, not this int"),
        ({"wait_s": 0}, "wait_s must be a number above 0, not 0"),
        ({"wait_s": nan}, "wait_s must be a number above 0, not nan"),
        ({"mode": "c"}, "mode must be one of a, b, not 'c'"),
        ({"mode": []}, r"mode must be one of a, b, not \[\]"),
        (
            {"part_bytes": 0},
            'part_bytes must be a size in bytes of 1 or more, such as 1000 or "64MiB", not 0',
        ),
        ({"ports": (443, 0)}, r"ports must be a list of whole numbers of 1 or more, not \(443, 0\)"),
        ({"ports": "443"}, "ports must be a list of whole numbers"),
        ({"strict": 1}, "strict must be true or false, not 1"),
    ],
)
def test_values_outside_of_the_declaration_are_refused(values, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        Example(**values)


def test_values_within_the_declaration_are_accepted():
    made = Example(9, inf, "b", 1, (1, 2), strict=True, plain=-1)
    assert (made.rows_max, made.wait_s, made.plain) == (9, inf, -1)
    assert Example(wait_s=None).wait_s is None
    assert Example(ports=[1]).ports == [1], "Python users may pass a list"


def test_sizes_have_units_of_1024():
    sizes = {"1000": 1000, "64k": 65536, "16 MiB": 16 << 20, "1.5g": 3 << 29, "2KB": 2048, "7B": 7}
    assert {text: parse_size(text) for text in sizes} == sizes
    assert all(parse_size(text) is None for text in ("", "-5", "inf", "1e3", "k", "5x", "1.2.3"))
    assert [format_size(size) for size in (0, 1000, 2048, 64 << 20, 3 << 29, 1 << 30)] == [
        "0",
        "1000",
        "2KiB",
        "64MiB",
        "1536MiB",
        "1GiB",
    ]
