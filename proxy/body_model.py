"""Which model a body names that goes on as it is: in JSON, or in a form. Pure.

The replica reads the same bytes with a parser of its own, and must not find another model in them:
what the caller may use is judged by the name that is found here. So whatever two parsers might read
differently is refused: a name given twice, in another case (Go's parsers do not mind), by escapes;
parts of a form whose heads are not of one plain form (RFC 7578, RFC 2046 section 5.1).
"""

from __future__ import annotations

import json
import re

import orjson

from core.errors import BadRequest

_FORM = re.compile(rb"multipart/form-data[ \t]*;", re.IGNORECASE)
_BOUNDARY = re.compile(rb';[ \t]*boundary=(?:"([^"\\]{1,70})"|([^\s;"]{1,70}))[ \t]*(?:;|$)')
_LONGEST_HEAD = 4096
_PART_HEAD = re.compile(rb"(?:[A-Za-z-]+:[ \t]*[^\r\n]*\r\n)+")
_DISPOSITION = re.compile(
    rb"^content-disposition:[ \t]*([^\r\n]*)\r\n", re.IGNORECASE | re.MULTILINE
)
_NAMED = re.compile(
    rb'form-data;[ \t]*name="([^"\\\r\n]*)"'
    rb'(?:;[ \t]*filename="(?:[^"\\\r\n]|\\.)*")?(?:;[ \t]*filename\*=[^\s";]*)?[ \t]*',
    re.IGNORECASE,
)
_KEYS = re.compile(rb'"model"', re.IGNORECASE)
_ESCAPED_LETTER = re.compile(rb"\\u00[46][0-9a-fA-F]")
_LONGEST_NAME = 256


def is_form(content_type: bytes) -> bool:
    return _FORM.match(content_type) is not None


def form_model(body: bytes, content_type: bytes) -> str | None:
    """The field `model` of a form. Raises BadRequest."""
    if content_type.lower().count(b"boundary") != 1:
        raise _bad_form("one boundary is needed")
    match = _BOUNDARY.search(content_type)
    if match is None:
        raise _bad_form("its boundary is not of good form")
    preamble, *parts = (b"\r\n" + body).split(b"\r\n--" + (match[1] or match[2]))
    if preamble or not parts or not parts[-1].startswith(b"--"):
        raise _bad_form("it does not begin and end with its boundary")
    found = None
    for part in parts[:-1]:
        name, value = _field(part)
        if name.lower() == b"model":
            if found is not None or name != b"model":
                raise BadRequest("`model` is in the form twice.", param="model")
            found = value
    if found is None or not 0 < len(found) <= _LONGEST_NAME or b"\n" in found or b"\r" in found:
        return None
    return found.decode("utf-8", "replace")


def _field(part: bytes) -> tuple[bytes, bytes]:
    """Name and value of what stands between two boundaries."""
    end = part.find(b"\r\n\r\n", 0, _LONGEST_HEAD)
    if not part.startswith(b"\r\n") or end < 0:
        raise _bad_form("a part has no head")
    head = part[2 : end + 2]
    if _PART_HEAD.fullmatch(head) is None:
        raise _bad_form("the head of a part is not of good form")
    dispositions = _DISPOSITION.findall(head)
    named = _NAMED.fullmatch(dispositions[0]) if len(dispositions) == 1 else None
    if named is None:
        raise _bad_form('a part needs one `Content-Disposition: form-data; name="..."`')
    return named[1], part[end + 4 :]


def _bad_form(fault: str) -> BadRequest:
    return BadRequest(f"The form cannot be read: {fault}.", code="invalid_form")


def json_model(body: bytes) -> str | None:
    """The field `model` of a JSON object. Raises BadRequest."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise BadRequest(
            "The body is neither JSON nor a form that names a model.", code="invalid_json"
        ) from None
    if not isinstance(document, dict):
        return None
    if len(_KEYS.findall(body)) > 1 or _ESCAPED_LETTER.search(body) is not None:
        pairs: list[tuple[str, object]] = json.loads(body, object_pairs_hook=list)
        if sum(key.lower() == "model" for key, _ in pairs) > 1:
            raise BadRequest("`model` is in the body twice.", param="model")
    model = document.get("model")
    return model if isinstance(model, str) else None
