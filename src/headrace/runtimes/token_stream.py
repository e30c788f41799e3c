"""Generated tokens on their way to a client: out of the generating thread, and into text."""

from collections.abc import Generator, Iterable, Iterator
from queue import SimpleQueue
from typing import Any


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
