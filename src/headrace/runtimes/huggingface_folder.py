"""Settings in the small files of a Hugging Face folder, read before the weights."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import orjson

from headrace.core.errors import ConfigError, ModelLoadError
from headrace.runtimes.text import summarize_error

_TASKS: Final = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
    "ForMaskedLM": "fill-mask",
}


def read_task(path: Path) -> str:
    """Return the task of the first architecture in the folder's configuration."""
    try:
        config: Any = orjson.loads((path / "config.json").read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise ModelLoadError(
            path.name, f"{path / 'config.json'} cannot be read: {summarize_error(error)}"
        ) from error
    name = _architecture(config)
    for ending, task in _TASKS.items():
        if name.endswith(ending):
            return task
    if name.endswith("Model"):
        return "feature-extraction"
    raise ConfigError(
        f"{path}: no task is known for architecture {name or '(none in config.json)'}: set the option task"
    )


def _architecture(config: Any) -> str:
    """Return the first architecture in the configuration, "" if there is none."""
    named = cast("Mapping[str, Any]", config).get("architectures") if isinstance(config, dict) else None
    return str(cast("Sequence[Any]", named)[0]) if isinstance(named, list) and named else ""


def read_sentence_settings(path: Path) -> tuple[str, bool, int | None]:
    """Return pooling, normalisation and longest text as sentence-transformers writes them.

    The default is mean pooling without normalisation and without a longest text.
    """
    modules = cast("Sequence[Mapping[str, Any]]", _json(path / "modules.json") or [])
    normalized = any(str(m.get("type", "")).endswith("Normalize") for m in modules)
    pooling = cast("Mapping[str, Any]", _json(path / "1_Pooling" / "config.json") or {})
    lengths = cast("Mapping[str, Any]", _json(path / "sentence_bert_config.json") or {})
    return (
        "cls" if pooling.get("pooling_mode_cls_token") else "mean",
        normalized,
        lengths.get("max_seq_length"),
    )


def _json(file: Path) -> Any:
    return orjson.loads(file.read_bytes()) if file.is_file() else None
