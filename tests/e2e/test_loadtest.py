"""One command loads the gateway with every check of a caller on: TLS, tokens of several users,
limits."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from jwt.algorithms import ECAlgorithm
from running import AUDIENCE, Identity, Process

from loadtest.result import Result, decode

ROOT = Path(__file__).parents[2]
SCENARIO = """
name: talks
arrivals: {kind: burst, size: 8, every_s: 100}
duration_s: 60
connections: {reuse: false}
requests: [{name: chat, prompt: 20, output: 10, turns: 3}]
"""
LIMITS = {"rules": [{"name": "few", "match": {"tenants": ["few"]}, "limit": 2}]}


@pytest.fixture
def key_file(tmp_path: Path, identity: Identity) -> Iterator[Path]:
    """A private key whose public half the identity publishes meanwhile."""
    key = ec.generate_private_key(ec.SECP256R1())
    path = tmp_path / "issuer.pem"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    public |= {"kid": "load", "alg": "ES256", "use": "sig"}
    identity.key_set_path.write_text(json.dumps({"keys": [public]}))
    yield path
    identity.publish()


@pytest.fixture
def replica_url() -> Iterator[str]:
    command = [sys.executable, "-m", "loadtest", "replica", "--port", "0", "--token-ms", "2"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process.stdout.readline().split()[-1]
    process.terminate()
    process.wait(60)
    process.stdout.close()


def load(identity: Identity, gateway: Process, key_file: Path, out: Path, tenant: str) -> Result:
    claims = {"iss": identity.issuer.issuer, "aud": AUDIENCE, "tenant": tenant, "plan": "paid"}
    scenario = key_file.with_name("talks.yaml")
    scenario.write_text(SCENARIO)
    command = ["run", str(scenario), "--url", f"https://localhost:{gateway.port}"]
    command += ["--seed", "3", "--out", str(out)]
    command += ["--ca", str(identity.files.authority), "--token-users", "3"]
    command += ["--token-key", str(key_file), "--token-kid", "load"]
    for name, value in claims.items():
        command += ["--token-claim", f"{name}={value}"]
    done = subprocess.run(
        [sys.executable, "-m", "loadtest", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr  # 1: on a machine too busy to say
    return decode((out / "result.json").read_bytes(), "result.json")


def test_through_the_gateway(
    tmp_path: Path, identity: Identity, key_file: Path, replica_url: str
) -> None:
    with Process(identity.config([replica_url], limits=LIMITS)) as gateway:
        found = load(identity, gateway, key_file, tmp_path / "free", "acme")
        refused = load(identity, gateway, key_file, tmp_path / "held", "few")
    assert found.counts.errors == {}
    assert (found.counts.ok, found.counts.connections) == (24, 24)
    assert found.metric("tls") is not None
    assert found.counts.resumed >= 16  # all but the first of each session
    assert set(refused.counts.errors) == {"http_429"}
    assert refused.counts.ok + refused.counts.left == 2
