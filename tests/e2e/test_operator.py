"""What an operator may get wrong: exit status 2 and sentences that name the place and the mend."""

from __future__ import annotations

import copy
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from running import ROOT, Document, Identity

from loadtest.replica.options import DEMO_MODEL
from proxy.serve.throwaway import make_certificate

BESIDE_PYTHON = Path(sys.executable).parent
Fault = Callable[[Document, Path], str]
"""Breaks the configuration; returns the beginning of what must be said, as a pattern."""


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """The command as a process."""
    return subprocess.Popen(
        [sys.executable, "-m", "proxy.serve", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    try:
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def headrace(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command, run to its end."""
    return ended(start(*arguments, **environment))


def config(identity: Identity) -> Document:
    return copy.deepcopy(identity.config(["http://127.0.0.1:9"]))


def unknown_key(document: Document, folder: Path) -> str:
    document["listen"]["helth_path"] = document["listen"].pop("health_path")
    return r"\$\.listen: unknown key `helth_path`; did you mean `health_path`\?"


def wrong_type(document: Document, folder: Path) -> str:
    document["workers"] = "many"
    return r'\$\.workers: expected an integer.*"many"'


def unknown_model(document: Document, folder: Path) -> str:
    document["replicas"].append({"url": "http://127.0.0.1:8", "model": "dem"})
    return r"\$\.replicas\[1\]\.model: no model is named `dem`; did you mean `demo`\?"


def no_certificate(document: Document, folder: Path) -> str:
    document["listen"]["tls"]["certificate"] = str(folder / "none.pem")
    return r"\$\.listen\.tls\.certificate: there is no file .*/none\.pem"


def foreign_key(document: Document, folder: Path) -> str:
    document["listen"]["tls"]["key"] = str(make_certificate(folder).key)
    return (
        r"\$\.listen\.tls: the key .*key\.pem does not belong to the certificate .*cert\.pem; "
        r"give the key that the certificate was made for"
    )


def no_tokenizer(document: Document, folder: Path) -> str:
    document["models"][0]["tokenizer"] = str(folder / "tokenizer.json")
    return r"\$\.models\[0\]\.tokenizer: there is no file .*/tokenizer\.json"


def broken_tokenizer(document: Document, folder: Path) -> str:
    (folder / "tokenizer.json").write_text("{}")
    document["models"][0]["tokenizer"] = str(folder / "tokenizer.json")
    return r"\$\.models: the tokenizer .*tokenizer\.json cannot be used .*; give the `tok"


def unset_secret(document: Document, folder: Path) -> str:
    document["replicas"][0]["api_key"] = "env:HEADRACE_TEST_UNSET"
    return r"\$\.replicas\[0\]\.api_key: the environment variable HEADRACE_TEST_UNSET, .*is not set"


def secret_in_the_open(document: Document, folder: Path) -> str:
    document["replicas"][0]["api_key"] = "sk-very-secret"
    return r"\$\.replicas\[0\]\.api_key: (?!.*very-secret).*`file:.*`env:"


def bad_key_set(document: Document, folder: Path) -> str:
    (folder / "jwks.json").write_text('{"keys": []}')
    document["auth"]["issuers"][0]["jwks"]["file"] = str(folder / "jwks.json")
    return r"\$\.auth: the key set .*jwks\.json cannot be used: .* no key that can be used"


# What is found together is said together, one line each.
FAULTS: list[list[Fault]] = [
    [unknown_key, wrong_type, secret_in_the_open],
    [unknown_model],
    [no_certificate, no_tokenizer, unset_secret],
    [foreign_key],
    [broken_tokenizer],
    [bad_key_set],
]


def complaints(said: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines that are said when nothing is printed and the exit status is 2."""
    assert said.returncode == 2, said
    assert said.stdout == ""
    assert "Traceback" not in said.stderr
    lines = said.stderr.splitlines()
    assert all(line.startswith("headrace: ") for line in lines)
    return [line.removeprefix("headrace: ") for line in lines]


@pytest.fixture(scope="module")
def attempts(
    identity: Identity, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[tuple[list[str], subprocess.Popen[str]]]]:
    """A start of the gateway for each entry of FAULTS, all at once, and what must be said."""
    started = []
    for faults in FAULTS:
        folder = tmp_path_factory.mktemp("faults")
        document = config(identity)
        sentences = [fault(document, folder) for fault in faults]
        path = folder / "headrace.yaml"
        path.write_text(yaml.safe_dump(document))
        started.append((sentences, start("serve", "-c", str(path))))
    yield started
    for _, process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "number", range(len(FAULTS)), ids=["-".join(f.__name__ for f in faults) for faults in FAULTS]
)
def test_one_sentence_for_each_fault(
    attempts: list[tuple[list[str], subprocess.Popen[str]]], number: int
) -> None:
    sentences, process = attempts[number]
    lines = complaints(ended(process))
    assert len(lines) == len(sentences), lines
    for sentence in sentences:
        assert any(re.match(sentence, line) for line in lines), (sentence, lines)


def test_what_is_not_yaml_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "headrace.yaml").write_text("listen:\n  tls: off\n tls: on\n")
    (line,) = complaints(headrace("serve", "-c", str(tmp_path / "headrace.yaml")))
    assert re.search(r"line 3", line), line


def test_an_occupied_port_names_who_holds_it(identity: Identity, tmp_path: Path) -> None:
    document = config(identity)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        document["listen"]["addresses"] = [f"127.0.0.1:{port}"]
        path = tmp_path / "headrace.yaml"
        path.write_text(yaml.safe_dump(document))
        (line,) = complaints(headrace("serve", "-c", str(path)))
    assert line.startswith(f"cannot listen on 127.0.0.1:{port}: it is in use by ")
    assert f"(pid {os.getpid()})" in line


def test_the_examples_pass_the_check(identity: Identity, tmp_path: Path) -> None:
    """Each with the files that it names put where it names them."""
    (tmp_path / "tls").mkdir()
    (tmp_path / "tls" / "fullchain.pem").write_bytes(identity.files.certificate.read_bytes())
    (tmp_path / "tls" / "privkey.pem").write_bytes(identity.files.key.read_bytes())
    template = json.dumps(
        {"chat_template": (DEMO_MODEL / "chat_template.jinja").read_text(encoding="utf-8")}
    )
    for model in ("qwen3-8b", "qwen3-32b"):
        folder = tmp_path / "models" / model
        folder.mkdir(parents=True)
        (folder / "tokenizer.json").write_bytes((DEMO_MODEL / "tokenizer.json").read_bytes())
        (folder / "tokenizer_config.json").write_text(template)
    secrets = dict.fromkeys(
        ("HEADRACE_REDIS_PASSWORD", "VLLM_API_KEY", "HEADRACE_ROUTING_SECRET"), "secret" * 6
    )
    secrets["HEADRACE_TICKET_SECRET"] = "secret" * 8
    checks = {}
    for example in sorted((ROOT / "configs").glob("*.yaml")):
        path = tmp_path / example.name
        path.write_bytes(example.read_bytes())
        checks[path] = start("check", "-c", str(path), **secrets)
    assert len(checks) >= 2
    for path, process in checks.items():
        done = ended(process)
        assert done.returncode == 0, done
        assert done.stdout.startswith(f"OK: {path}: ")
        assert "secret" not in done.stdout + done.stderr


def test_the_installed_command_tells_its_version() -> None:
    command = BESIDE_PYTHON / "headrace"
    if not command.exists():
        pytest.skip("headrace is not installed beside this Python")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"headrace \d+\.\d+\.\d+\n", done.stdout)


