"""Multipart forms as a browser sends them."""

from collections.abc import Mapping


def form(parts: Mapping[str, bytes], *, file: str = "") -> tuple[bytes, str]:
    """Return the body and the content type of a form; the part `file` has a file name."""
    boundary = b"----boundary"
    lines: list[bytes] = []
    for name, data in parts.items():
        filename = '; filename="a.bin"' if name == file else ""
        lines += [
            b"--" + boundary,
            f'Content-Disposition: form-data; name="{name}"{filename}'.encode(),
            b"",
            data,
        ]
    body = b"\r\n".join([*lines, b"--" + boundary + b"--", b""])
    return body, f"multipart/form-data; boundary={boundary.decode()}"
