from __future__ import annotations

import functools
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from core.errors import BadRequest, ConfigError
from core.section import FilePath
from routing.config import ModelConfig
from routing.template import ChatTemplate, load_template

HELLO = [{"role": "user", "content": "hello"}]
CHATML = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@functools.cache
def template(source: str, **config: Any) -> ChatTemplate:
    """Made once for each source, as the engines are compared; rendering changes nothing of it."""
    return ChatTemplate(source, {"bos_token": "<s>"}, ModelConfig(name="m", **config))


def test_minijinja_is_used_where_it_is_equal() -> None:
    assert template(CHATML).engine == "minijinja"
    assert template(CHATML, template_engine="jinja2").engine == "jinja2"


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1e22 }}" + CHATML,  # 1e+22 or 10000000000000000000000.0
        "{% set ns = namespace(a=1) %}{{ ns }}",  # how a namespace shows itself
        "{% generation %}x{% endgeneration %}",  # unknown to minijinja
        "{% if enable is true %}{{ 1e22 }}{% endif %}",  # differs only when a switch is set
        "{% if tools %}{{ 1e22 }}{% endif %}",  # differs only with tools
    ],
)
def test_jinja2_is_used_where_they_differ(source: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace.routing")
    assert template(source).engine == "jinja2"
    assert "rendered by jinja2" in caplog.text
    with pytest.raises(ConfigError, match="template_engine: auto"):
        template(source, template_engine="minijinja")


def test_special_tokens_and_options_reach_the_template() -> None:
    made = template("{{ bos_token }}{{ mode }}{{ documents is none }}", template_engine="jinja2")
    assert made.render(HELLO, None, {}) == "<s>True"
    given = {"chat_template_kwargs": {"mode": "fast", "bos_token": "!", "unknown": 1}}
    assert made.render(HELLO, None, given) == "<s>fastTrue"
    assert made.render(HELLO, None, {**given, "documents": [1]}) == "<s>fastFalse"


def test_effort_switches_thinking_as_vllm_does() -> None:
    made = template("{{ enable_thinking is defined and enable_thinking }}")
    assert made.render(HELLO, None, {}) == "False"
    assert made.render(HELLO, None, {"reasoning_effort": "low"}).lower() == "true"
    assert made.render(HELLO, None, {"reasoning_effort": "none"}).lower() == "false"
    given = {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}
    assert made.render(HELLO, None, given).lower() == "false"


def test_the_allow_list_bounds_what_a_request_may_set() -> None:
    made = template("{{ a }}{{ b }}", chat_template_kwargs=("a",))
    assert made.render(HELLO, None, {"chat_template_kwargs": {"a": "1", "b": "2"}}) == "1"


def test_values_that_were_not_compared_are_rendered_by_jinja2() -> None:
    made = template("{% if x == 'big' %}{{ 1e22 }}{% endif %}" + CHATML)
    assert made.engine == "minijinja"
    text = made.render(HELLO, None, {"chat_template_kwargs": {"x": "big"}})
    assert text.startswith("1e+22")


@pytest.mark.parametrize("name", ["chat_template", "tokenize"])
def test_a_request_may_not_replace_the_template(name: str) -> None:
    with pytest.raises(BadRequest) as caught:
        template(CHATML).render(HELLO, None, {"chat_template_kwargs": {name: "x"}})
    assert caught.value.param == "chat_template_kwargs"


def test_kwargs_must_be_an_object() -> None:
    with pytest.raises(BadRequest):
        template(CHATML).render(HELLO, None, {"chat_template_kwargs": [1]})


def test_a_refusal_becomes_the_clients_error_in_the_templates_words() -> None:
    made = template("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(BadRequest, match=r"^roles must alternate$") as caught:
        made.render(HELLO, None, {})
    assert caught.value.param == "messages"


def test_a_failure_becomes_the_clients_error() -> None:
    made = template("{{ messages[0].content + messages[0].missing }}")
    with pytest.raises(BadRequest, match="cannot render"):
        made.render(HELLO, None, {})


def test_generation_prompt_and_continuation() -> None:
    made = template(CHATML)
    assert made.render(HELLO, None, {}).endswith("<assistant>")
    assert made.render(HELLO, None, {"add_generation_prompt": False}).endswith("</user>")
    messages = [*HELLO, {"role": "assistant", "content": "Once upon "}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert made.render(messages, None, options).endswith("<assistant>Once upon ")
    assert messages[1]["content"] == "Once upon "
    trimming = template("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}")
    assert trimming.render(messages, None, options) == "[hello][Once upon"
    parts = [{"role": "assistant", "content": [{"type": "text", "text": "On"}, {"type": "x"}]}]
    loop = "{% for m in messages %}{% for c in m.content %}[{{ c.text }}]{% endfor %}{% endfor %}"
    assert template(loop).render(parts, None, options) == "[On"


def test_continuing_what_is_not_rendered_is_refused() -> None:
    with pytest.raises(BadRequest, match="continue_final_message"):
        template("fixed").render(HELLO, None, {"continue_final_message": True})


def test_loads_a_jinja_file(tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    path.write_text("{{ bos_token }}|{{ eos_token }}")
    config = ModelConfig(name="m", chat_template=FilePath(path), bos_token="B", eos_token="E")
    loaded = load_template(config)
    assert loaded is not None
    assert loaded.render(HELLO, None, {}) == "B|E"
    assert load_template(ModelConfig(name="m")) is None


@pytest.mark.parametrize(
    "value",
    [CHATML, [{"name": "tool_use", "template": "x"}, {"name": "default", "template": CHATML}]],
)
def test_loads_a_tokenizer_config(tmp_path: Path, value: object) -> None:
    path = tmp_path / "tokenizer_config.json"
    doc = {"chat_template": value, "bos_token": {"content": "<b>"}, "eos_token": None}
    path.write_text(json.dumps(doc))
    loaded = load_template(ModelConfig(name="m", chat_template=FilePath(path)))
    assert loaded is not None
    assert loaded.render(HELLO, None, {}) == "<user>hello</user><assistant>"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("absent.jinja", None),
        ("t.jinja", b"{% if %}"),
        ("t.jinja", b"\xff\xfe"),
        ("c.json", b"{"),
        ("c.json", b"[]"),
        ("c.json", b'{"chat_template": null}'),
        ("c.json", b'{"chat_template": [{"name": "other", "template": "x"}]}'),
    ],
)
def test_a_bad_file_is_one_sentence_with_its_path(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_template(ModelConfig(name="m", chat_template=FilePath(path)))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
