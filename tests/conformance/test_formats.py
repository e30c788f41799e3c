"""Every format through the conformance suite: by itself, and within compression and archives."""

import bz2
import gzip
import io
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import orjson
import pytest
import soundfile
import zstandard
from PIL import Image

from conformance.check_tables import run_each
from formats.framed_files import recordio, recordio_part, tfrecord, tfrecord_frame
from formats.media import video_files
from formats.table_writers import write_arrow, write_avro
from headrace.core.block import Block, Position
from headrace.core.tensor import TensorSpec
from headrace.formats.arrow_read import ArrowFormat
from headrace.formats.avro_read import AvroFormat
from headrace.formats.column_decode import ColumnDecoder
from headrace.formats.contract import Buffer
from headrace.formats.csv import CsvFormat
from headrace.formats.csv_decode import CsvColumnsDecoder, CsvMatrixDecoder
from headrace.formats.csv_dialect import CsvDialect
from headrace.formats.frames import RecordIOFormat
from headrace.formats.json_array import JsonArrayFormat
from headrace.formats.json_decode import JsonDecoder, JsonField
from headrace.formats.line import JsonFormat, JsonLinesFormat, LineFormat, RawDecoder, WholeFormat
from headrace.formats.media.audio import AudioFormat
from headrace.formats.media.image import ImageFormat
from headrace.formats.media.video import VideoFormat
from headrace.formats.read import read_object
from headrace.formats.read_options import ReadOptions
from headrace.formats.tfrecord import TfRecordFormat
from headrace.testing import FORMAT_CHECKS, FormatSample

RNG = np.random.default_rng(11)
SMALL_BLOCKS = 3000


def json_array(data: bytes, entries: int, *, failures: int = 0) -> FormatSample:
    return FormatSample(
        make=lambda: JsonArrayFormat(block_bytes_max=SMALL_BLOCKS, record_bytes_max=900),
        data=data,
        entries=entries,
        failures=failures,
        separators=b"[], \n",
        block_bytes_max=SMALL_BLOCKS + 900,
    )


def rows(count: int, delimiter: str = ",", ending: str = "\n") -> str:
    """Return records of three numbers; every 50th has a word instead of one."""
    values = RNG.normal(size=(count, 3)).round(4).tolist()
    lines = [
        delimiter.join("many" if i % 50 == 7 and j else str(v) for j, v in enumerate(r))
        for i, r in enumerate(values)
    ]
    return "".join(line + ending for line in lines)


def line_sample(make, data: str | bytes, entries: int, **options) -> FormatSample:
    """Return the sample of a format that can start at any record: line formats without a header."""
    return FormatSample(
        make=make,
        data=data if isinstance(data, bytes) else data.encode(),
        entries=entries,
        block_bytes_max=SMALL_BLOCKS,
        resume=lambda data, at: make().blocks([data[at.byte :]], at),
        **options,
    )


def csv_sample(
    data: str | bytes, entries: int, *, failures: int = 0, decoder=None, **options
) -> FormatSample:
    return line_sample(
        lambda: CsvFormat(**{"block_bytes_max": SMALL_BLOCKS, **options}),
        data,
        entries,
        failures=failures,
        decoder=decoder,
    )


def below_header(data: str, entries: int, **options) -> FormatSample:
    return FormatSample(
        make=lambda: CsvFormat(block_bytes_max=SMALL_BLOCKS, **options),
        data=data.encode(),
        entries=entries,
        block_bytes_max=SMALL_BLOCKS,
        decoder=lambda: CsvMatrixDecoder("x", columns=("z", "x"), width=3),
    )


