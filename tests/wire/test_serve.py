"""`headrace serve` as a process."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., Any]

CONFIG = """
listen: {{addresses: ["127.0.0.1:{port}"], tls: off, health_path: /healthz}}
admin: {{address: "127.0.0.1:0"}}
auth: none
workers: 2
propagation_s: 0
run_dir: run
models: [{{name: qwen3}}]
replicas: [{{url: "http://127.0.0.1:9", model: qwen3}}]
log: {{access: off}}
"""


def configuration(tmp_path: Path, port: int = 0) -> str:
    (tmp_path / "headrace.yaml").write_text(CONFIG.format(port=port))
    return str(tmp_path / "headrace.yaml")


def test_it_serves_until_told_to_stop(tmp_path: Path, run_process: Run) -> None:
    gateway = run_process("-m", "proxy.serve", "serve", "-c", configuration(tmp_path))
    port = gateway.ports()[0]
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as client:
        client.request("GET", "/v1/models")
        response = client.getresponse()
        assert response.status == 200
        assert [model["id"] for model in json.load(response)["data"]] == ["qwen3"]
    gateway.stop()
    assert gateway.ended() == 0


def test_an_occupied_port_is_one_sentence(tmp_path: Path, run_process: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        gateway = run_process("-m", "proxy.serve", "serve", "-c", configuration(tmp_path, port))
        assert gateway.ended() == 2
    said = [line for line in gateway.said if "warning" not in line]
    assert len(said) == 1
    assert said[0].startswith(f"headrace: cannot listen on 127.0.0.1:{port}: it is in use by ")
    assert f"(pid {os.getpid()})" in said[0]
