"""Command line options that are made from declared settings, and the settings made from options.

An option that was not given has the value None, or () if it is repeatable: the setting's own default
then applies. Invalid values exit with status 2 before anything starts.
"""

import os
import tomllib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

import click
import orjson
from click.core import ParameterSource
from typing_extensions import override

from headrace.core.errors import ConfigError
from headrace.core.settings import (
    DeclaredSetting,
    declared_settings,
    format_size,
    parse_size,
)

Command = TypeVar("Command", bound=Callable[..., Any])
_T = TypeVar("_T")

POSITIVE: Final = click.FloatRange(min=0, min_open=True)


class ParsedType(click.ParamType):  # pyright: ignore[reportMissingTypeArgument] - not generic before 8.5
    """A type whose texts a function parses; its ValueError or ConfigError says why a text is invalid."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parse(value) if isinstance(value, str) else value
        except (ConfigError, ValueError) as error:
            self.fail(str(error), param, ctx)


def parse_bytes(text: str) -> int:
    """Return a size in bytes: ``16MiB``, ``64k`` or ``1000``. Units are powers of 1024."""
    if not (size := parse_size(text)):
        raise ValueError(f"{text!r} is not a size: write 16MiB, 64k or 1000")
    return size


def parse_json(text: str, option: str) -> Any:
    """Return the value of an option in JSON. Raise click.UsageError for other texts."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise click.UsageError(f"{option} is not valid JSON: {error}") from None


SIZE: Final = ParsedType("size", parse_bytes)
_METAVARS: Final = {int: "INTEGER", float: "FLOAT"}


