"""Tokens to text in pieces: complete characters, without repetition or loss."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtimes.huggingface_parts import TokenQueue, decode_token_stream


class ByteTokenizer:
    """A tokenizer with UTF-8 bytes as tokens.

    Token 256 is special. A leading space is dropped, as in many tokenizers.
    """

    longest = 0

    def decode(self, tokens, *, skip_special_tokens):
        assert skip_special_tokens
        self.longest = max(self.longest, len(tokens))
        return bytes(t for t in tokens if t < 256).decode(errors="replace").removeprefix(" ")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_pieces_join_to_any_text(text):
    """Characters of several tokens are complete, and special tokens are missing."""
    pieces = list(decode_token_stream(([t] for t in [*text.encode(), 256]), ByteTokenizer()))
    assert "".join(pieces) == text.removeprefix(" ")
    assert "" not in pieces


@given(st.text(max_size=20), st.integers(1, 5))
def test_several_tokens_may_arrive_at_once(text, size):
    tokens = list(text.encode(errors="replace"))
    groups = [tokens[at : at + size] for at in range(0, len(tokens), size)]
    assert "".join(decode_token_stream(groups, ByteTokenizer())) == bytes(tokens).decode().removeprefix(" ")


def test_character_waits_for_its_last_token():
    tokens = "a\N{SNOWMAN}b c".encode()
    pieces = list(decode_token_stream(([t] for t in tokens), ByteTokenizer()))
    assert pieces == ["a", "\N{SNOWMAN}", "b", " ", "c"]
    pieces = list(decode_token_stream(([t] for t in tokens[:2]), ByteTokenizer()))
    assert pieces == ["a", "\N{REPLACEMENT CHARACTER}"]


def test_token_cost_is_constant():
    """Only the last tokens are decoded again, not the whole text."""
    tokenizer = ByteTokenizer()
    assert "".join(decode_token_stream(([t] for t in b"word " * 200), tokenizer)) == "word " * 200
    assert tokenizer.longest <= 3


def test_prompt_is_dropped_and_end_stops_iteration():
    numpy = pytest.importorskip("numpy")
    queue = TokenQueue()
    for tokens in ([[1, 2, 3]], [4], [5]):
        queue.put(numpy.array(tokens))
    queue.end()
    queue.end()
    assert list(queue) == [[4], [5]]
