"""Tests of `AudioFormat`: samples and times of windows, FLAC, resampling, damaged files."""

import io
import sys
import tracemalloc

import numpy as np
import psutil
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.block import Position
from headrace.core.errors import ConfigError, CorruptError, MissingExtraError, TruncatedError
from headrace.formats.contract import BLOCK_BYTES_MAX
from headrace.formats.media.audio import WINDOWS_MAX, AudioFormat

RNG = np.random.default_rng(5)
FIRST = Position("memory://a.wav", record=0, line=1)


def encode(samples, rate_hz=1000, kind="WAV", subtype="PCM_16"):
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, format=kind, subtype=subtype)
    return file.getvalue()


def decode_reference(data):
    return soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)[0]


def blocks_of(data, first=FIRST, **options):
    chunks = data if isinstance(data, list) else [data]
    return list(AudioFormat(**options).blocks(chunks, first))


def column(blocks, name="audio"):
    return np.concatenate([block.columns[name] for block in blocks])


def expected_windows(samples, window, hop, pad):
    """Return the expected windows by a direct implementation of the definition."""
    windows, start, covered = [], 0, 0
    while start + window <= len(samples):
        windows.append(samples[start : start + window])
        covered, start = start + window, start + hop
    if pad and len(samples) > max(covered, start):
        rest = samples[start:]
        windows.append(np.concatenate([rest, np.zeros(window - len(rest), np.float32)]))
    return windows


@given(
    st.integers(0, 400),
    st.integers(1, 50),
    st.integers(1, 80),
    st.booleans(),
    st.sampled_from(["FLOAT", "PCM_16"]),
)
def test_windows_cover_the_expected_samples(n, window, hop, pad, subtype):
    """Overlapping, adjoining and gapped windows, with and without the padded last window."""
    data = encode(RNG.uniform(-1, 1, n), subtype=subtype)
    blocks = blocks_of(data, window_ms=window, hop_ms=hop, pad_last=pad)
    expected = expected_windows(decode_reference(data)[:, 0], window, hop, pad)
    assert sum(len(b) for b in blocks) == len(expected)
    for block in blocks:
        assert block.columns["audio"].dtype == np.float32
        assert block.columns["audio"].shape == (len(block), window)
        first = block.first.record
        np.testing.assert_array_equal(block.columns["audio"], expected[first : first + len(block)])
        np.testing.assert_array_equal(block.columns["time_ms"], np.arange(first, first + len(block)) * hop)
        assert block.first.byte == len(data) - n * (4 if subtype == "FLOAT" else 2) + first * hop * (
            4 if subtype == "FLOAT" else 2
        )


def test_mono_is_the_channel_mean_and_keep_returns_all_channels():
    data = encode(RNG.uniform(-1, 1, (100, 3)))
    samples = decode_reference(data)
    mono = column(blocks_of(data, window_ms=25))
    all_channels = column(blocks_of(data, window_ms=25, channels="keep"))
    np.testing.assert_allclose(mono, samples.mean(axis=1).reshape(4, 25), atol=1e-7)
    np.testing.assert_array_equal(all_channels, samples.T.reshape(3, 4, 25).transpose(1, 0, 2))


def test_columns_have_one_row_per_window():
    (block,) = blocks_of(encode(np.zeros(10)), window_ms=4)
    assert (block.data, len(block), block.records) == (b"", 3, 3)
    assert block.columns["sample_rate_hz"].tolist() == [1000] * 3
    assert block.columns["sample_rate_hz"].dtype == np.int64
    assert block.columns["time_ms"].dtype == np.float64


