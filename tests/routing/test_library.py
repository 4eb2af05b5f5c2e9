from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from core.errors import ConfigError
from core.section import FilePath
from routing.config import ModelConfig
from routing.library import Library


@pytest.fixture
def config(small_tokenizer: str, small_template: str, tmp_path: Path) -> ModelConfig:
    """Of files that a test may change."""
    for source, name in ((small_tokenizer, "tokenizer.json"), (small_template, "chat.jinja")):
        shutil.copy(source, tmp_path / name)
    return ModelConfig(
        name="m",
        tokenizer=FilePath(str(tmp_path / "tokenizer.json")),
        chat_template=FilePath(str(tmp_path / "chat.jinja")),
        template_engine="jinja2",  # to compare it with the other takes long
    )


def made(library: Library, config: ModelConfig) -> tuple[object, object]:
    assert config.tokenizer is not None
    return library.tokenizer(config.tokenizer), library.template(config)


def test_each_file_is_made_once(config: ModelConfig) -> None:
    library = Library()
    first = made(library, config)
    again = made(library, msgspec.structs.replace(config, name="other", aliases=("x",)))
    assert [a is b for a, b in zip(first, again, strict=True)] == [True, True]
    assert library.template(ModelConfig(name="bare")) is None
    later = Library(library)
    lent = made(later, config)
    later.complete()
    assert [a is b for a, b in zip(first, lent, strict=True)] == [True, True]
    assert [a is b for a, b in zip(made(later, config), lent, strict=True)] == [True, True]


@pytest.mark.parametrize(("changed", "kept"), [("tokenizer.json", 1), ("chat.jinja", 0)])
def test_a_changed_file_is_read_anew(
    config: ModelConfig, tmp_path: Path, changed: str, kept: int
) -> None:
    first = Library()
    before = made(first, config)
    os.utime(tmp_path / changed, ns=(1, 1))
    after = made(Library(first), config)
    assert [a is b for a, b in zip(before, after, strict=True)] == [kept == 0, kept == 1]


def test_another_setting_of_a_template_makes_another_one(config: ModelConfig) -> None:
    first = Library()
    tokenizer, template = made(first, config)
    changed = made(Library(first), msgspec.structs.replace(config, bos_token="<s>"))
    assert changed[0] is tokenizer
    assert changed[1] is not template


def test_what_is_not_asked_for_again_is_let_go(config: ModelConfig) -> None:
    first = Library()
    template = made(first, config)[1]
    later = Library(first)
    later.complete()
    assert later.template(config) is not template


def test_a_missing_file_is_a_fault_each_time(config: ModelConfig, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").unlink()
    library = Library()
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"tokenizer\.json"):
            made(library, config)
