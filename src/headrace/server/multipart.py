"""Multipart forms, by python-multipart, which nothing else imports."""

from headrace.core.errors import DataError, LimitError, MissingExtraError

try:
    from python_multipart.exceptions import MultipartParseError
    from python_multipart.multipart import MultipartParser, parse_options_header
except ImportError as _error:
    raise MissingExtraError("serve", "multipart forms") from _error

PARTS_MAX = 1000
"""Limit of the parts of one form."""


def is_form(content_type: bytes) -> bool:
    """Return True for the content type of a multipart form."""
    return content_type.lower().startswith(b"multipart/form-data")


def parse_form(content_type: bytes, body: bytes) -> dict[str, bytes]:
    """Return the parts of a form by name; of equal names, the last one.

    Raises DataError for a malformed form, and LimitError beyond PARTS_MAX parts.
    """
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise DataError("the content type of the form has no boundary")
    form = _Form()
    parser = MultipartParser(
        boundary,
        {
            "on_part_begin": form.begin,
            "on_header_field": form.add_field,
            "on_header_value": form.add_value,
            "on_header_end": form.end_header,
            "on_part_data": form.add_data,
            "on_part_end": form.end,
            "on_end": form.finish,
        },
    )
    try:
        parser.write(body)
        parser.finalize()
    except MultipartParseError as error:
        raise DataError(f"the form is malformed: {error}") from None
    if not form.is_complete:
        raise DataError("the form ends early")
    return form.parts


class _Form:
    """The parts of a form, from the callbacks of the parser."""

    def __init__(self) -> None:
        self.parts: dict[str, bytes] = {}
        self.is_complete = False
        self._field = self._value = b""
        self._disposition = b""
        self._data = bytearray()

    def begin(self) -> None:
        if len(self.parts) >= PARTS_MAX:
            raise LimitError(f"the form has more than {PARTS_MAX} parts")
        self._disposition, self._data = b"", bytearray()

    def add_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def add_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def end_header(self) -> None:
        if self._field.lower() == b"content-disposition":
            self._disposition = self._value
        self._field = self._value = b""

    def add_data(self, data: bytes, start: int, end: int) -> None:
        self._data += memoryview(data)[start:end]

    def end(self) -> None:
        name = parse_options_header(self._disposition)[1].get(b"name")
        if name is None:
            raise DataError("a part of the form has no name")
        self.parts[name.decode(errors="replace")] = bytes(self._data)

    def finish(self) -> None:
        self.is_complete = True
