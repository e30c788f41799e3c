"""Small video files created with PyAV: grey frames whose brightness identifies their number."""

import io

import numpy as np

STEP = 4  # Grey levels from one frame to the next.


class _Pipe:
    """A file object that cannot seek."""

    def __init__(self):
        self.file = io.BytesIO()

    def write(self, data):
        return self.file.write(data)


def encode_video(
    kind="mp4",
    codec="libx264",
    *,
    frames=30,
    options=None,
    size=(32, 48),
    pipe=False,
    path=None,
    times=None,
    rotation=0,
    noise=False,
):
    """Return a file's bytes.

    `size` is (height, width), `times` the frames' times in units of 1/25 s.
    """
    import av

    file = path or (_Pipe() if pipe else io.BytesIO())
    rng = np.random.default_rng(1)
    with av.open(str(path) if path else file, "w", format=kind, options=options or {}) as container:
        stream = container.add_stream(codec, rate=25)
        stream.height, stream.width = size
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.codec_context.gop_size = 10
        stream.codec_context.thread_count = 1
        if rotation:
            stream.set_display_rotation(rotation)
        for number in range(frames):
            picture = np.full((*size, 3), 20 + number * STEP % 220, np.uint8)
            if noise:
                picture[:] = rng.integers(0, 256, picture.shape)
            picture[: size[0] // 4, : size[1] // 4] = 255 if rotation else picture[0, 0]
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = times[number] if times else number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    if path:
        return path.read_bytes()
    return file.file.getvalue() if pipe else file.getvalue()


def faststart(tmp_path, **options):
    """Return an MP4 file whose index precedes the media."""
    return encode_video("mp4", options={"movflags": "faststart"}, path=tmp_path / "video.mp4", **options)


def fragmented(**options):
    """Return an MP4 file in fragments, each with an index."""
    return encode_video("mp4", options={"movflags": "frag_keyframe+empty_moov"}, pipe=True, **options)
