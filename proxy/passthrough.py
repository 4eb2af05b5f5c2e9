"""Paths that the operator opened: bodies and answers of any kind, to the replicas of a model. Pure.

The caller is authenticated and its requests are limited; the bytes are not looked into, except for
the model in JSON or in a form. They are not changed either, so the replica must know the model by
the name that is in them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Final, Literal

from msgspec import Meta

from core.errors import BadRequest
from core.exchange import Header, Request
from core.prompt import Prompt
from core.section import Contradictions, Section
from proxy.body_model import form_model, is_form, json_model
from proxy.delivery import Delivery
from proxy.headers import upstream_headers
from proxy.surfaces.openai import OPENAI
from proxy.surfaces.plain import no_usage
from proxy.surfaces.registry import SURFACES

_SHAPE: Final = replace(OPENAI, usage=no_usage)
_PATH = re.compile(r"/(?:(?!\.{1,2}(?:/|$))[A-Za-z0-9._~-]+(?:/|$))+")
_OWN = ("/v1/models", "/v1/responses")
_MEDIA_TYPE = re.compile(rb"[\x20-\x7e]{1,256}")


class PassthroughRule(Section):
    """`path` is open for `methods`, answered by the replicas of `model` (None: of the one that the
    body names)."""

    path: str
    model: str | None = None
    methods: Annotated[tuple[Literal["GET", "POST"], ...], Meta(min_length=1)] = ("POST",)

    def __post_init__(self) -> None:
        faults = []
        if not _PATH.fullmatch(self.path):
            faults.append((".path", f'expected a path like /v1/audio/speech: "{self.path}"'))
        elif self.path in SURFACES or self.path.startswith(_OWN):
            faults.append((".path", f"`{self.path}` is served by the gateway itself; remove it"))
        if self.model is None and "GET" in self.methods:
            faults.append((".methods", "GET needs `model`: such a request has no body to name it"))
        if faults:
            raise Contradictions(faults)


def model_of(rule: PassthroughRule, request: Request) -> str:
    """The model whose replicas are to answer, by the name that it was given. Raises BadRequest."""
    if rule.model is not None:
        return rule.model
    content_type = request.header(b"content-type") or b""
    if is_form(content_type):
        name = form_model(request.body, content_type)
    else:
        name = json_model(request.body)
    if not name:
        raise BadRequest("`model` must be the name of a model.", param="model")
    return name


def delivery_of(
    request: Request, exchange_id: str, model: str, own_headers: Sequence[Header]
) -> Delivery:
    """What the replica is sent: the very bytes."""
    headers = upstream_headers(request, exchange_id)[1:]
    for name in (b"content-type", b"accept"):
        value = request.header(name)
        if value is not None and _MEDIA_TYPE.fullmatch(value):
            headers.append((name, value))
    path = request.path if not request.query else f"{request.path}?{request.query}"
    return Delivery(
        path=path.encode("ascii"),
        headers=headers,
        body=request.body,
        prompt=Prompt(model, 0, 0, False, (), 64),
        max_output_tokens=0,
        stream=False,
        strip_usage=False,
        own_headers=own_headers,
        shape=_SHAPE,
        method=request.method.encode("ascii"),
        raw=True,
    )
