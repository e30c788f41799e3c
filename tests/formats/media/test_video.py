"""Tests of `VideoFormat`: selected frames, times and pixels, damaged files, memory."""

import io
import sys

import numpy as np
import psutil
import pytest
from PIL import Image

from cases import for_each
from formats.media import video_files
from headrace.core.block import Position
from headrace.core.errors import ConfigError, CorruptError, MissingExtraError, StorageError, TruncatedError
from headrace.formats.media.video import BLOCK_PIXEL_BYTES_MAX, FRAMES_MAX, VideoFormat
from levels import by_level

FIRST = Position("memory://v.mp4", member="m", record=0, line=1)


def make_video(kind, tmp_path, **options):
    if kind == "faststart":
        return video_files.faststart(tmp_path, **options)
    if kind == "fragmented":
        return video_files.fragmented(**options)
    if kind == "webm":
        return video_files.encode_video("webm", "libvpx", pipe=True, **options)
    return video_files.encode_video("matroska", **options)


# A Matroska file of a version that no reader supports.
TOO_NEW = b"\x1a\x45\xdf\xa3\x84\x42\xf7\x81\x63" + b"\x18\x53\x80\x67\x87\x1f\x43\xb6\x75\x82\xec\x80"
KINDS = ["faststart", "fragmented", "matroska", "webm"]


def blocks_of(data, **options):
    return list(VideoFormat(**options).blocks([data], FIRST))


def column(blocks, name):
    return np.concatenate([block.columns[name] for block in blocks])


def read_until_error(data, **options):
    """Return the numbers of the frames before the error, and the error."""
    blocks = []
    chunks = data if not isinstance(data, bytes) else [data]
    with pytest.raises((CorruptError, StorageError)) as caught:
        blocks.extend(VideoFormat(**options).blocks(chunks, FIRST))
    if not blocks:
        return [], caught.value
    frames, times = column(blocks, "frame").tolist(), column(blocks, "time_ms")
    assert frames == [round((t - times[0]) / 40) for t in times], "a frame is missing before another"
    return frames, caught.value


def greys(numbers):
    return np.array([20 + n * video_files.STEP % 220 for n in numbers])


@pytest.mark.parametrize("kind", KINDS)
def test_all_frames_are_yielded_in_order(kind, tmp_path):
    blocks = blocks_of(make_video(kind, tmp_path))
    images = column(blocks, "image")
    assert (images.shape, images.dtype) == ((30, 32, 48, 3), np.uint8)
    assert column(blocks, "frame").tolist() == list(range(30))
    assert column(blocks, "frame").dtype == np.int64
    times = column(blocks, "time_ms")
    assert times.dtype == np.float64
    np.testing.assert_allclose(times - times[0], np.arange(30) * 40)
    assert np.abs(images.mean(axis=(1, 2, 3)) - greys(range(30))).max() < 3
    assert [b.first.record for b in blocks] == [0, FRAMES_MAX]
    assert {(b.data, b.first.byte, b.first.member) for b in blocks} == {(b"", 0, "m")}


def test_pixels_equal_those_of_pyav(tmp_path):
    import av

    data = make_video("faststart", tmp_path, noise=True)
    with av.open(str(tmp_path / "video.mp4")) as container:
        expected = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    np.testing.assert_array_equal(column(blocks_of(data), "image"), expected)


@for_each(("every", "expected"), [(1, range(30)), (7, [0, 7, 14, 21, 28]), (100, [0])])
def test_every_frames_selects_each_nth_frame(every, expected):
    blocks = blocks_of(video_files.encode_video("matroska"), every_frames=every)
    assert column(blocks, "frame").tolist() == list(expected)


@for_each(
    ("every_ms", "expected"),
    [
        (40, range(30)),
        (10, range(30)),  # A frame is selected once even if it is due several times.
        (
            100,
            [0, 3, 5, 8, 10, 13, 15, 18, 20, 23, 25, 28],
        ),  # No drift: frames are shown at 120, 200, 320, 400, ...
        (500, [0, 13, 25]),
        (5000, [0]),
    ],
)
@pytest.mark.parametrize("kind", ["matroska", "fragmented"])
def test_every_ms_selects_the_first_frame_of_each_period(every_ms, expected, kind, tmp_path):
    """Periods start at the first frame's time, which is not 0 in the fragmented file."""
    assert column(blocks_of(make_video(kind, tmp_path), every_ms=every_ms), "frame").tolist() == list(
        expected
    )


