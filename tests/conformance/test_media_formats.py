"""Media formats: their records do not depend on the cuts between chunks."""

import io

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from cases import for_each
from formats.media import video_files
from headrace.core.block import Position
from headrace.core.errors import CorruptError
from headrace.formats.media.audio import AudioFormat
from headrace.formats.media.image import ImageFormat
from headrace.formats.media.video import VideoFormat

RNG = np.random.default_rng(11)
FIRST = Position("memory://bucket/archive.tar", member="m", record=3, line=1, byte=0, member_byte=512)


def image(kind, **options):
    file = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (24, 32, 3), dtype=np.uint8)).save(file, kind, **options)
    return file.getvalue()


def sound(kind, **options):
    file = io.BytesIO()
    soundfile.write(file, RNG.uniform(-1, 1, (3000, 2)), 8000, format=kind, **options)
    return file.getvalue()


VIDEO = {"frames": 20, "size": (16, 32)}
CASES = {
    "jpeg": (ImageFormat(size_px=(6, 8)), image("JPEG")),
    "png": (ImageFormat(), image("PNG")),
    "gif": (ImageFormat(mode="L"), image("GIF")),
    "webp": (ImageFormat(), image("WEBP")),
    "tiff": (ImageFormat(), image("TIFF", compression="tiff_lzw")),
    "not an image": (ImageFormat(), b"a,b\n1,2\n" * 300),
    "wav": (AudioFormat(window_ms=10, hop_ms=7), sound("WAV")),
    "wav24": (AudioFormat(window_ms=11.3, channels="keep"), sound("WAV", subtype="PCM_24")),
    "wav resampled": (AudioFormat(window_ms=10, sample_rate_hz=11025), sound("WAV")),
    "flac": (AudioFormat(window_ms=10, pad_last=False), sound("FLAC")),
    "mp4": (VideoFormat(), video_files.fragmented(**VIDEO)),
    "matroska": (VideoFormat(every_frames=3, size_px=(8, 8)), video_files.encode_video("matroska", **VIDEO)),
    "webm": (VideoFormat(every_ms=100), video_files.encode_video("webm", "libvpx", pipe=True, **VIDEO)),
}


def outcome(format_, chunks):
    """Return all that a reader sees: blocks in order, and the error that ended them."""
    seen = []
    try:
        for block in format_.blocks(chunks, FIRST):
            columns = {k: (v.dtype.str, v.shape, v.tobytes()) for k, v in block.columns.items()}
            seen.append((block.first, len(block), block.data, columns, block.failures))
            assert all(len(column) == len(block) for column in block.columns.values())
            assert not block.starts.any()
            assert not block.ends.any()
    except CorruptError as error:
        seen.append((type(error), str(error), error.byte))
    return seen


def reused(data, cuts):
    """Yield chunks as views of one buffer that is overwritten each time."""
    buffer = bytearray(len(data))
    for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
        buffer[: stop - start] = data[start:stop]
        yield memoryview(buffer)[: stop - start]
        buffer[:] = b"\xaa" * len(data)


@pytest.mark.parametrize("name", CASES)
@given(choice=st.data())
def test_chunk_edges_change_nothing(name, choice):
    """Complete and truncated files give the same blocks and the same error."""
    format_, data = CASES[name]
    length = choice.draw(st.one_of(st.just(len(data)), st.integers(0, len(data))), label="length")
    data = data[:length]
    cuts = sorted(choice.draw(st.lists(st.integers(0, length), max_size=12), label="cuts"))
    assert outcome(format_, reused(data, cuts)) == outcome(format_, [data])


@pytest.mark.parametrize("name", CASES)
@given(choice=st.data())
def test_damage_is_a_failure_or_a_corrupt_error(choice, name):
    """No bytes raise another error, so one bad file does not stop a run."""
    format_, data = CASES[name]
    broken = bytearray(data)
    for at in choice.draw(st.lists(st.integers(0, len(data) - 1), min_size=1, max_size=9), label="at"):
        broken[at] = choice.draw(st.integers(0, 255), label="byte")
    outcome(format_, [bytes(broken)])


@for_each("name", CASES)
def test_single_bytes_are_enough(name):
    format_, data = CASES[name]
    whole = outcome(format_, [data])
    assert outcome(format_, (data[i : i + 1] for i in range(len(data)))) == whole
    assert sum(seen[1] + len(seen[4]) for seen in whole) > 0


@for_each("name", CASES)
def test_records_are_numbered_without_gaps(name):
    """Each block begins after the previous one, counted from the first position."""
    format_, data = CASES[name]
    record = FIRST.record
    for block in format_.blocks([data], FIRST):
        assert block.first.record == record
        assert (block.first.member, block.first.member_byte, block.first.line) == ("m", 512, 1)
        record += block.records


@for_each("name", CASES)
def test_chunks_are_read_to_their_end(name):
    """Only so the source of the chunks can detect damage behind the last record: a wrong checksum."""
    format_, data = CASES[name]
    finished = []

    def chunks():
        yield data
        finished.append(1)

    outcome(format_, chunks())
    assert finished
