"""The two template engines, set up as chat templates expect them.

Performs: `strftime_now` reads the wall clock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import minijinja

Render = Callable[[Mapping[str, Any]], str]

# Where these are in the text jinja2 is asked. Python counts the first four as white space, Rust
# does not (`strip` and `trim` differ); the last is how minijinja writes what is not Unicode.
_DOUBTFUL = ("\x1c", "\x1d", "\x1e", "\x1f", "\ufffd")


class TemplateRefusal(Exception):
    """The template called `raise_exception`; `str()` is its message."""


class TemplateFailure(Exception):
    """The template could not be compiled or rendered; `str()` says why."""


def compile_jinja2(source: str, *, patient: bool = False) -> tuple[Render, jinja2.nodes.Template]:
    """A renderer and the syntax tree. `patient`: for a thread beside the event loop; it never
    holds the interpreter's lock for long. Raises TemplateFailure."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson_patiently if patient else _tojson
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    try:
        tree = environment.parse(source)
        template = environment.from_string(source)
    except (jinja2.TemplateError, RecursionError) as error:
        raise TemplateFailure(str(error)) from error

    def render(variables: Mapping[str, Any]) -> str:
        try:
            return template.render(variables)
        except RecursionError as error:
            raise TemplateFailure("nested too deeply") from error
        # A template is the operator's program run on the client's values: each of these means
        # that it cannot render this chat.
        except (
            jinja2.TemplateError,
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
        ) as error:
            raise TemplateFailure(str(error)) from error

    return render, tree


def compile_minijinja(source: str) -> Render:
    """A renderer that raises TemplateFailure whenever jinja2 had better be asked."""
    environment = minijinja.Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        auto_escape_callback=_never,
        filters={"tojson": _tojson},
        globals={"raise_exception": _raise_exception, "strftime_now": _strftime_now},
    )
    try:
        environment.add_template("chat", source)
    except minijinja.TemplateError as error:
        raise TemplateFailure(error.message) from error
    render_template = environment.render_template

    def render(variables: Mapping[str, Any]) -> str:
        try:
            text = render_template("chat", **variables)
        except (minijinja.TemplateError, RecursionError, TypeError, ValueError) as error:
            raise TemplateFailure(str(error)) from error
        for character in _DOUBTFUL:
            if character in text:
                raise TemplateFailure("characters that Python and Rust treat differently")
        return text

    return render


def _never(name: str) -> bool:
    return False


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRefusal(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _tojson_patiently(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As `_tojson`, by json's encoder in Python: the one in C holds the lock to the end."""
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return "".join(encoder.iterencode(value))


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training; here its body is just text."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
