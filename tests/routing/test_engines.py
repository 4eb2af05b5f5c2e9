from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest

from routing.engines import TemplateFailure, TemplateRefusal, compile_jinja2, compile_minijinja

VALUE = {"z": "é<b>&'", "a": [1, 2.5, True, None], "n": {}}


def by_jinja2(source: str, variables: Mapping[str, Any], *, patient: bool = False) -> str:
    return compile_jinja2(source, patient=patient)[0](variables)


def by_patient(source: str, variables: Mapping[str, Any]) -> str:
    return by_jinja2(source, variables, patient=True)


def by_minijinja(source: str, variables: Mapping[str, Any]) -> str:
    return compile_minijinja(source)(variables)


ENGINES = pytest.mark.parametrize("render", [by_jinja2, by_patient, by_minijinja])


@ENGINES
def test_json_keeps_order_and_letters(render: Any) -> None:
    assert render("{{ x | tojson }}", {"x": VALUE}) == (
        '{"z": "é<b>&\'", "a": [1, 2.5, true, null], "n": {}}'
    )
    assert render("{{ x | tojson(indent=2) }}", {"x": {"a": 1}}) == '{\n  "a": 1\n}'


@ENGINES
def test_blocks_are_trimmed_and_loops_controlled(render: Any) -> None:
    source = "  {% for x in xs %}\n{% if x == 2 %}{% continue %}{% endif %}{{ x }}\n  {% endfor %}"
    assert render(source, {"xs": [1, 2, 3]}) == "1\n3\n"


@ENGINES
def test_raise_exception_carries_its_text(render: Any) -> None:
    with pytest.raises(TemplateRefusal, match=r"^roles must alternate$"):
        render("{{ raise_exception('roles must ' + x) }}", {"x": "alternate"})


@ENGINES
def test_the_date_is_at_hand(render: Any) -> None:
    assert render("{{ strftime_now('%Y') }}", {}) in {
        str(year) for year in (datetime.now().year, datetime.now().year - 1)
    }


@ENGINES
def test_values_that_do_not_fit_are_failures(render: Any) -> None:
    with pytest.raises(TemplateFailure):
        render("{{ x + 1 }}", {"x": "a"})
    with pytest.raises(TemplateFailure):
        render("{{ x.y.z }}", {"x": {}})


def test_the_sandbox_holds() -> None:
    with pytest.raises(TemplateFailure):
        by_jinja2("{{ x.__class__.__mro__ }}", {"x": ""})
    with pytest.raises(TemplateFailure):
        by_jinja2("{{ x.append(1) }}", {"x": []})


def test_generation_marks_are_transparent() -> None:
    assert by_jinja2("a{% generation %}{{ x }}{% endgeneration %}c", {"x": "b"}) == "abc"


def test_broken_templates_are_failures() -> None:
    with pytest.raises(TemplateFailure):
        compile_jinja2("{% if %}")
    with pytest.raises(TemplateFailure):
        compile_minijinja("{% if %}")


def test_minijinja_declines_white_space_that_only_python_strips() -> None:
    assert by_jinja2("{{ x | trim }}", {"x": "a\x1c"}) == "a"
    with pytest.raises(TemplateFailure):
        by_minijinja("{{ x | trim }}", {"x": "a\x1c"})


def test_minijinja_declines_what_is_not_unicode() -> None:
    with pytest.raises(TemplateFailure):
        by_minijinja("{{ x }}", {"x": "a\ud800"})


def test_deep_values_do_not_crash() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for render in (by_jinja2, by_patient, by_minijinja):
        with pytest.raises(TemplateFailure):
            render("{{ x | tojson }}", {"x": deep})