QUOTED = "".join(f'"a ""quoted"" cell\nof {i} lines\n\n",{i},"",é\r\n' for i in range(400))
MIXED = rows(300) + QUOTED[:4000].rpartition("\r\n")[0] + "\r\n" + '5" disk,1,2\n' + rows(300, ending="\r\n")
TEXT = {
    "csv": csv_sample(rows(900), 900, decoder=lambda: CsvMatrixDecoder("x", width=3)),
    "csv without a last newline": csv_sample(
        rows(400)[:-1], 400, decoder=lambda: CsvMatrixDecoder("x", width=3)
    ),
    "csv crlf and bom": csv_sample("\ufeff" + rows(500, ending="\r\n"), 500),
    "csv quoted newlines": csv_sample(QUOTED, 400),
    "csv blank lines": csv_sample("\n\r\n" + rows(300, ending="\n\n\r\n"), 300),
    "csv mixed": csv_sample(
        MIXED, 601 + QUOTED[:4000].count("\r\n"), decoder=lambda: CsvColumnsDecoder({"t": (0, "text")})
    ),
    "csv without quotes": csv_sample('a"b,1\n"c,2\n' * 700, 1400, dialect=CsvDialect(quote=b"")),
    "csv tabs": csv_sample(rows(400, "\t"), 400, dialect=CsvDialect(b"\t")),
    "csv long records": csv_sample(
        "1,2\n" + ("x" * 900 + "\n3,4\n") * 20, 41, failures=20, record_bytes_max=500
    ),
    "csv records longer than a block": csv_sample(("x" * 7000 + "\n1\n") * 5, 10),
    "csv never closed": csv_sample(rows(20) + '1,"2\n' + rows(20), 21, failures=1),
    "csv empty": csv_sample("", 0),
    "csv one record": csv_sample("1", 1),
    "csv header dropped": FormatSample(
        make=lambda: CsvFormat(header="drop", block_bytes_max=SMALL_BLOCKS),
        data=("x,y,z\n" + rows(500)).encode(),
        entries=500,
        block_bytes_max=SMALL_BLOCKS,
    ),
    "csv header names": below_header("x,y,z\n" + rows(500), 500, header="names"),
    "csv escapes": csv_sample('a\\,b,"c\\"\n",1\n\\\n,2,3\r\n' * 200, 400, dialect=CsvDialect(escape=b"\\")),
    "csv comments": FormatSample(
        make=lambda: CsvFormat(comment="#", skip_rows=1, block_bytes_max=SMALL_BLOCKS),
        data=b"junk\n" + b'# "c\n1,2\n"#\n",1\n\n#\n' * 300,
        entries=600,
        separators=b'\r\n# "c',
        block_bytes_max=SMALL_BLOCKS,
        decoder=lambda: CsvMatrixDecoder("x", width=2),
    ),
    "csv header of known names": below_header("z,x,y\n" + rows(500), 500, names=("x", "y", "z")),
    "csv binary": csv_sample(b"\0" + b"1,2\n" * 3000, 1, failures=1),
    "jsonl": line_sample(
        lambda: JsonLinesFormat(block_bytes_max=SMALL_BLOCKS),
        '{"x": [1.5, 2], "name": "é\\n"}\n{"x": [1, 2]}\r\n\nnot json\n' * 200,
        600,
        decoder=lambda: JsonDecoder({"x": JsonField("x", np.dtype(np.float32), (2,))}),
    ),
    "jsonl long lines": line_sample(
        lambda: JsonLinesFormat(block_bytes_max=SMALL_BLOCKS, record_bytes_max=400),
        ("[1]\n" * 30 + "[" + "1," * 900 + "1]\n") * 8,
        248,
        failures=8,
    ),
    "line": line_sample(
        lambda: LineFormat(block_bytes_max=SMALL_BLOCKS),
        'any, "text\n\r\n é\r\nthe end\n' * 300,
        900,
        decoder=lambda: RawDecoder("x", text=True),
    ),
    "json": FormatSample(
        make=JsonFormat,
        data=b"\n " + orjson.dumps({"x": list(range(5000))}, option=orjson.OPT_INDENT_2) + b"\n\n",
        entries=1,
        separators=b" \r\n",
        decoder=lambda: JsonDecoder({"x": JsonField("x", np.dtype(np.float32), (5000,))}),
    ),
    "json byte order mark": FormatSample(
        make=JsonFormat, data=b"\xef\xbb\xbf\n[1,\n2]", entries=1, separators=b"\xef\xbb\xbf\n"
    ),
    "json empty": FormatSample(make=JsonFormat, data=b"", entries=1),
    "json too long": FormatSample(
        make=lambda: JsonFormat(record_bytes_max=500), data=b" " * 9000, entries=1, failures=1
    ),
    "json array": json_array(
        b" [" + b",\n ".join(b'{"x": "%d,]}\\\\", "y": [{}, 1]}' % i for i in range(500)) + b" ]\n", 500
    ),
    "json array with failures": json_array(
        b"[" + b",".join([b'{"a": 1}', b"", b'"' + b"x" * 999 + b'"', b"null"] * 30) + b"]", 120, failures=60
    ),
    "whole": FormatSample(
        make=WholeFormat,
        data=RNG.bytes(20_000) + b"\n",
        entries=1,
        separators=b"",
        decoder=lambda: RawDecoder("x", text=False),
    ),
    "whole empty": FormatSample(make=WholeFormat, data=b"", entries=1),
    "whole too long": FormatSample(
        make=lambda: WholeFormat(record_bytes_max=5000), data=RNG.bytes(20_000), entries=1, failures=1
    ),
}


