"""Generated tokens on their way to a caller: out of the thread that makes them, and into text."""

from collections.abc import Generator, Iterable, Iterator
from queue import SimpleQueue
from typing import Any


class TokenQueue:
    """What ``generate`` calls a streamer: hands tokens over as they are made. Bounded by ``max_new_tokens``."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[list[int] | None] = SimpleQueue()
        self._in_prompt = True

    def put(self, value: Any) -> None:
        """Tokens of the one row; the first call brings the prompt."""
        if not self._in_prompt:
            self._queue.put(value.reshape(-1).tolist())
        self._in_prompt = False

    def end(self) -> None:
        """No more will come; may be called twice."""
        self._queue.put(None)

    def __iter__(self) -> Iterator[list[int]]:
        while (tokens := self._queue.get()) is not None:
            yield tokens


def texts_of(tokens: Iterable[list[int]], tokenizer: Any) -> Generator[str]:
    """The text of each token, as soon as its characters are whole.

    A tokenizer decodes a token differently at the start of a text: each is decoded behind the ones before it, the last
    that made whole characters. Nothing of a text is said twice, nothing is left out.
    """
    seen: list[int] = []
    window = said = 0
    for more in tokens:
        seen += more
        before = tokenizer.decode(seen[window:said], skip_special_tokens=True)
        text = tokenizer.decode(seen[window:], skip_special_tokens=True)
        # An unfinished character is decoded as a replacement: its other bytes come with the next tokens.
        if len(text) > len(before) and not text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield text[len(before) :]
            window, said = said, len(seen)
    rest = tokenizer.decode(seen[window:], skip_special_tokens=True)
    before = tokenizer.decode(seen[window:said], skip_special_tokens=True)
    if len(rest) > len(before):
        yield rest[len(before) :]
