"""Settings that are declared once, as fields of dataclasses.

::

    batch_bytes_max: Annotated[int, Setting("Batch size in bytes.", least=1)] = 64 << 20

The field has the name, the type, the default and, as a `Literal`, the choices. `Setting` adds the
help and the bounds. The command line, the readers of files, the JSON Schemas and
docs/reference/settings.md read these declarations; nothing else repeats them.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, fields
from functools import cache
from math import inf
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, cast, get_args, get_origin, get_type_hints

from headrace.core.errors import ConfigError

_SIZE: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([kmg]?)(?:i?b)?", re.IGNORECASE | re.ASCII)
_SCALES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_UNITS: Final = {
    "bytes": "bytes",
    "rows": "rows",
    "s": "seconds",
    "ms": "milliseconds",
    "hz": "hertz",
    "days": "days",
}
"""Units by the word of a setting's name that stands for them."""
_SHOWN_CHARACTERS_MAX: Final = 40


@dataclass(frozen=True, slots=True)
class Setting:
    """The declaration of a setting, beside the name, type and default of its field.

    Attributes:
        help: A noun phrase with the unit, as one line of the command line's help.
        name: The name for users, where the field's own name is unclear outside of its class.
        option: The option's name without dashes, where it differs: the singular of a list.
        old_names: Deprecated names, which work for one release.
        least: The smallest value; of a list, the smallest of each item.
        above: The bound that values must exceed, in place of `least`.
        most: The largest value. Infinity is refused unless it is this bound.
        default: The meaning of an absent value, for a default that does not say it itself.
        expected: The values that are accepted, for messages; without it, derived from the type.
        metavar: The form of the value in the command line's help.
        written: The type in files, where it is not the field's.
        parse: The function from a value in a file to the field's value; raises ConfigError.
        python_only: True for a setting without an option and without a key.
    """

    help: str
    name: str = ""
    option: str = ""
    old_names: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    most: float | None = None
    default: str = ""
    expected: str = ""
    metavar: str = ""
    written: Any = None
    parse: Callable[[Any], Any] | None = None
    python_only: bool = False