def framed(make, data: bytes, entries: int, header_bytes: int, **options) -> FormatSample:
    """Return the sample of binary records, which can be read from any header on."""
    return FormatSample(
        make=lambda: make(block_bytes_max=SMALL_BLOCKS, record_bytes_max=2000),
        data=data,
        entries=entries,
        block_bytes_max=SMALL_BLOCKS,
        header_bytes=header_bytes,
        resume=lambda data, at: make(block_bytes_max=SMALL_BLOCKS, record_bytes_max=2000).blocks(
            [data[at.byte :]], at
        ),
        decoder=lambda: RawDecoder("x"),
        **options,
    )


PAYLOADS = [RNG.bytes(n) for n in (0, 1, 40, 400, 3, 1999, 10) * 30]
LONG = tfrecord_frame(b"x" * 2001)
WRONG = tfrecord_frame(b"abc")[:-4] + bytes(4)
PARTED = recordio_part(b"abcd", 1) + recordio_part(b"", 2) + recordio_part(b"e", 3)
FRAMES = {
    "tfrecord": framed(TfRecordFormat, tfrecord(PAYLOADS), 210, 12),
    "tfrecord empty": framed(TfRecordFormat, b"", 0, 12),
    "tfrecord with failures": framed(
        TfRecordFormat, (WRONG + tfrecord(PAYLOADS) + LONG) * 2 + WRONG, 425, 12, failures=5
    ),
    "recordio": framed(RecordIOFormat, recordio(PAYLOADS), 210, 8),
    "recordio too long": framed(RecordIOFormat, recordio([*PAYLOADS, b"x" * 2001] * 2), 422, 8, failures=2),
    "recordio parted": framed(
        RecordIOFormat, (PARTED + recordio(PAYLOADS)) * 2 + PARTED, 423, 8, slices=False
    ),
}


@dataclass(frozen=True)
class Layered:
    """An object with all its layers, as a format."""

    uri: str
    options: ReadOptions

    def blocks(self, chunks: Iterable[Buffer], first: Position) -> Iterator[Block]:
        assert first == Position(self.uri)
        return read_object(self.uri, chunks, self.options)


