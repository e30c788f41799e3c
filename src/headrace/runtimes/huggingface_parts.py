"""Parts of Hugging Face models that need no transformers: settings in a folder's files, and token streams."""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, cast

import orjson

from headrace.core.errors import ConfigError, ModelLoadError
from headrace.runtimes.model_io import summarize_error

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


class TokenQueue:
    """A streamer for ``generate``: a queue of tokens, bounded by ``max_new_tokens``."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[list[int] | None] = SimpleQueue()
        self._in_prompt = True

    def put(self, value: Any) -> None:
        """Add tokens of the one row. The first call brings the prompt, which is dropped."""
        if not self._in_prompt:
            self._queue.put(value.reshape(-1).tolist())
        self._in_prompt = False

    def end(self) -> None:
        """Mark the end. May be called twice."""
        self._queue.put(None)

    def __iter__(self) -> Iterator[list[int]]:
        while (tokens := self._queue.get()) is not None:
            yield tokens


def decode_token_stream(tokens: Iterable[list[int]], tokenizer: Any) -> Generator[str]:
    """Yield the text of each token as soon as its characters are complete.

    A tokenizer decodes a token differently at the start of a text. Each token is therefore decoded
    after the tokens before it, back to the last that gave complete characters. No text is repeated
    or lost.
    """
    seen: list[int] = []
    window = emitted = 0
    for more in tokens:
        seen += more
        before = tokenizer.decode(seen[window:emitted], skip_special_tokens=True)
        text = tokenizer.decode(seen[window:], skip_special_tokens=True)
        # An incomplete character is decoded as a replacement character. Its other bytes come with
        # the next tokens.
        if len(text) > len(before) and not text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield text[len(before) :]
            window, emitted = emitted, len(seen)
    rest = tokenizer.decode(seen[window:], skip_special_tokens=True)
    before = tokenizer.decode(seen[window:emitted], skip_special_tokens=True)
    if len(rest) > len(before):
        yield rest[len(before) :]