def test_every_ms_follows_presentation_times():
    data = video_files.encode_video("matroska", frames=6, times=[0, 1, 2, 50, 51, 80])
    blocks = blocks_of(data, every_ms=80)
    assert column(blocks, "frame").tolist() == [0, 2, 3, 5]
    assert column(blocks, "time_ms").tolist() == [0, 80, 2000, 3200]


def test_size_px_is_height_by_width():
    blocks = blocks_of(video_files.encode_video("matroska"), size_px=(20, 10))
    assert column(blocks, "image").shape == (30, 20, 10, 3)
    assert np.abs(column(blocks, "image").mean(axis=(1, 2, 3)) - greys(range(30))).max() < 3


@for_each("size_px", [None, (20, 10)])
def test_grey_frames_have_one_channel(size_px):
    """The grey values are those that Pillow computes from the colour frames."""
    data = video_files.encode_video("matroska", frames=4)
    grey = column(blocks_of(data, mode="L", size_px=size_px), "image")
    colour = column(blocks_of(data, size_px=size_px), "image")
    assert (grey.shape, grey.dtype) == ((*colour.shape[:3], 1), np.uint8)
    luma = np.stack([np.asarray(Image.fromarray(picture).convert("L")) for picture in colour])
    assert np.abs(grey[..., 0].astype(int) - luma).max() <= 2


