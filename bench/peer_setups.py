"""How each peer is started for `python -m bench.peers`: our configuration, its own binary.

Each is one process with one worker (two where it cannot have less) before the same two replicas.
`features` says what it does in this run; nothing else of it is switched on.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.processes import Processes, accepts, free_port
from bench.rig import AUDIENCE, ISSUER, start_gateway, start_nginx

Start = Callable[[Processes, Path, int, tuple[int, ...], str], int]
"""Processes, folder, port, upstream ports and the binary; returns the pid."""


@dataclass(frozen=True, slots=True)
class Setup:
    """`binary`: looked for in the folders of `--binaries` and in PATH; empty: ours. `headers`: what
    a request needs for it, of the upstream ports. `gateway`: an LLM gateway or router."""

    name: str
    features: str
    binary: str
    tls: bool
    start: Start
    headers: Callable[[tuple[int, ...]], dict[str, str]] = lambda _: {}
    gateway: bool = False


def find(setup: Setup, folders: Sequence[Path]) -> str | None:
    """Its path, if it is installed. A folder with its name comes first: some of them bring along
    others' binaries."""
    binary = setup.binary
    places = [str(folder) for folder in folders]
    places.sort(key=lambda place: setup.name not in Path(place).parent.name)
    places += [os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]
    return shutil.which(binary, path=os.pathsep.join(places))


def version_of(path: str) -> str:
    """The first line that it says of itself."""
    for option in ("--version", "-v", "version"):
        done = subprocess.run(
            [path, option], capture_output=True, text=True, check=False, timeout=60
        )
        text = (done.stdout + done.stderr).strip()
        if done.returncode == 0 and text:
            return text.splitlines()[0]
    return "unknown"


def _run(
    processes: Processes, name: str, command: list[str], port: int, *, settle_s: float = 0.0
) -> int:
    """`settle_s`: how long it listens before it is whole."""
    pid = processes.start(name, command, lambda: accepts(port), measured=True).pid
    time.sleep(settle_s)
    return pid


def _ours(processes: Processes, folder: Path, port: int, upstreams: tuple[int, ...], _: str) -> int:
    pid = start_gateway(processes, folder, port, upstreams)
    assert pid is not None
    return pid


def _ours_plain(
    processes: Processes, folder: Path, port: int, upstreams: tuple[int, ...], _: str
) -> int:
    """What Envoy does in its row, and no more: a limit in memory, no tokenizer, least load."""
    inner = folder / "like"
    inner.mkdir(exist_ok=True)
    for name in ("cert.pem", "key.pem", "ca.pem", "jwks.json"):
        shutil.copy(folder / name, inner)
    rules = [{"name": "requests", "limit": 1_000_000_000, "unit": "requests"}]
    pid = start_gateway(
        processes,
        inner,
        port,
        upstreams,
        limits={"store": "memory", "rules": rules},
        models=[{"name": "demo"}],
        routing={"policy": "least_load"},
    )
    assert pid is not None
    return pid


def _nginx(
    processes: Processes, folder: Path, port: int, upstreams: tuple[int, ...], _: str
) -> int:
    pid = start_nginx(processes, folder, port, upstreams)
    assert pid is not None
    return pid


def _haproxy(
    processes: Processes, folder: Path, port: int, upstreams: tuple[int, ...], binary: str
) -> int:
    (folder / "haproxy.pem").write_bytes(
        (folder / "cert.pem").read_bytes() + (folder / "key.pem").read_bytes()
    )
    servers = "\n".join(f"  server r{n} 127.0.0.1:{up}" for n, up in enumerate(upstreams))
    path = folder / "haproxy.cfg"
    path.write_text(f"""global
  nbthread 1
  maxconn 4096
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend edge
  bind 127.0.0.1:{port} ssl crt {folder}/haproxy.pem ssl-min-ver TLSv1.3
  default_backend replicas
backend replicas
  balance leastconn
  http-reuse always
{servers}
""")
    return _run(processes, "haproxy", [binary, "-f", str(path), "-db"], port)


def _caddy(
    processes: Processes, folder: Path, port: int, upstreams: tuple[int, ...], binary: str
) -> int:
    path = folder / "Caddyfile"
    to = " ".join(f"127.0.0.1:{up}" for up in upstreams)
    path.write_text(f"""{{
  admin off
  auto_https off
  servers {{
    protocols h1 h2
  }}
}}
https://localhost:{port} {{
  bind 127.0.0.1
  tls {folder}/cert.pem {folder}/key.pem {{
    protocols tls1.3
  }}
  reverse_proxy {to} {{
    lb_policy least_conn
    flush_interval -1
  }}
}}
""")
    command = ["env", "GOMAXPROCS=1", f"HOME={folder}", binary, "run", "--config", str(path)]
    return _run(processes, "caddy", [*command, "--adapter", "caddyfile"], port)


