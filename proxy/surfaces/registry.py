"""Every path that a model answers, and how errors read at any path. Pure."""

from __future__ import annotations

from proxy.surfaces.messages import COUNT_TOKENS, MESSAGES
from proxy.surfaces.openai import OPENAI
from proxy.surfaces.plain import POOLED, TOKENS
from proxy.surfaces.responses import RESPONSES
from proxy.surfaces.shape import Shape
from proxy.surfaces.surface import Kind, Surface

SURFACES = {
    surface.path: surface
    for surface in (
        Surface("/v1/chat/completions", empty_role=True),
        Surface("/v1/completions", Kind.TEXT),
        MESSAGES,
        COUNT_TOKENS,
        RESPONSES,
        *POOLED,
        *TOKENS,
    )
}


def shape_at(path: str) -> Shape:
    """Also for what never becomes a call: a path that nobody serves has OpenAI's shape."""
    surface = SURFACES.get(path)
    return OPENAI if surface is None else surface.shape