def tar(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as out:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return file.getvalue()


def layered(name: str, data: bytes, entries: int, *, failures: int = 0, **options) -> FormatSample:
    uri = f"memory://bucket/{name}"
    read = ReadOptions(**options)
    return FormatSample(
        make=lambda: Layered(uri, read),
        data=data,
        entries=entries,
        failures=failures,
        slices=False,
        first=Position(uri),
        resume=lambda data, at: read_object(uri, [data], read, resume=at),
    )


CSV = rows(200).encode()
MEMBERS = {
    "a.csv": CSV,
    "b.csv.gz": gzip.compress(CSV[:3000]) + gzip.compress(CSV[3000:]),
    "empty.csv": b"",
    "d/" * 60 + "long-name.csv.zst": zstandard.ZstdCompressor().compress(CSV),
    "readme": b"no records",
    "c.jsonl": b"{}\n" * 100,
    "e.rec": recordio(PAYLOADS[:40]) + PARTED,
    "f.tfrecord.gz": gzip.compress(tfrecord(PAYLOADS[:40])),
    "d.json": b'{\n"x": 1\n}\n',
}
LAYERS = {
    "tar": layered("a.tar", tar(MEMBERS), 783, failures=1),
    "tar.gz": layered("a.tar.gz", gzip.compress(tar(MEMBERS)), 783, failures=1),
    "tar.bz2": layered("a.tar.bz2", bz2.compress(tar(MEMBERS)), 783, failures=1),
    "tar.zst": layered("a.tzst", zstandard.ZstdCompressor().compress(tar(MEMBERS)), 783, failures=1),
    "tar with globs and headers": layered("a.tar", tar(MEMBERS), 597, members=("*.csv*",), header="names"),
    "csv.gz": layered("a.csv.gz", gzip.compress(CSV), 200),
    "csv.bz2": layered("a.csv.bz2", bz2.compress(CSV), 200),
    "jsonl.zst": layered("a.jsonl.zst", zstandard.ZstdCompressor().compress(b"[1]\n" * 1500), 1500),
}


def image(kind: str, **options) -> bytes:
    file = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (24, 32, 3), dtype=np.uint8)).save(file, kind, **options)
    return file.getvalue()


def sound(kind: str, **options) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, RNG.uniform(-1, 1, (3000, 2)), 8000, format=kind, **options)
    return file.getvalue()


def media(make, data: bytes, entries: int, decoder=None, *, failures: int = 0) -> FormatSample:
    return FormatSample(
        make=make, data=data, entries=entries, failures=failures, slices=False, decoder=decoder
    )


def image_decoder() -> ColumnDecoder:
    return ColumnDecoder("m", TensorSpec("x", "FP32", (-1, 3, -1, -1)), "image", scale=1 / 255)


def table(make, data: bytes, entries: int, *, failures: int = 0) -> FormatSample:
    return FormatSample(make=make, data=data, entries=entries, failures=failures, slices=False)


VIDEO = {"frames": 20, "size": (16, 32)}
MEDIA = {
    "jpeg": media(lambda: ImageFormat(size_px=(6, 8)), image("JPEG"), 1, image_decoder),
    "png": media(ImageFormat, image("PNG"), 1, image_decoder),
    "webp": media(ImageFormat, image("WEBP"), 1),
    "not an image": media(ImageFormat, b"a,b\n1,2\n" * 300, 1, failures=1),
    "wav": media(
        lambda: AudioFormat(window_ms=10),
        sound("WAV"),
        38,
        lambda: ColumnDecoder("m", TensorSpec("x", "FP32", (-1, 80)), "audio"),
    ),
    "flac": media(lambda: AudioFormat(window_ms=10, pad_last=False), sound("FLAC"), 37),
    "mp4": media(VideoFormat, video_files.fragmented(**VIDEO), 20, image_decoder),
}
COLUMNS = {"n": list(range(1000)), "t": [RNG.bytes(12).hex() if i % 7 else None for i in range(1000)]}
TABLES = {
    "arrow file": table(ArrowFormat, write_arrow(COLUMNS, group_rows=200), 1000),
    "arrow stream": table(
        ArrowFormat, write_arrow(COLUMNS, group_rows=200, is_stream=True, compression="zstd"), 1000
    ),
    "arrow too long": table(
        lambda: ArrowFormat(record_bytes_max=900),
        write_arrow({"t": [b"x" * (1000 if i % 50 == 0 else 20) for i in range(500)]}),
        500,
        failures=10,
    ),
    "avro": table(AvroFormat, write_avro(COLUMNS, group_rows=200), 1000),
}
SAMPLES = TEXT | FRAMES | LAYERS | MEDIA | TABLES


@pytest.mark.parametrize("name", SAMPLES)
def test_format(name):
    run_each(FORMAT_CHECKS, lambda check: check(SAMPLES[name]))