class SettingOption(click.Option):
    """An option that is also the environment variable ``HEADRACE_`` and its name.

    A variable of the command, such as ``HEADRACE_SERVE_HOST``, takes precedence.
    """

    def __init__(self, *args: Any, declared: DeclaredSetting | None = None, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.declared = declared
        """The setting that the option was made from."""

    @override
    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        name = self._variable_in_use(ctx)
        return os.environ[name] if name else None

    @override
    def get_error_hint(self, ctx: click.Context | None) -> str:
        hint = super().get_error_hint(ctx)
        if ctx is None or ctx.get_parameter_source(str(self.name)) is not ParameterSource.ENVIRONMENT:
            return hint
        return f"{hint} (environment variable {self._variable_in_use(ctx)})"

    def _variable_in_use(self, ctx: click.Context) -> str:
        names = [self.variable]
        if ctx.auto_envvar_prefix:
            names.insert(0, f"{ctx.auto_envvar_prefix}_{str(self.name).upper()}")
        # Kubernetes sets HEADRACE_PORT=tcp://… for a service that is named headrace.
        values = {name: os.environ.get(name, "") for name in names}
        return next((n for n, v in values.items() if v and not (n.endswith("_PORT") and "://" in v)), "")

    @property
    def variable(self) -> str:
        """The environment variable for the option of any command."""
        return f"HEADRACE_{str(self.name).upper()}"


def option(*names: str, **attributes: Any) -> Callable[[Command], Command]:
    """Return a `click.option` for a value that no settings class declares, with its variable."""
    return click.option(*names, cls=SettingOption, **attributes)


def setting_options(
    *kinds: type,
    without: Container[str] = (),
    only: Container[str] | None = None,
    types: Mapping[str, ParsedType] = MappingProxyType({}),
    refused_choices: Mapping[str, Container[str]] = MappingProxyType({}),
) -> Callable[[Command], Command]:
    """Return the options of settings classes: each name once, none of `without`, and those of `only`.

    `types` are the types of settings that have a form of their own on the command line, by name.
    `refused_choices` are the words of a setting that the command has no use for.
    """
    found: dict[str, DeclaredSetting] = {}
    for kind in kinds:
        for declared in declared_settings(kind):
            wanted = declared.name not in without and (only is None or declared.name in only)
            if wanted and not declared.setting.python_only:
                found.setdefault(declared.name, declared)
    return combined_options(
        *(
            _setting_option(each, types.get(each.name), refused_choices.get(each.name, ()))
            for each in found.values()
        )
    )


def _setting_option(
    declared: DeclaredSetting, own_type: ParsedType | None, refused_choices: Container[str]
) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        names = [declared.option, declared.name]
        if declared.type is bool and (declared.optional or declared.default):
            names[0] = f"{declared.option}/--no-{declared.option.removeprefix('--')}"
        made = click.option(
            *names,
            cls=SettingOption,
            declared=declared,
            default=None,
            is_flag=declared.type is bool,
            multiple=declared.item is not None and own_type is None,
            type=None if declared.type is bool else own_type or _click_type(declared, refused_choices),
            metavar=declared.setting.metavar or (None if declared.is_size else _METAVARS.get(declared.type)),
            help=declared.setting.help + _shown_default(declared),
        )(command)
        for old in declared.setting.old_names:
            made = old_option_name("--" + old.replace("_", "-"), declared.option, declared.name)(made)
        return made

    return decorate


def _click_type(declared: DeclaredSetting, refused_choices: Container[str]) -> Any:
    kind, bounds = declared.item or declared.type, declared.setting
    if declared.choices:
        return click.Choice([word for word in declared.choices if word not in refused_choices])
    if declared.is_size:
        return SIZE
    if kind is Path:
        return click.Path(path_type=Path)
    if kind not in (int, float):
        return click.STRING
    low = bounds.least if bounds.above is None else bounds.above
    high = None if bounds.most == inf else bounds.most
    if kind is int:
        return click.IntRange(low if low is None else int(low), high if high is None else int(high))
    return click.FloatRange(low, high, min_open=bounds.above is not None)


def _shown_default(declared: DeclaredSetting) -> str:
    text = default_text(declared)
    return f"  [default: {text}]" if text else ""


def default_text(declared: DeclaredSetting) -> str:
    """Return the default of a setting as users write it; "" for an unset flag, and without a default."""
    value = declared.default
    if declared.setting.default:
        return declared.setting.default
    if isinstance(value, bool):
        return "true" if value else ""
    if not isinstance(value, (str, int, float)):
        return ""
    if isinstance(value, float):
        return f"{value:g}"
    return format_size(value) if declared.is_size and isinstance(value, int) else str(value)


def settings_from(kind: type[_T], params: Mapping[str, Any], **values: Any) -> _T:
    """Return settings from the options that were given, and from `values` by field.

    Raises:
        ConfigError: The settings refuse a value.
    """
    return kind(**given_values(kind, params), **values)


def given_values(kind: type, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the options that were given, by the fields of their settings."""
    return {
        declared.field: params[declared.name]
        for declared in declared_settings(kind)
        if params.get(declared.name) not in (None, ())
    }


def option_name(parameter: str) -> str:
    """Return the option of a parameter, for messages."""
    return "--" + parameter.replace("_", "-")


def keep_explicit(params: dict[str, Any], names: Iterable[str]) -> list[str]:
    """Return those of the parameters, which do not apply here, that the user set for this command.

    Forget the values of the others, which come from the environment: a variable is meant for commands
    to which it applies.
    """
    context = click.get_current_context(silent=True)
    found = [name for name in names if params[name] not in (None, ())]
    for name in found:
        if context is not None and context.get_parameter_source(name) is ParameterSource.ENVIRONMENT:
            params[name] = None
    return [name for name in found if params[name] is not None]


def combined_options(*parts: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return one decorator for several options; the help lists them in this order."""

    def decorate(command: Command) -> Command:
        for part in reversed(parts):
            command = part(command)
        return command

    return decorate


def old_option_name(
    old: str, new: str, name: str, convert: Callable[[str], str] = str
) -> Callable[[Command], Command]:
    """Return a hidden option whose value, converted, becomes the default of the option `new`.

    The old name works for one release, and prints a warning. A value under the new name on the
    command line takes precedence. `name` is the parameter of the option `new`.
    """

    def set_default(context: click.Context, _: click.Parameter, value: str | None) -> None:
        if value is None:
            return
        click.echo(f"warning: {old} is deprecated: use {new}", err=True)
        context.default_map = {**(context.default_map or {}), name: convert(value)}

    # Eager options are processed before the others, which then find their default.
    return click.option(
        old,
        hidden=True,
        is_eager=True,
        expose_value=False,
        callback=set_default,
        help=f"Deprecated name of {new}.",
    )


def key_values(pairs: Sequence[str], name: str) -> dict[str, Any]:
    """Return the values of ``KEY=VALUE`` by key: TOML values where they parse as such, else plain text.

    Raises:
        ConfigError: A text has no key or no ``=``. The message has the `name` of the option.
    """
    values: dict[str, Any] = {}
    for key, value in name_value_pairs(pairs, name, "KEY=VALUE").items():
        try:
            values[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            values[key] = value
    return values


def name_value_pairs(texts: Sequence[str], name: str, form: str = "NAME=VALUE") -> dict[str, str]:
    """Return ``NAME=VALUE`` options as text by name. Raise ConfigError for malformed pairs."""
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"{name} {text!r} must be {form}")
        pairs[key] = value
    return pairs


def log_options(verbose_help: str) -> Callable[[Command], Command]:
    """Return the options for logs, which all commands that log have."""
    return combined_options(
        option(
            "--log-format",
            type=click.Choice(["text", "json"]),
            default="text",
            show_default=True,
            help="Format of logs on standard error: for people (text), or a JSON object per line (json).",
        ),
        click.option("-v", "--verbose", count=True, help=verbose_help),
    )


RUN_LOG_OPTIONS = log_options("Log what the run does, not only warnings; -vv includes debug logs.")
SERVER_LOG_OPTIONS = log_options("Include debug logs.")
MODEL_OPTIONS_OPTION = click.option(
    "-O",
    "--option",
    "model_options",
    multiple=True,
    metavar="KEY=VALUE",
    help="Option of the model's runtime or class, as a TOML value or text. Repeatable.",
)


def model_options(params: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the options of the model, or None without any. Raises as `key_values`."""
    return key_values(params["model_options"], "--option") or None
