"""Tokens to text, piece by piece: whole characters, nothing twice, nothing left out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtimes.token_stream import TokenQueue, texts_of


class Bytes:
    """A tokenizer whose tokens are the bytes of UTF-8; 256 is special, and a leading space is left out, as many do."""

    longest = 0

    def decode(self, tokens, *, skip_special_tokens):
        assert skip_special_tokens
        self.longest = max(self.longest, len(tokens))
        return bytes(t for t in tokens if t < 256).decode(errors="replace").removeprefix(" ")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_pieces_join_to_the_text_whatever_its_characters(text):
    """Characters of several tokens come whole, and special tokens not at all."""
    pieces = list(texts_of(([t] for t in [*text.encode(), 256]), Bytes()))
    assert "".join(pieces) == text.removeprefix(" ")
    assert "" not in pieces


@given(st.text(max_size=20), st.integers(1, 5))
def test_tokens_may_come_several_at_a_time(text, size):
    tokens = list(text.encode(errors="replace"))
    groups = [tokens[at : at + size] for at in range(0, len(tokens), size)]
    assert "".join(texts_of(groups, Bytes())) == bytes(tokens).decode().removeprefix(" ")


def test_a_character_waits_for_its_last_token():
    tokens = "a\N{SNOWMAN}b c".encode()
    assert list(texts_of(([t] for t in tokens), Bytes())) == ["a", "\N{SNOWMAN}", "b", " ", "c"]
    assert list(texts_of(([t] for t in tokens[:2]), Bytes())) == ["a", "\N{REPLACEMENT CHARACTER}"]


def test_a_token_costs_the_same_at_the_end_of_a_long_text():
    """Only the last tokens are decoded again, not all that were said."""
    tokenizer = Bytes()
    assert "".join(texts_of(([t] for t in b"word " * 200), tokenizer)) == "word " * 200
    assert tokenizer.longest <= 3


def test_the_prompt_is_left_out_and_the_end_ends():
    numpy = pytest.importorskip("numpy")
    queue = TokenQueue()
    for tokens in ([[1, 2, 3]], [4], [5]):
        queue.put(numpy.array(tokens))
    queue.end()
    queue.end()
    assert list(queue) == [[4], [5]]