def _traefik(
    processes: Processes, folder: Path, port: int, upstreams: tuple[int, ...], binary: str
) -> int:
    dynamic = {
        "http": {
            "routers": {"all": {"rule": "PathPrefix(`/`)", "service": "replicas", "tls": {}}},
            "services": {
                "replicas": {
                    "loadBalancer": {
                        "servers": [{"url": f"http://127.0.0.1:{up}"} for up in upstreams],
                        "responseForwarding": {"flushInterval": "-1ms"},
                    }
                }
            },
        },
        "tls": {
            "certificates": [
                {"certFile": str(folder / "cert.pem"), "keyFile": str(folder / "key.pem")}
            ],
            "stores": {
                "default": {
                    "defaultCertificate": {
                        "certFile": str(folder / "cert.pem"),
                        "keyFile": str(folder / "key.pem"),
                    }
                }
            },
            "options": {"default": {"minVersion": "VersionTLS13"}},
        },
    }
    static = {
        "entryPoints": {"edge": {"address": f"127.0.0.1:{port}"}},
        "providers": {"file": {"filename": str(folder / "traefik-dynamic.yaml")}},
        "global": {"checkNewVersion": False, "sendAnonymousUsage": False},
    }
    (folder / "traefik-dynamic.yaml").write_text(yaml.safe_dump(dynamic))
    path = folder / "traefik.yaml"
    path.write_text(yaml.safe_dump(static))
    command = ["env", "GOMAXPROCS=1", binary, f"--configFile={path}"]
    return _run(processes, "traefik", command, port, settle_s=3.0)


def _envoy(
    processes: Processes, folder: Path, port: int, upstreams: tuple[int, ...], binary: str
) -> int:
    path = folder / "envoy.yaml"
    path.write_text(yaml.safe_dump(_envoy_document(folder, port, upstreams)))
    command = [binary, "-c", str(path), "--concurrency", "1", "--log-level", "error"]
    return _run(processes, "envoy", [*command, "--disable-hot-restart"], port)


