from __future__ import annotations

import pytest

from core.errors import BadRequest
from proxy.body_model import form_model, is_form, json_model

FORM = b"multipart/form-data; boundary=xYz"
HEAD = b'Content-Disposition: form-data; name="model"'


def form(*parts: tuple[bytes, bytes], boundary: bytes = b"xYz") -> bytes:
    """Of heads and values."""
    text = b"".join(b"--%b\r\n%b\r\n\r\n%b\r\n" % (boundary, *part) for part in parts)
    return text + b"--" + boundary + b"--\r\n"


@pytest.mark.parametrize(
    "content_type",
    [
        FORM,
        b'multipart/form-data; charset=utf-8; boundary="xYz"',
        b"Multipart/Form-Data ;boundary=xYz; charset=utf-8",
    ],
)
def test_forms_of_clients(content_type: bytes) -> None:
    assert is_form(content_type)
    sound = b'Content-Disposition: form-data; name="file"; filename="a\\"b.mp3"'
    sound += b"\r\nContent-Type: audio/mp3"
    named = b"Content-Disposition: form-data; name=\"f\"; filename*=utf-8''a%20b.mp3"
    value = b"\x00\xff--xYz no boundary \r\n\r\n--xY"
    body = form((sound, value), (named, b""), (HEAD, b"whisper-1"))
    assert form_model(body, content_type) == "whisper-1"


@pytest.mark.parametrize(
    "evasive",
    [
        b"Content-Disposition: form-data; name=model",
        b"Content-Disposition: form-data; name*=utf-8''model",
        b'Content-Disposition: form-data; name="mo\\del"',
        b'Content-Disposition: form-data; name="x"; name="model"',
        b'Content-Disposition: form-data; name="x"\r\nContent-Disposition: form-data; name="model"',
        b'Content-Type: text/plain\r\nContent-Disposition: form-data; name="model"',
        b'content-disposition:form-data;name="model"',
        b'Content-Disposition: form-data; name="MODEL"',
        b'Content-Disposition: form-data;\r\n name="model"',
        b'Content-Disposition: attachment; name="model"',
        b'X: y\nContent-Disposition: form-data; name="model"',
        b'Content-Disposition : form-data; name="model"',
        b"X: y",
        b"",
    ],
)
def test_no_second_model_is_smuggled_into_a_form(evasive: bytes) -> None:
    for parts in (
        [(HEAD, b"allowed"), (evasive, b"forbidden")],
        [(evasive, b"forbidden"), (HEAD, b"allowed")],
    ):
        with pytest.raises(BadRequest):
            form_model(form(*parts), FORM)


@pytest.mark.parametrize(
    "content_type",
    [
        b"multipart/form-data; boundary=xYz; boundary=other",
        b"multipart/form-data; boundary=xYz; x-boundary=other",
        b"multipart/form-data; boundary*=utf-8''xYz",
        b'multipart/form-data; boundary="x\\Yz"',
        b"multipart/form-data; x",
    ],
)
def test_there_is_one_boundary(content_type: bytes) -> None:
    with pytest.raises(BadRequest, match="boundary"):
        form_model(form((HEAD, b"allowed")), content_type)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello\r\n" + form((HEAD, b"a")),
        form((HEAD, b"a"))[:-4],
        b"--xYz \r\n" + HEAD + b"\r\n\r\na\r\n--xYz--",
        b"--xYz\r\n" + HEAD + b"\n\na\r\n--xYz--",
        b"--xYz\r\nX: " + b"y" * 5000 + b"\r\n\r\na\r\n--xYz--",
    ],
)
def test_what_is_no_form_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        form_model(body, FORM)


@pytest.mark.parametrize("value", [b"", b"a\r\nb", b"a" * 300])
def test_what_is_no_name_is_none(value: bytes) -> None:
    assert form_model(form((HEAD, value)), FORM) is None


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (b'{"model": "a", "input": "the \\"model\\""}', "a"),
        (b'{"model": "a", "of": {"model": "b", "Model": "c"}}', "a"),
        (b'{"\\u006dodel": "a"}', "a"),
        (b'{"model": "\\u0061", "x": "\\u006d"}', "a"),
        (b'{"model": 1}', None),
        (b"{}", None),
        (b"[1]", None),
    ],
)
def test_json(body: bytes, model: str | None) -> None:
    assert json_model(body) == model


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "forbidden", "model": "allowed"}',
        b'{"model": "allowed", "Model": "forbidden"}',
        b'{"model": "allowed", "\\u004dodel": "forbidden"}',
        b'{"\\u006dodel": "forbidden", "model": "allowed"}',
        b'{"m\\u006Fdel": "forbidden", "model": "allowed"}',
        b"--xYz",
    ],
)
def test_no_second_model_is_smuggled_into_json(body: bytes) -> None:
    with pytest.raises(BadRequest):
        json_model(body)
