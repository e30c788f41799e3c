"""transform/split_speed.py: counts and rates."""

import make_data
import split_speed


def test_records_of_quoted_text_are_not_lines():
    text = b"".join(make_data.quoted_chunks(100, seed=0))
    chunks = [text[at : at + 997] for at in range(0, len(text), 997)]
    assert split_speed.cut(chunks, "csv") == 100
    assert split_speed.read_by_csv_module(chunks) == 100
    assert split_speed.count_newlines(chunks) == split_speed.cut(chunks, "jsonl") == 125


def test_rate_counts_all_bytes():
    speed, found = split_speed.mb_per_s(split_speed.count_newlines, [b"a\n" * 1000])
    assert found == 1000
    assert speed > 0