@dataclass(frozen=True, slots=True)
class DeclaredSetting:
    """A field of a settings class with its declaration.

    Attributes:
        field: The name of the field.
        type: The type without None and without its declaration.
        optional: True if None is a value.
        item: The type of the items of a list, or None.
        default: The default, or `dataclasses.MISSING`.
        setting: The declaration.
    """

    field: str
    type: Any
    optional: bool
    item: Any
    default: Any
    setting: Setting

    @property
    def name(self) -> str:
        """The name for users: the key in files, and the option with underscores."""
        return self.setting.name or self.field

    @property
    def option(self) -> str:
        """The option of the command line, with dashes."""
        return "--" + (self.setting.option or self.name).replace("_", "-")

    @property
    def unit(self) -> str:
        """The unit, from the name; "" without one."""
        words = self.name.split("_")
        return next((unit for word, unit in _UNITS.items() if word in words), "")

    @property
    def is_size(self) -> bool:
        """True for a size in bytes, which can be written with a unit: ``16MiB``."""
        return self.unit == "bytes" and self.type is int

    @property
    def choices(self) -> tuple[str, ...]:
        """The words of a `Literal`; empty for other types."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def document_type(self) -> Any:
        """The type of the value in a file."""
        return self.setting.written or self.type

    @property
    def expected(self) -> str:
        """The values that are accepted, as the end of a message: ``a whole number of 1 or more``."""
        if self.setting.expected:
            return self.setting.expected
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.is_size:
            return f'a size in bytes{self._range()}, such as 1000 or "64MiB"'
        if self.item is not None:
            return f"a list of {_NOUNS.get(self.item, ('', 'values'))[1]}{self._range()}"
        return _NOUNS.get(self.type, ("a table", ""))[0] + self._range()

    def accepts(self, value: Any) -> bool:
        """Return True for a value, of the right type, with a known word and within the bounds."""
        if value is None:
            return self.optional
        if self.item is not None:
            return isinstance(value, (tuple, list, frozenset, set)) and all(
                self._accepts_one(each, self.item) for each in cast("Iterable[Any]", value)
            )
        return self._accepts_one(value, self.type)

    def _accepts_one(self, value: Any, kind: Any) -> bool:
        if get_origin(kind) is Literal:
            return value in get_args(kind)
        if kind is bool:
            return isinstance(value, bool)
        if kind not in (int, float):
            return True
        if isinstance(value, bool) or not isinstance(value, Integral if kind is int else Real):
            return False
        bounds, number = self.setting, cast("Any", value)
        # NaN is within no bound.
        return (abs(number) != inf or bounds.most == inf) and (
            (bounds.least is None or number >= bounds.least)
            and (bounds.above is None or number > bounds.above)
            and (bounds.most is None or number <= bounds.most)
        )

    def _range(self) -> str:
        least, above = self.setting.least, self.setting.above
        most = None if self.setting.most == inf else self.setting.most
        if above is not None:
            return f" above {above:.15g}" + ("" if most is None else f", at most {most:.15g}")
        if least is None:
            return "" if most is None else f" of at most {most:.15g}"
        return f" of {least:.15g} or more" if most is None else f" from {least:.15g} to {most:.15g}"


_NOUNS: Final[dict[Any, tuple[str, str]]] = {
    bool: ("true or false", "flags"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("text", "texts"),
    Path: ("a path", "paths"),
}


@cache
def declared_settings(kind: type) -> tuple[DeclaredSetting, ...]:
    """Return the settings that a dataclass declares, in the order of its fields."""
    hints = get_type_hints(kind, include_extras=True)
    found: list[DeclaredSetting] = []
    for field in fields(kind):
        hint = hints[field.name]
        if get_origin(hint) is not Annotated:
            continue
        inner, *marks = get_args(hint)
        setting = next((mark for mark in marks if isinstance(mark, Setting)), None)
        if setting is not None:
            factory = cast("Any", field.default_factory)
            default = field.default if factory is MISSING else factory()
            kind, optional = _without_none(inner)
            found.append(DeclaredSetting(field.name, kind, optional, _item_type(kind), default, setting))
    return tuple(found)


def _item_type(kind: Any) -> Any:
    """Return the type of the items of a list, or None for another type."""
    origin, arguments = get_origin(kind), get_args(kind)
    return arguments[0] if origin is frozenset or (origin is tuple and arguments[1:] == (...,)) else None


def check(settings: Any) -> None:
    """Raise ConfigError for a value outside of its declaration. For ``__post_init__``."""
    for declared in declared_settings(settings.__class__):
        value = getattr(settings, declared.field)
        if not declared.accepts(value):
            raise refusal(declared.field, declared, value)


def refusal(where: str, declared: DeclaredSetting, value: Any) -> ConfigError:
    """Return the error for a value that is not accepted; `where` names the setting."""
    try:
        shown = repr(value)
    except (RecursionError, ValueError):  # too deeply nested, or an integer of too many digits
        shown = f"this {type(value).__name__}"
    if len(shown) > _SHOWN_CHARACTERS_MAX:
        shown = f"{shown[:_SHOWN_CHARACTERS_MAX]}…"
    return ConfigError(f"{where} must be {declared.expected}, not {shown}")


def parse_size(text: str) -> int | None:
    """Return the bytes of ``16MiB``, ``64k`` or ``1000``, or None for other text.

    Units are powers of 1024.
    """
    match = _SIZE.fullmatch(text.strip())
    return int(float(match[1]) * _SCALES[match[2].lower()]) if match else None


def format_size(size: int) -> str:
    """Return a size as `parse_size` reads it, with the largest unit that divides it."""
    for name, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size and size % scale == 0:
            return f"{size // scale}{name}"
    return str(size)


def _without_none(kind: Any) -> tuple[Any, bool]:
    """Return the type without None, and True if None was part of it."""
    if get_origin(kind) not in (Union, UnionType):
        return kind, False
    others = tuple(each for each in get_args(kind) if each is not NoneType)
    optional = len(others) < len(get_args(kind))
    return (others[0] if len(others) == 1 else Union[others]), optional  # noqa: UP007 - types at run time