def _envoy_document(folder: Path, port: int, upstreams: tuple[int, ...]) -> dict[str, Any]:
    """TLS 1.3, JWT, a local limit, an access log."""
    types = "type.googleapis.com/envoy.extensions"
    filters = f"{types}.filters.http"
    provider = {
        "issuer": ISSUER,
        "audiences": [AUDIENCE],
        "local_jwks": {"inline_string": (folder / "jwks.json").read_text()},
        "jwt_cache_config": {"jwt_cache_size": 10_000},
    }
    always = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
    bucket = {"max_tokens": 1_000_000_000, "tokens_per_fill": 1_000_000, "fill_interval": "1s"}
    manager = {
        "@type": f"{types}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "edge",
        "codec_type": "AUTO",
        "access_log": [
            {
                "name": "file",
                "typed_config": {
                    "@type": f"{types}.access_loggers.file.v3.FileAccessLog",
                    "path": str(folder / "envoy-access.log"),
                },
            }
        ],
        "route_config": {
            "name": "routes",
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [
                        {
                            "match": {"prefix": "/"},
                            "route": {"cluster": "replicas", "timeout": "0s"},
                        }
                    ],
                }
            ],
        },
        "http_filters": [
            {
                "name": "jwt",
                "typed_config": {
                    "@type": f"{filters}.jwt_authn.v3.JwtAuthentication",
                    "providers": {"bench": provider},
                    "rules": [{"match": {"prefix": "/"}, "requires": {"provider_name": "bench"}}],
                },
            },
            {
                "name": "limit",
                "typed_config": {
                    "@type": f"{filters}.local_ratelimit.v3.LocalRateLimit",
                    "stat_prefix": "limit",
                    "token_bucket": bucket,
                    "filter_enabled": always,
                    "filter_enforced": always,
                },
            },
            {"name": "router", "typed_config": {"@type": f"{filters}.router.v3.Router"}},
        ],
    }
    certificate = {
        "certificate_chain": {"filename": str(folder / "cert.pem")},
        "private_key": {"filename": str(folder / "key.pem")},
    }
    tls = {
        "@type": f"{types}.transport_sockets.tls.v3.DownstreamTlsContext",
        "common_tls_context": {
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_3"},
            "tls_certificates": [certificate],
            "alpn_protocols": ["h2", "http/1.1"],
        },
    }
    listener = {
        "name": "edge",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "filter_chains": [
            {
                "transport_socket": {"name": "tls", "typed_config": tls},
                "filters": [{"name": "http", "typed_config": manager}],
            }
        ],
    }
    endpoints = [
        {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": up}}}}
        for up in upstreams
    ]
    cluster = {
        "name": "replicas",
        "type": "STATIC",
        "lb_policy": "LEAST_REQUEST",
        "load_assignment": {
            "cluster_name": "replicas",
            "endpoints": [{"lb_endpoints": endpoints}],
        },
    }
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def _router(name: str, *before: str) -> Start:
    """A router in Rust with vLLM's or SGLang's options: plain HTTP, cache-aware, no credentials."""

    def start(
        processes: Processes, folder: Path, port: int, upstreams: tuple[int, ...], binary: str
    ) -> int:
        urls = [f"http://127.0.0.1:{up}" for up in upstreams]
        command = ["env", "TOKIO_WORKER_THREADS=1", binary, *before, "--host", "127.0.0.1"]
        command += ["--port", str(port), "--policy", "cache_aware", "--log-level", "error"]
        command += ["--prometheus-port", str(free_port())]  # they share one by default
        return _run(processes, name, [*command, "--worker-urls", *urls], port)

    return start


def _litellm(
    processes: Processes, folder: Path, port: int, upstreams: tuple[int, ...], binary: str
) -> int:
    models = [
        {
            "model_name": "demo",
            "litellm_params": {
                "model": "hosted_vllm/demo",
                "api_base": f"http://127.0.0.1:{up}/v1",
                "api_key": "none",
            },
        }
        for up in upstreams
    ]
    path = folder / "litellm.yaml"
    path.write_text(json.dumps({"model_list": models}))
    unset = "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY=true"
    command = ["env", unset, binary, "--config", str(path)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    return _run(processes, "litellm", [*command, "--num_workers", "1"], port)


def _portkey(
    processes: Processes, folder: Path, port: int, upstreams: tuple[int, ...], binary: str
) -> int:
    command = ["env", "NODE_ENV=production", "TRUSTED_CUSTOM_HOSTS=127.0.0.1,localhost", binary]
    return _run(processes, "portkey", [*command, f"--port={port}", "--headless"], port)


def _portkey_headers(upstreams: tuple[int, ...]) -> dict[str, str]:
    """Its configuration comes with each request."""
    targets = [
        {
            "provider": "openai",
            "api_key": "none",
            "custom_host": f"http://127.0.0.1:{up}/v1",
            "weight": 1,
        }
        for up in upstreams
    ]
    return {
        "x-portkey-config": json.dumps({"strategy": {"mode": "loadbalance"}, "targets": targets})
    }


OURS = "TLS 1.3, JWT, limits in Redis, tokenizing, prefix routing, usage, log"
ROUTER = "plain HTTP, cache-aware"
LIKE_ENVOY = "TLS 1.3, JWT, limit in memory, least load, usage, log"

SETUPS = (
    Setup("headrace", OURS, "", True, _ours),
    Setup("headrace, least load", LIKE_ENVOY, "", True, _ours_plain),
    Setup("nginx", "TLS 1.3", "nginx", True, _nginx),
    Setup("haproxy", "TLS 1.3", "haproxy", True, _haproxy),
    Setup("envoy", "TLS 1.3, JWT, limit in memory, log", "envoy", True, _envoy),
    Setup("caddy", "TLS 1.3", "caddy", True, _caddy),
    Setup("traefik", "TLS 1.3", "traefik", True, _traefik),
    Setup(
        "vllm-router",
        ROUTER,
        "vllm-router",
        False,
        _router("vllm-router"),
        gateway=True,
    ),
    Setup("smg", ROUTER, "smg", False, _router("smg", "launch"), gateway=True),
    Setup(
        "sglang-router",
        ROUTER,
        "sglang-router",
        False,
        _router("sglang-router", "launch"),
        gateway=True,
    ),
    Setup("litellm", "plain HTTP, no key", "litellm", False, _litellm, gateway=True),
    Setup(
        "portkey",
        "plain HTTP, load balancing",
        "gateway",
        False,
        _portkey,
        _portkey_headers,
        gateway=True,
    ),
)
