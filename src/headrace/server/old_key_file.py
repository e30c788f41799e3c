"""The key file of earlier versions, with lines ``ROLE NAME KEY``. The next release removes this module."""

import warnings
from typing import Final

from headrace.core.api_key import KEY_CHARS_MIN, hash_key
from headrace.core.errors import ConfigError
from headrace.jobs.access import ApiKey, Scope

_SCOPES: Final = {"infer": Scope.INFER, "admin": Scope.MODELS}


def is_old_key_file(text: str) -> bool:
    """Return True if the first line that is no comment has the form ``ROLE NAME KEY``."""
    lines = (line.split() for line in text.splitlines())
    first = next((words for words in lines if words and not words[0].startswith("#")), None)
    return first is not None and len(first) > 2 and first[1] != "="


def parse_old_keys(text: str, where: str) -> dict[bytes, ApiKey]:
    """Return the keys of lines ``ROLE NAME KEY`` by their digests, and warn that the format is deprecated.

    Raises:
        ConfigError: A line is malformed.
    """
    # A FutureWarning, because the reader of this warning wrote a file, not Python.
    warnings.warn(
        f"{where}: lines ROLE NAME KEY are deprecated: replace each by the lines that "
        "'headrace keys new NAME --scope infer' prints (for the role admin: --scope models)",
        FutureWarning,
        stacklevel=2,
    )
    keys: dict[bytes, ApiKey] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 3 or words[0] not in _SCOPES:
            raise ConfigError(f"{where}, line {number}: must be ROLE NAME KEY with the role infer or admin")
        role, name, key = words
        if len(key) < KEY_CHARS_MIN:
            raise ConfigError(
                f"{where}: API key {name!r} is too short: at least {KEY_CHARS_MIN} characters are needed"
            )
        keys[hash_key(key)] = ApiKey(name, name, frozenset({_SCOPES[role]}))
    return keys