@for_each(
    ("rotation", "size_px", "corner"),
    [(90, None, (-1, 0)), (-90, None, (0, -1)), (180, None, (-1, -1)), (90, (24, 16), (-1, 0))],
)
def test_rotated_video_is_upright(rotation, size_px, corner, tmp_path):
    """The bright corner is stored at the top left; the file's rotation is counterclockwise."""
    blocks = blocks_of(video_files.faststart(tmp_path, rotation=rotation, frames=2), size_px=size_px)
    image = column(blocks, "image")[0]
    assert image.shape == (*(size_px or ((32, 48) if rotation == 180 else (48, 32))), 3)
    assert image[corner].min() > 200
    assert image[image.shape[0] // 2, image.shape[1] // 2].max() < 100


def test_blocks_are_limited_in_bytes():
    blocks = blocks_of(video_files.encode_video("matroska", frames=5, size=(720, 1280)))
    assert [len(b) for b in blocks] == [3, 2]
    assert max(b.columns["image"].nbytes for b in blocks) <= BLOCK_PIXEL_BYTES_MAX


@for_each("codec", ["libx264", "mpeg4"])
@pytest.mark.parametrize("kind", ["faststart", "fragmented", "matroska"])
def test_frames_before_a_cut_are_yielded(kind, codec, tmp_path):
    """No frame follows a missing frame; it would have the wrong number."""
    data = (
        make_video(kind, tmp_path, codec=codec, noise=True)
        if kind != "matroska"
        else video_files.encode_video(kind, codec, noise=True)
    )
    for cut in range(len(data) // 2, len(data) - 100, len(data) // 25):
        frames, error = read_until_error(data[:cut])
        assert isinstance(error, TruncatedError)
        assert error.byte == cut
        assert frames == list(range(len(frames)))
        assert len(frames) >= whole_packets(data, cut) - 3  # The decoder holds some frames for reordering.


def whole_packets(data, cut):
    import av

    with av.open(io.BytesIO(data)) as container:
        ends = [p.pos + p.size + 12 for p in container.demux(video=0) if p.size]
    assert len(ends) == 30
    return sum(end <= cut for end in ends)


@pytest.mark.parametrize("kind", KINDS)
def test_cut_before_the_first_frame_is_truncated(kind, tmp_path):
    data = make_video(kind, tmp_path)
    for length in (5, 20, 100, 300):
        frames, error = read_until_error(data[:length])
        assert frames == []
        assert isinstance(error, TruncatedError), error


def test_index_without_media_is_truncated(tmp_path):
    data = video_files.faststart(tmp_path)
    frames, error = read_until_error(data[: data.index(b"mdat") - 4])
    assert frames == []
    assert isinstance(error, TruncatedError)


@for_each("length", [60, 2000])
@pytest.mark.parametrize("kind", ["faststart", "fragmented", "matroska"])
def test_frames_before_damage_are_yielded(kind, length, tmp_path):
    """The frames equal those of the undamaged file. FFmpeg would conceal the damage and continue.

    H.264 has no checksums, so some damage cannot be distinguished from image data.
    """
    data = bytearray(make_video(kind, tmp_path, noise=True, size=(64, 96)))
    clean = column(blocks_of(bytes(data)), "image")
    noticed = 0
    for start in range(len(data) * 4 // 10, len(data) * 6 // 10, len(data) // 30):
        broken = data.copy()
        broken[start : start + length] = bytes(b ^ 0x55 for b in data[start : start + length])
        blocks = []
        try:
            blocks.extend(VideoFormat().blocks([bytes(broken)], FIRST))
        except TruncatedError:
            pytest.fail("nothing was cut off")
        except CorruptError:
            images = column(blocks, "image")
            assert 7 <= len(images) <= 20
            np.testing.assert_array_equal(images, clean[: len(images)])
            noticed += 1
    assert noticed


def test_index_after_the_media_is_rejected_before_reading_it():
    """The box's header is sufficient; the gigabyte after it is not read."""
    extra_reads = []

    def chunks():
        data = video_files.encode_video("mp4")
        start = data.index(b"mdat") + 4
        yield data[: start - 8] + (1 << 30).to_bytes(4, "big") + b"mdat"
        while True:
            extra_reads.append(1)
            yield bytes(1 << 16)

    frames, error = read_until_error(chunks())
    assert frames == []
    assert "-movflags +faststart" in error.why
    assert len(extra_reads) <= 1


@pytest.mark.parametrize("kind", ["faststart", "matroska"])
def test_chunk_errors_propagate_after_the_frames(kind, tmp_path):
    data = make_video(kind, tmp_path, noise=True)
    error = StorageError("s3://b/k", "gone")

    def chunks():
        yield data[: len(data) // 2]
        raise error

    frames, caught = read_until_error(chunks())
    assert caught is error
    assert 8 <= len(frames) <= 16


@for_each(
    ("data", "kind", "why"),
    [
        (b"", TruncatedError, "0 bytes"),
        (b"GIF89a and so on", CorruptError, "starts with b'GIF89a"),
        (b"\x1a\x45\xdf\xa3\x80" + b"\xec\x84oops" * 9, TruncatedError, "first cluster"),
        (b"\0\0\0\x10ftypisom\0\0\0\0" + b"\0\0\0\x0cmoovoops", CorruptError, "no video stream"),
        (TOO_NEW, CorruptError, "not a readable matroska"),
    ],
)
def test_non_video_input_is_rejected(data, kind, why):
    frames, error = read_until_error(data)
    assert frames == []
    assert type(error) is kind
    assert why in error.why


def test_invalid_metadata_is_ignored():
    data = video_files.encode_video("matroska").replace(b"Lavf", b"\xff\xfe\xc1f")
    assert len(column(blocks_of(data), "frame")) == 30


def test_unknown_codec_is_corrupt():
    data = video_files.encode_video("matroska").replace(b"V_MPEG4/ISO/AVC", b"V_MPEG4/ISO/XYZ")
    _, error = read_until_error(data)
    assert "no decoder" in error.why


def test_audio_only_file_is_corrupt():
    import av

    pipe = video_files._Pipe()
    with av.open(pipe, "w", format="matroska") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.int16), "s16", "mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    _, error = read_until_error(pipe.file.getvalue())
    assert "no video stream" in error.why


@for_each(
    "options",
    [
        {"every_frames": 1, "every_ms": 1},
        {"every_frames": 0},
        {"every_ms": 0},
        {"every_ms": float("inf")},
        {"size_px": (0, 1)},
        {"mode": "CMYK"},
        {"size_px": (10_000, 10_000)},
    ],
)
def test_invalid_options_are_rejected(options):
    with pytest.raises(ConfigError):
        VideoFormat(**options)


def test_missing_extra_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "headrace.formats.media.container", raising=False)
    monkeypatch.delattr("headrace.formats.media.container", raising=False)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtraError, match=r"headrace\[video\]"):
        VideoFormat()


def test_memory_of_a_long_stream_is_bounded():
    """The last cluster is repeated.

    The memory of the process is measured, because FFmpeg allocates it.
    """
    data = video_files.encode_video("matroska", "mjpeg", pipe=True, frames=10, size=(480, 640), noise=True)
    start = data.rindex(b"\x1f\x43\xb6\x75")
    cluster, repeats = data[start:], by_level(24, 80, 80) * 1_000_000 // len(data[start:])
    assert len(cluster) < 4_000_000

    def chunks():
        yield data[:start]
        for _ in range(repeats):
            yield cluster

    process = psutil.Process()
    blocks, before, peak = 0, 0, 0
    for _ in VideoFormat(size_px=(480, 640)).blocks(chunks(), FIRST):
        blocks += 1
        before = process.memory_info().rss if blocks == 3 else before
        peak = max(peak, process.memory_info().rss)
    assert blocks > 20
    assert peak - before < 16_000_000
