from __future__ import annotations

import jinja2
import pytest

from routing.content_format import iterates_content

PARTS = [
    "{% for message in messages %}{% for part in message['content'] %}{% endfor %}{% endfor %}",
    "{% for message in messages %}{% for part in message.content %}{% endfor %}{% endfor %}",
    "{% for m in messages[1:] %}{% for c in m.content | list %}{% endfor %}{% endfor %}",
    "{% set rest = messages[1:] %}{% set more = rest %}"
    "{% for m in more %}{% for c in m['content'] %}{% endfor %}{% endfor %}",
    "{% macro text(of) %}{% for c in of %}{% endfor %}{% endmacro %}"
    "{% for m in messages %}{{ text(m.content) }}{% endfor %}",
    "{% macro text(a, of) %}{% for c in of %}{% endfor %}{% endmacro %}"
    "{% for m in messages %}{{ text(1, of=m['content']) }}{% endfor %}",
]
TEXT = [
    "{% for message in messages %}{{ message['content'] }}{% endfor %}",
    "{% for message in messages %}{% for call in message.tool_calls %}{% endfor %}{% endfor %}",
    "{% for tool in tools %}{% for c in tool.content %}{% endfor %}{% endfor %}",
    "{{ messages[0].content }}",
    "{% macro text(a, of) %}{% for c in of %}{% endfor %}{% endmacro %}"
    "{% for m in messages %}{{ text(m.content, m.tools) }}{% endfor %}",
    "{% macro text(of) %}{% for c in more %}{% endfor %}{% endmacro %}"
    "{% for m in messages %}{{ text(m.content) }}{{ other(m.content) }}{% endfor %}",
    "",
]


@pytest.mark.parametrize("source", PARTS)
def test_a_loop_over_content_wants_parts(source: str) -> None:
    assert iterates_content(jinja2.Environment().parse(source))


@pytest.mark.parametrize("source", TEXT)
def test_anything_else_wants_text(source: str) -> None:
    assert not iterates_content(jinja2.Environment().parse(source))
