"""Queries of ours, answered by a name server of ours on loopback."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator

import pytest
from dns_server import NOERROR, NXDOMAIN, SERVFAIL, DnsServer
from running import eventually

from core.metrics import Metrics
from proxy.serve.discover_config import DiscoverConfig, DnsConfig
from proxy.serve.finder import Finder, NoAnswer, Resolver, look_once
from proxy.serve.lookup import Answer
from proxy.serve.supervise.messages import Found

pytest.importorskip("dns", reason="the extra `dns` is not installed")
NAME = "vllm.test."


@pytest.fixture
async def server() -> AsyncIterator[DnsServer]:
    async with DnsServer() as running:
        yield running


def config(server: DnsServer, timeout_s: float = 20.0) -> DnsConfig:
    return DnsConfig(servers=(server.address,), timeout_s=timeout_s, min_s=0.1, max_s=0.1)


async def ask(server: DnsServer, query: str) -> Answer:
    return await Resolver(config(server)).ask(query)


async def test_addresses(server: DnsServer) -> None:
    server.records["A vllm.test"] = ["10.0.0.2", "10.0.0.1"]
    server.records["AAAA vllm.test"] = ["fd00::1"]
    server.ttl_s = 7
    assert await ask(server, f"A {NAME}") == Answer(("10.0.0.2", "10.0.0.1"), 7)
    assert await ask(server, f"AAAA {NAME}") == Answer(("fd00::1",), 7)


async def test_services(server: DnsServer) -> None:
    server.records["SRV _http._tcp.vllm.test"] = [
        "1 50 8000 a.vllm.test.",
        "1 50 8001 b.vllm.test.",
        "2 100 8000 spare.vllm.test.",
    ]
    answer = await ask(server, f"SRV _http._tcp.{NAME}")
    assert set(answer.hosts) == {"a.vllm.test:8000", "b.vllm.test:8001"}
    server.records["SRV _http._tcp.vllm.test"] = ["0 0 0 ."]  # decidedly not available
    assert (await ask(server, f"SRV _http._tcp.{NAME}")).hosts == ()


async def test_no_host_is_taken_that_cannot_be_a_replica(server: DnsServer) -> None:
    server.records["A vllm.test"] = ["169.254.169.254", "0.0.0.0", "224.0.0.1", "10.0.0.1"]
    assert (await ask(server, f"A {NAME}")).hosts == ("10.0.0.1",)
    server.records["A vllm.test"] = ["169.254.169.254"]
    with pytest.raises(NoAnswer):  # nothing is no reason to let go of those that there are
        await ask(server, f"A {NAME}")
    server.records["SRV _http._tcp.vllm.test"] = [
        "1 1 80 a@b.test.",
        "1 1 80 good.test.",
        "1 1 0 x.",
    ]
    assert (await ask(server, f"SRV _http._tcp.{NAME}")).hosts == ("good.test:80",)


async def test_an_answer_that_does_not_fit_comes_over_tcp(server: DnsServer) -> None:
    addresses = [str(ipaddress.IPv4Address("10.0.0.0") + n) for n in range(200)]
    server.records["A vllm.test"] = addresses
    assert set((await ask(server, f"A {NAME}")).hosts) == set(addresses)
    assert server.over_tcp == ["A vllm.test"]


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("zone", [True, False])
async def test_nothing(server: DnsServer, exists: bool, zone: bool) -> None:
    server.zone, server.ttl_s = zone, 9
    server.rcode = NOERROR
    if exists:
        server.records["AAAA vllm.test"] = ["fd00::1"]
    answer = await ask(server, f"A {NAME}")
    assert (answer.hosts, answer.authoritative) == ((), zone)
    assert server.rcode != NXDOMAIN
    if zone:
        assert answer.ttl_s == 9


async def test_no_answer(server: DnsServer) -> None:
    server.silent = True
    with pytest.raises(NoAnswer, match="no answer in time"):
        await Resolver(config(server, 0.05)).ask(f"A {NAME}")
    server.silent, server.rcode = False, SERVFAIL
    with pytest.raises(NoAnswer):
        await Resolver(config(server, 0.3)).ask(f"A {NAME}")
    server.rcode = NOERROR
    for nonsense in (
        b"\0",
        b"\x81\x80" + bytes(8),
        b"\x81\x80\0\1\0\1" + bytes(4) + b"\xc0\x0c" * 9,
    ):
        server.nonsense = nonsense
        with pytest.raises(NoAnswer):
            await Resolver(config(server, 0.3)).ask(f"A {NAME}")


async def test_a_first_look_leaves_out_who_does_not_answer(server: DnsServer) -> None:
    server.records["A vllm.test"] = ["10.0.0.1"]
    queries = [f"A {NAME}", f"AAAA {NAME}", "A elsewhere.test."]
    found, troubles = await asyncio.to_thread(look_once, queries, config(server))
    assert found == {f"A {NAME}": ("10.0.0.1",)}
    assert troubles == {}, "that there is no record is an answer"
    server.rcode = SERVFAIL
    found, troubles = await asyncio.to_thread(look_once, queries[:1], config(server, 0.3))
    assert (found, list(troubles)) == ({}, [f"A {NAME}"])


async def test_changes_are_told_and_failures_keep_what_was(server: DnsServer) -> None:
    told: list[Found] = []
    metrics = Metrics.private()
    finder = Finder(metrics)
    source = DiscoverConfig(dns=NAME, port=8000, model="m", most=2)
    finder.use([source], config(server, 0.3))
    server.records["A vllm.test"] = ["10.0.0.1"]
    finder.connect(told.append)

    async def says(hosts: tuple[str, ...], *, trouble: str = "") -> None:
        async def said() -> bool:
            last = told[-1] if told else Found()
            troubles = " ".join(last.troubles)
            alike = trouble in troubles if trouble else not last.troubles
            return last.hosts.get(f"A {NAME}") == hosts and alike

        await eventually(said)

    try:
        await says(("10.0.0.1",))
        server.records["A vllm.test"] = ["10.0.0.3", "10.0.0.1", "10.0.0.2"]
        await says(("10.0.0.1", "10.0.0.2", "10.0.0.3"), trouble="3 hosts, of which")
        server.rcode = SERVFAIL
        await says(("10.0.0.1", "10.0.0.2", "10.0.0.3"), trouble=f"DNS A {NAME}: no ")
        assert metrics.value("headrace_discovery_stale", f"A {NAME}") == 1
        assert metrics.value("headrace_discovery_hosts", f"A {NAME}") == 3
        server.rcode = NOERROR
        server.records["A vllm.test"] = ["10.0.0.4"]
        await says(("10.0.0.4",))
        count = len(told)
        asked = len(server.asked)

        async def asked_again() -> bool:
            return len(server.asked) > asked + 6

        await eventually(asked_again)
        assert len(told) == count, "what is no change is not told"
        del server.records["A vllm.test"]
        await says((), trouble="vllm.test.: there is no record")
        finder.use([], config(server))
        assert metrics.value("headrace_discovery_hosts", f"A {NAME}") == 0
    finally:
        await finder.close()
