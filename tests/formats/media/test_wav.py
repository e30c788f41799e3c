"""Tests of the WAV reader against the standard library and libsndfile, and of unusual headers."""

import io
import struct
import wave

import numpy as np
import pytest
import soundfile

from cases import for_each
from headrace.core.errors import CorruptError, TruncatedError
from headrace.formats.media.audio import READ_BYTES, read_wav_header, read_wav_samples
from headrace.formats.media.chunkfile import ChunkFile

NOISE = np.random.default_rng(3).uniform(-0.9, 0.9, (1001, 2))


def encode(subtype, samples=NOISE, rate_hz=8000, kind="WAV"):
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, format=kind, subtype=subtype)
    return file.getvalue()


def decode(data):
    file = ChunkFile([data])
    header = read_wav_header(file)
    return header, np.concatenate(
        [np.empty((0, header.channels), np.float32), *read_wav_samples(file, header)]
    )


def riff(data, *, data_size=None, riff_size=None, before=b"", fmt=None):
    fmt = struct.pack("<HHIIHH", 1, 1, 8000, 16000, 2, 16) if fmt is None else fmt
    body = b"WAVE" + b"fmt " + struct.pack("<I", len(fmt)) + fmt + before
    body += b"data" + struct.pack("<I", len(data) if data_size is None else data_size) + data
    return b"RIFF" + struct.pack("<I", len(body) if riff_size is None else riff_size) + body


@pytest.mark.parametrize("kind", ["WAV", "WAVEX", "RF64"])
@for_each("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
@for_each("channels", [1, 2])
def test_samples_equal_those_of_libsndfile(kind, subtype, channels):
    data = encode(subtype, NOISE[:, :channels], kind=kind)
    expected, rate_hz = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    header, samples = decode(data)
    assert (header.sample_rate_hz, header.channels) == (rate_hz, channels)
    np.testing.assert_array_equal(samples, expected)


def test_samples_equal_those_of_the_standard_library():
    integers = np.arange(-32768, 32767, 7, dtype="<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, 44100, 0, "NONE", ""))
        writer.writeframes(integers.tobytes())
    _, samples = decode(file.getvalue())
    with wave.open(io.BytesIO(file.getvalue())) as reader:
        expected = np.frombuffer(reader.readframes(-1), "<i2") / 32768
    np.testing.assert_array_equal(samples[:, 0], expected.astype(np.float32))


def test_other_chunks_and_odd_padding_are_skipped():
    """A LIST chunk of odd length has a padding byte that its size excludes."""
    header, samples = decode(riff(b"\x00\x40", before=b"LIST" + struct.pack("<I", 5) + b"INFOx\0"))
    assert samples.tolist() == [[0.5]]
    assert header.data_byte == 36 + 8 + 6 + 8


@for_each("size", [0, 0xFFFFFFFF])
def test_unknown_size_extends_to_the_end(size):
    """A writer to a pipe cannot seek back to fill in the sizes."""
    _, samples = decode(riff(b"\x00\x40" * 50000, data_size=size, riff_size=36 if size == 0 else size))
    assert len(samples) == 50000


def test_empty_data_chunk_has_no_samples():
    """A data size of 0 in a finished file is correct: the LIST chunk after it is not audio."""
    data = riff(b"", data_size=0) + b"LIST" + struct.pack("<I", 4) + b"INFO"
    data = data[:4] + struct.pack("<I", len(data) - 8) + data[8:]
    assert len(decode(data)[1]) == 0


def test_samples_before_a_cut_are_yielded():
    data = encode("PCM_16", np.zeros((READ_BYTES, 1)))[:-1001]
    file = ChunkFile([data])
    parts = []
    with pytest.raises(TruncatedError, match="1001 bytes early") as caught:
        parts.extend(read_wav_samples(file, read_wav_header(file)))
    assert sum(len(p) for p in parts) == READ_BYTES - 501
    assert caught.value.byte == len(data)


def test_cut_within_a_sample_is_truncated():
    fmt = struct.pack("<HHIIHH", 1, 2, 8000, 32000, 4, 16)
    file = ChunkFile([riff(b"\0" * 10, data_size=0xFFFFFFFF, fmt=fmt)])
    with pytest.raises(TruncatedError, match="middle"):
        list(read_wav_samples(file, read_wav_header(file)))


def test_padding_byte_after_an_unknown_size_is_ignored():
    fmt = struct.pack("<HHIIHH", 1, 1, 8000, 24000, 3, 24)
    _, samples = decode(riff(b"\0" * 9 + b"\0", data_size=0xFFFFFFFF, fmt=fmt))
    assert len(samples) == 3


@for_each("length", [0, 5, 11, 14, 30, 40])
def test_cut_in_the_header_is_truncated(length):
    with pytest.raises(TruncatedError, match="before any sample"):
        read_wav_header(ChunkFile([riff(b"\0" * 100)[:length]]))


@for_each(
    ("data", "why"),
    [
        (b"RIFF\x00\x00\x00\x00AVI LIST", "not a WAV file"),
        (b"RIFX\x00\x00\x00\x00WAVE", "not a WAV file"),
        (riff(b"", fmt=struct.pack("<HHIIHH", 0x55, 2, 44100, 0, 1, 0)), "0x0055 is not supported"),
        (riff(b"", fmt=struct.pack("<HHIIHH", 1, 0, 44100, 0, 1, 8)), "invalid WAV header"),
        (riff(b"", fmt=struct.pack("<HHIIHH", 1, 1, 0, 0, 2, 16)), "invalid WAV header"),
        (riff(b"", fmt=struct.pack("<HHIIHH", 1, 1, 8000, 0, 2, 24)), "invalid WAV header"),
        (riff(b"", fmt=struct.pack("<HHIIHH", 1, 1, 1 << 31, 0, 2, 16)), "invalid WAV header"),
        (riff(b"", fmt=b"\0" * 8), "8 bytes"),
        (b"RIFF\x24\0\0\0WAVEdata\0\0\0\0", "no `fmt ` chunk"),
        (b"RIFF\x24\0\0\0WAVEfmt \xff\xff\xff\x7f", "claims"),
    ],
)
def test_unsupported_files_are_corrupt(data, why):
    with pytest.raises(CorruptError, match=why):
        read_wav_header(ChunkFile([data]))
