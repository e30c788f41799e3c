"""What the small files of a Hugging Face folder say, before anything large is read."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import orjson

from headrace.core.errors import ConfigError, ModelLoadError
from headrace.runtimes.text import one_line

_TASKS: Final = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
    "ForMaskedLM": "fill-mask",
}


def task_of(path: Path) -> str:
    """What the first architecture of the folder's configuration is for."""
    try:
        config: Any = orjson.loads((path / "config.json").read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise ModelLoadError(
            path.name, f"{path / 'config.json'} cannot be read: {one_line(error)}"
        ) from error
    name = _architecture(config)
    for ending, task in _TASKS.items():
        if name.endswith(ending):
            return task
    if name.endswith("Model"):
        return "feature-extraction"
    raise ConfigError(
        f"{path}: its architecture {name or 'is not told'}: say what it is for with the option task"
    )


def _architecture(config: Any) -> str:
    """The first that the configuration names; empty where it names none."""
    named = cast("Mapping[str, Any]", config).get("architectures") if isinstance(config, dict) else None
    return str(cast("Sequence[Any]", named)[0]) if isinstance(named, list) and named else ""


def sentence_settings(path: Path) -> tuple[str, bool, int | None]:
    """Pooling, normalisation and longest text as sentence-transformers writes them; mean and no more without."""
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