def test_blocks_are_limited_in_windows_and_bytes():
    short = blocks_of(encode(np.zeros(10_000)), window_ms=1)
    assert [len(b) for b in short] == [WINDOWS_MAX] * (10_000 // WINDOWS_MAX) + [10_000 % WINDOWS_MAX]
    long = blocks_of(encode(np.zeros(400_000), 8000), window_ms=5000, hop_ms=50)
    assert {b.columns["audio"].nbytes <= BLOCK_BYTES_MAX for b in long} == {True}
    huge = blocks_of(encode(np.zeros(600_000), 8000), window_ms=35_000)
    assert [len(b) for b in huge] == [1, 1, 1]


@pytest.mark.parametrize("subtype", ["PCM_S8", "PCM_16", "PCM_24"])
@for_each("channels", [1, 2])
def test_flac_samples_equal_those_of_libsndfile(subtype, channels):
    data = encode(RNG.uniform(-1, 1, (20_000, channels)), 16000, "FLAC", subtype)
    blocks = blocks_of(data, window_ms=62.5, channels="keep")
    all_channels = column(blocks).transpose(0, 2, 1).reshape(-1, channels)
    np.testing.assert_array_equal(all_channels, decode_reference(data))
    assert {b.first.byte for b in blocks} == {0}
    assert column(blocks, "time_ms").tolist() == [62.5 * i for i in range(20)]


@for_each(("rate_in", "rate_out"), [(44100, 16000), (8000, 16000), (48000, 8000)])
@pytest.mark.parametrize("kind", ["WAV", "FLAC"])
def test_resampling_preserves_a_tone(rate_in, rate_out, kind):
    """A 440 Hz tone keeps its frequency, phase and length in each channel."""
    n = rate_in
    tone = np.sin(2 * np.pi * 440 * np.arange(n) / rate_in) * 0.8
    data = encode(np.stack([tone, -tone / 2], axis=1), rate_in, kind)
    out = column(blocks_of(data, window_ms=100, sample_rate_hz=rate_out, channels="keep", pad_last=False))
    assert (out.dtype, out.shape[1:]) == (np.float32, (2, rate_out // 10))
    assert len(out) in (9, 10)
    flat = out.transpose(1, 0, 2).reshape(2, -1)
    expected = np.sin(2 * np.pi * 440 * np.arange(flat.shape[1]) / rate_out) * 0.8
    inside = slice(200, flat.shape[1] - 400)  # The filter rings at the edges.
    np.testing.assert_allclose(flat[0, inside], expected[inside], atol=2e-3)
    np.testing.assert_allclose(flat[1, inside], -expected[inside] / 2, atol=2e-3)


def test_resampling_starts_no_threads():
    """By default FFmpeg's filters start one thread per core for every channel of every file."""
    data = encode(np.zeros((20_000, 4)), 8000)
    process = psutil.Process()
    before = {thread.id for thread in process.threads()}
    blocks = AudioFormat(window_ms=10, sample_rate_hz=16000, channels="keep").blocks([data], FIRST)
    next(blocks)
    assert {thread.id for thread in process.threads()} <= before


def test_resampled_windows_have_byte_offsets_of_the_file():
    data = encode(np.zeros(80_000), 8000)
    blocks = blocks_of(data, window_ms=10, sample_rate_hz=16000)
    header = len(data) - 160_000
    assert [b.first.byte for b in blocks][:2] == [header, header + WINDOWS_MAX * 80 * 2]


def read_until_error(data, **options):
    """Return the windows before the error, and the error."""
    blocks = []
    with pytest.raises((CorruptError, TruncatedError)) as caught:
        blocks.extend(AudioFormat(**options).blocks([data], FIRST))
    return (column(blocks) if blocks else np.empty((0, 0))), caught.value


def test_truncated_wav_yields_its_complete_windows():
    data = encode(RNG.uniform(-1, 1, 1000))
    windows, error = read_until_error(data[:-901], window_ms=10)
    assert len(windows) == 54  # 549 samples: 54 complete windows and no padded one.
    np.testing.assert_array_equal(windows.reshape(-1), decode_reference(data)[:540, 0])
    assert isinstance(error, TruncatedError)


def test_truncated_flac_yields_its_complete_windows():
    data = encode(RNG.uniform(-1, 1, 40_000), 16000, "FLAC")
    windows, error = read_until_error(data[: len(data) * 2 // 3], window_ms=10)
    assert isinstance(error, TruncatedError)
    assert len(windows) * 160 >= 20_000
    np.testing.assert_array_equal(windows.reshape(-1), decode_reference(data)[: windows.size, 0])


@for_each("length", [1, 400, 9000])
def test_flac_damage_ends_the_windows_at_the_damage(length):
    """FFmpeg drops damaged frames and continues; windows after the gap would have wrong times."""
    data = bytearray(encode(RNG.uniform(-1, 1, 40_000), 16000, "FLAC"))
    middle = len(data) // 2
    data[middle : middle + length] = bytes(b ^ 0x55 for b in data[middle : middle + length])
    windows, error = read_until_error(bytes(data), window_ms=10)
    assert not isinstance(error, TruncatedError)
    assert 10_000 <= windows.size <= 20_000
    clean = encode(np.zeros(1), 16000, "FLAC")
    assert clean[:4] == b"fLaC"


@for_each(
    ("data", "kind", "why"),
    [
        (b"", TruncatedError, "0 bytes"),
        (b"fLaC", TruncatedError, "header ends after 4 bytes"),
        (b"ID3\x04and so on", CorruptError, "starts with b'ID3"),
        (b"fLaC" + b"\x7f" * 60, CorruptError, "STREAMINFO"),
        (b"fLaC" + b"\0" * 60, CorruptError, "0 Hz"),
    ],
)
def test_non_audio_input_is_rejected(data, kind, why):
    with pytest.raises(kind, match=why):
        blocks_of(data, window_ms=10)


def test_window_above_the_size_limit_is_rejected():
    """The header may claim ten million samples per second."""
    data = bytearray(encode(np.zeros(10)))
    data[24:28] = (10_000_000).to_bytes(4, "little")
    with pytest.raises(CorruptError, match="one window of 5000"):
        blocks_of(bytes(data), window_ms=5000)


def test_unsupported_resampling_rate_is_corrupt():
    data = bytearray(encode(np.zeros(10)))
    data[24:28] = (9_999_991).to_bytes(4, "little")
    with pytest.raises(CorruptError, match="cannot be resampled") as caught:
        blocks_of(bytes(data), window_ms=1, sample_rate_hz=9_999_973)
    assert caught.value.byte == 44


def test_chunk_errors_propagate_after_the_windows():
    """FFmpeg, which reads FLAC, would reword these errors."""
    for kind in ("WAV", "FLAC"):
        data = encode(RNG.uniform(-1, 1, 40_000), 16000, kind)
        error = TruncatedError("the gzip stream ends early", byte=7)

        def chunks(data=data, error=error):
            yield data[: len(data) // 2]
            raise error

        blocks = []
        with pytest.raises(TruncatedError) as caught:
            blocks.extend(AudioFormat(window_ms=10).blocks(chunks(), FIRST))
        assert caught.value is error
        assert column(blocks).size > 10_000


@for_each("length", [0, 2, 20, 42])
@pytest.mark.parametrize("kind", ["WAV", "FLAC"])
def test_chunk_errors_propagate_from_the_header(kind, length):
    error = OSError("gone")

    def chunks():
        yield encode(np.zeros(10), kind=kind)[:length]
        raise error

    with pytest.raises(OSError, match="gone") as caught:
        next(AudioFormat(window_ms=10).blocks(chunks(), FIRST))
    assert caught.value is error


@for_each(
    "options",
    [
        {"window_ms": 0},
        {"window_ms": float("nan")},
        {"window_ms": 10, "hop_ms": -1},
        {"window_ms": 10, "sample_rate_hz": 0},
        {"window_ms": 10, "channels": "left"},
    ],
)
def test_invalid_options_are_rejected(options):
    with pytest.raises(ConfigError):
        AudioFormat(**options)


def test_missing_extra_is_named_for_flac_and_resampling(monkeypatch):
    monkeypatch.delitem(sys.modules, "headrace.formats.media.container", raising=False)
    monkeypatch.delattr("headrace.formats.media.container", raising=False)
    monkeypatch.setitem(sys.modules, "av", None)
    wav = encode(np.zeros(100))
    assert len(column(blocks_of(wav, window_ms=10))) == 10
    for data, options in ((encode(np.zeros(100), kind="FLAC"), {}), (wav, {"sample_rate_hz": 500})):
        with pytest.raises(MissingExtraError, match=r"headrace\[audio\]"):
            blocks_of(data, window_ms=10, **options)


def long_wav_chunks(seconds, rate_hz=48_000):
    """Yield the header of a piped WAV file, then silence."""
    head = bytearray(encode(np.zeros((0, 2)), rate_hz))
    head[4:8] = head[-4:] = b"\xff" * 4
    yield bytes(head)
    silence = bytes(1 << 20)
    for _ in range(seconds * rate_hz * 4 // len(silence)):
        yield silence


def test_memory_of_a_long_stream_is_bounded():
    """200 MB of WAV are read in less than 16 MB of memory."""
    tracemalloc.start()
    try:
        windows = sum(len(b) for b in AudioFormat(window_ms=500).blocks(long_wav_chunks(1100), FIRST))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert windows > 2100
    assert peak < 16e6


def test_gaps_between_windows_are_not_buffered():
    """With one window per 200 s, the samples between windows are dropped as they arrive."""
    tracemalloc.start()
    try:
        blocks = list(AudioFormat(window_ms=10, hop_ms=200_000).blocks(long_wav_chunks(500), FIRST))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert column(blocks, "time_ms").tolist() == [0, 200_000, 400_000]
    assert peak < 16e6
