"""`headrace check` and `headrace schema`, on real files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.document import parse
from core.loading import schema
from proxy.serve.__main__ import main
from proxy.serve.config import Config

ROOT = Path(__file__).parents[3]
MINIMAL = (ROOT / "configs/minimal.yaml").read_text()


def check(tmp_path: Path, text: str) -> int:
    file = tmp_path / "headrace.yaml"
    file.write_text(text)
    return main(["check", "-c", str(file)])


def test_the_minimal_configuration_is_fine(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(ROOT / "configs/minimal.yaml")
    assert main(["check", "-c", path]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"OK: {path}: 1 model, 1 replica, 1 address\n"
    assert printed.err == ""


def test_an_open_gateway_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tmp_path, MINIMAL.replace("127.0.0.1:8080", "0.0.0.0:8080")) == 0
    warned = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1:3] for line in warned] == [
        [" warning", " $.listen.tls"],
        [" warning", " $.auth"],
    ]


@pytest.mark.parametrize(
    ("old", "new", "faults"),
    [
        (
            "listen:",
            "listne:",
            ["$: unknown key `listne`; did you", "$: missing key `listen`"],
        ),
        ("tls: off", "tls: on", ["$.listen.tls: expected `off` or a mapping"]),
        ("model: qwen3}", "model: qwen}", ["$.replicas[0].model: no model", "$.models[0]: no rep"]),
        (
            "auth: none",
            "auth: none\nauth: none",
            [f"line {MINIMAL[: MINIMAL.index('auth: none')].count(chr(10)) + 2}: the key `auth`"],
        ),
        ("auth: none", "auth: [", ["line "]),
        (
            "- name: qwen3",
            "- {name: qwen3, tokenizer: t.json, chat_template: c.json}",
            ["$.models[0].tokenizer: there is no", "$.models[0].chat_template: there is no file"],
        ),
        (
            "model: qwen3}",
            'model: qwen3, api_key: "env:HEADRACE_NO_SUCH_KEY"}',
            ["$.replicas[0].api_key: the environment variable HEADRACE_NO_SUCH_KEY"],
        ),
        (
            "tls: off",
            "tls: {certificate: c.pem, key: k.pem}",
            ["$.listen.tls.certificate: there is no file", "$.listen.tls.key: there is no file"],
        ),
    ],
)
def test_every_problem_is_one_line(
    old: str,
    new: str,
    faults: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert check(tmp_path, MINIMAL.replace(old, new)) == 2
    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    assert printed.out == ""
    assert len(lines) == len(faults)
    for line, fault in zip(lines, faults, strict=True):
        assert line.startswith(f"headrace: {fault}")


def test_files_that_are_not_what_they_should_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("c.pem", "k.pem", "t.json"):
        (tmp_path / name).write_text("nonsense")
    pem = MINIMAL.replace("tls: off", "tls: {certificate: c.pem, key: k.pem}")
    assert check(tmp_path, pem) == 2
    assert "holds no certificate in PEM form" in capsys.readouterr().err
    tokenizer = MINIMAL.replace("- name: qwen3", "- {name: qwen3, tokenizer: t.json}")
    assert check(tmp_path, tokenizer) == 2
    said = capsys.readouterr().err
    assert "t.json" in said
    assert "Traceback" not in said


def test_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "-c", "/nowhere/headrace.yaml"]) == 2
    assert capsys.readouterr().err == (
        "headrace: cannot read the configuration /nowhere/headrace.yaml: "
        "No such file or directory\n"
    )


def test_the_schema_knows_every_key_of_the_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    definitions = json.loads(capsys.readouterr().out)["$defs"]
    known = {key for definition in definitions.values() for key in definition["properties"]}
    for path in (ROOT / "configs").glob("*.yaml"):
        document = parse(path.read_text())
        assert isinstance(document, dict)
        names = {model["name"] for model in document["models"]}  # prices are given by model
        assert keys(document) - names <= known


def keys(document: object) -> set[str]:
    if isinstance(document, dict):
        return set(document).union(*map(keys, document.values()))
    if isinstance(document, list):
        return set().union(*map(keys, document))
    return set()


def test_a_reload_without_a_gateway_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "headrace.yaml"
    file.write_text(f"{MINIMAL}\nrun_dir: run\n")
    assert main(["reload", "-c", str(file)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"headrace: no gateway answers at {tmp_path}/run/control.sock (")


def test_where_no_control_socket_can_be_the_mend_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    file = tmp_path / "headrace.yaml"
    file.write_text(MINIMAL)
    assert main(["reload", "-c", str(file)]) == 1
    assert "set `run_dir` to a folder that the gateway may write" in capsys.readouterr().err


def test_a_file_that_is_no_yaml_is_refused_by_reload_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "headrace.yaml"
    file.write_text("a: [")
    assert main(["reload", "-c", str(file)]) == 2
    first = capsys.readouterr().err
    assert main(["check", "-c", str(file)]) == 2
    assert capsys.readouterr().err == first


def test_every_key_is_described() -> None:
    """In `docs/configuration.md`, in the part of its section."""
    made = schema(Config)
    definitions = made["$defs"]
    text = (ROOT / "docs" / "configuration.md").read_text()
    parts = {found[1]: found[2] for found in _find_parts(text)}
    for section, node in definitions["Config"]["properties"].items():
        described = words(parts.get(section, text))
        assert section in words(text)
        assert set(schema_keys(node, definitions)) <= described, section


_find_parts = re.compile(r"(?ms)^## `(\w+)`\n(.*?)(?=^## |\Z)").finditer


def words(text: str) -> set[str]:
    """Those between backticks."""
    return set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", text))))


def schema_keys(
    node: Any, definitions: dict[str, Any], inside: tuple[str, ...] = ()
) -> Iterator[str]:
    """All keys that may be below `node`."""
    if isinstance(node, list):
        for one in node:
            yield from schema_keys(one, definitions, inside)
    elif isinstance(node, dict) and "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        if name not in inside:
            yield from schema_keys(definitions[name], definitions, (*inside, name))
    elif isinstance(node, dict):
        for key, value in node.get("properties", {}).items():
            yield key
            yield from schema_keys(value, definitions, inside)
        for part in ("anyOf", "items", "prefixItems", "additionalProperties"):
            yield from schema_keys(node.get(part), definitions, inside)