def test_the_schema_is_a_json_schema() -> None:
    """Draft 2020-12 as far as the document uses it: known keywords, and references that lead
    somewhere."""
    done = headrace("schema")
    assert done.returncode == 0
    schema = json.loads(done.stdout)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    for node in nodes(schema):
        if reference := node.get("$ref"):
            assert reference.removeprefix("#/$defs/") in schema["$defs"]
        if kind := node.get("type"):
            kinds = [kind] if isinstance(kind, str) else kind
            assert set(kinds) <= {
                *("object", "array", "string", "integer", "number", "boolean", "null")
            }
        if pattern := node.get("pattern"):
            re.compile(pattern)
        assert set(node.get("required", ())) <= set(node.get("properties", ()))


def nodes(node: Any) -> list[dict[str, Any]]:
    """Every schema inside a schema."""
    found = [node] if isinstance(node, dict) else []
    for name in ("$defs", "properties"):
        for inner in node.get(name, {}).values():
            found += nodes(inner)
    for name in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for inner in node.get(name, ()):
            found += nodes(inner)
    for name in ("items", "additionalProperties"):
        if isinstance(node.get(name), dict):
            found += nodes(node[name])
    return found


def test_a_command_line_that_is_wrong_shows_how_it_is_used() -> None:
    done = headrace("serve")
    assert done.returncode == 2
    assert "usage: headrace serve" in done.stderr
    assert "-c" in done.stderr
