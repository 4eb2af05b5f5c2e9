"""The sections `discover` and `dns` of the configuration: replicas that DNS names. Seconds."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal

from msgspec import Meta

from backend.config import ReplicaTraits
from core.section import Contradictions, Section
from proxy.listen.address import parse_address

OWN_KEYS = ("dns", "srv", "port", "scheme", "most")
"""Keys of `DiscoverConfig` that no replica has."""

_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,254}}\Z){_LABEL}(\.{_LABEL})*\.?\Z")
_SERVICE = re.compile(r"_[A-Za-z0-9-]+\._(tcp|udp)\..")
_SERVER = "expected the address of a name server, `10.0.0.10`, `10.0.0.10:53` or `[::1]:53`"


class DiscoverConfig(ReplicaTraits, kw_only=True):
    """Replicas of one model whose addresses are in DNS, alike in all else.

    `dns`: a name, each of whose A and AAAA records is a replica on `port`. `srv`: the name of a
    service (RFC 2782, `_http._tcp.vllm.svc`), each of whose SRV records of the best priority is a
    replica; SRV weights are not looked at. `most`: what is taken of a longer answer.
    """

    dns: str | None = None
    srv: str | None = None
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    scheme: Literal["http", "https"] = "http"
    most: Annotated[int, Meta(ge=1, le=1024)] = 32

    def __post_init__(self) -> None:
        if faults := list(self._faults()):
            raise Contradictions(faults)

    def _faults(self) -> list[tuple[str, str]]:
        faults = []
        if (self.dns is None) == (self.srv is None):
            return [("", "expected either `dns` (a name, with `port`) or `srv` (a service)")]
        if self.dns is not None:
            if self.port is None:
                faults.append(("", "addresses have no port: give `port` too"))
            if not _NAME.match(self.dns) or _is_address(self.dns):
                faults.append((".dns", "expected a DNS name; an address belongs into `replicas`"))
        if self.srv is not None:
            if self.port is not None:
                faults.append((".port", "the SRV records name the ports; remove it"))
            if not _NAME.match(self.srv) or not _SERVICE.match(self.srv):
                faults.append((".srv", "expected a service's name, as in `_http._tcp.vllm.svc`"))
        if self.tls is not None and self.scheme == "http":
            faults.append((".tls", "only with `scheme: https`"))
        return faults

    @property
    def queries(self) -> tuple[str, ...]:
        """What is asked for it: record type and name."""
        if self.srv is not None:
            return (f"SRV {self.srv}",)
        return f"A {self.dns}", f"AAAA {self.dns}"


class DnsConfig(Section):
    """How names of `discover` are asked for. `servers`: instead of those of /etc/resolv.conf. An
    answer counts for its TTL, but for `min_s` at least and `max_s` at most."""

    servers: tuple[str, ...] = ()
    timeout_s: Annotated[float, Meta(gt=0, le=30)] = 2.0
    min_s: Annotated[float, Meta(ge=0.1)] = 5.0
    max_s: Annotated[float, Meta(ge=0.1)] = 60.0

    def __post_init__(self) -> None:
        faults = []
        for index, text in enumerate(self.servers):
            try:
                server_address(text)
            except ValueError:
                faults.append((f".servers[{index}]", f'{_SERVER}, got "{text}"'))
        if self.max_s < self.min_s:
            faults.append((".max_s", "is less than min_s"))
        if faults:
            raise Contradictions(faults)


def server_address(text: str) -> tuple[str, int]:
    """Host and port of a name server. Raises ValueError."""
    if _is_address(text):
        return text, 53
    address = parse_address(text)
    if not _is_address(address.host) or not address.port:
        raise ValueError(_SERVER)
    return address.host, address.port


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
