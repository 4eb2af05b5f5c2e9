"""Replicas that are listed beside the configuration file, or that DNS names, and those that are
drained. Pure.

All of it becomes part of the one text that the supervisor sends to all processes, so these agree by
what makes them agree about every other setting.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from backend.config import ReplicaConfig
from core import document
from core.errors import ConfigError
from core.loading import ConfigProblems, convert
from core.section import Section
from proxy.serve.discover_config import OWN_KEYS, DiscoverConfig, DnsConfig

LONGEST_LIST = 256 * 1024
"""Bytes of a `replicas_file`: thousands of replicas. Reading as much holds up the supervisor for a
second."""

Found = Mapping[str, tuple[str, ...]]
"""What DNS answered last, by query: see `DiscoverConfig.queries` and `lookup.Answer`."""


class ReplicasFile(Section):
    """A file with further replicas, in the form of the configuration's own."""

    replicas: tuple[ReplicaConfig, ...] = ()


def merged(
    text: bytes,
    base: str,
    listed: tuple[str, bytes] | None,
    drained: Collection[str],
    found: Found | None = None,
) -> bytes:
    """The configuration `text` with the replicas of the file `listed` (path and content) and those
    `found`, those whose ids are `drained` marked so. Relative paths start at `base`. Raises
    ConfigError."""
    whole: Any = document.parse(text.decode("utf-8"))
    entries = [*(whole.get("replicas") or ())]
    if listed is not None:
        entries += _listed(*listed, base)
    if sources := whole.get("discover"):
        taken = {_id(entry, base) for entry in entries}
        for source in sources:
            for entry in _discovered(source, base, found or {}):
                if (replica_id := _id(entry, base)) not in taken:
                    taken.add(replica_id)
                    entries.append(entry)
    if drained:
        entries = [_marked(entry, base, drained) for entry in entries]
    # JSON is YAML too.
    return json.dumps({**whole, "replicas": entries}, ensure_ascii=False).encode("utf-8")


def cut_short(source: DiscoverConfig, found: Found) -> str:
    """That not all of what was found is taken, in words, or nothing."""
    count = sum(len(found.get(query, ())) for query in source.queries)
    if count <= source.most:
        return ""
    return f"{source.dns or source.srv}: {count} hosts, of which `most: {source.most}` are taken"


def nothing_of(source: DiscoverConfig, found: Found) -> str:
    """That there is no replica, in words, or nothing."""
    known = [found[query] for query in source.queries if query in found]
    if len(known) < len(source.queries) or any(known):
        return ""
    return f"{source.dns or source.srv}: there is no record"


def described(source: DiscoverConfig, config: DnsConfig) -> str:
    """What an entry of `discover` means, in words. Nothing is asked for that."""
    what = f"A and AAAA records of {source.dns}, port {source.port}"
    if source.srv is not None:
        what = f"SRV records of {source.srv}"
    servers = ", ".join(config.servers) or "the servers of /etc/resolv.conf"
    return (
        f"{source.model}: {what}, {source.scheme}, {source.most} at most; asked of {servers} "
        f"as their TTL says, every {config.min_s:g} to {config.max_s:g} s"
    )


def _listed(path: str, content: bytes, base: str) -> list[Any]:
    try:
        node: Any = document.parse(content.decode("utf-8"))
        convert(node, ReplicasFile, base)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text") from error
    except ConfigProblems as error:
        lines = [f"{path}: {problem}" for problem in error.problems]
        raise ConfigError("\n".join(lines)) from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return [*node.get("replicas", ())]


def _discovered(node: Any, base: str, found: Found) -> Iterator[Any]:
    """An entry for each host that DNS has for the entry `node` of `discover`."""
    source = convert(node, DiscoverConfig, base)
    traits = {key: value for key, value in node.items() if key not in OWN_KEYS}
    if source.scheme == "https" and source.dns is not None:
        # An address is in no certificate.
        traits["tls"] = {"server_name": source.dns.rstrip("."), **(traits.get("tls") or {})}
    hosts = [host for query in source.queries for host in found.get(query, ())]
    for host in hosts[: source.most]:
        place = host
        if source.port is not None:
            place = f"[{host}]:{source.port}" if ":" in host else f"{host}:{source.port}"
        yield {**traits, "url": f"{source.scheme}://{place}"}


def _id(entry: Any, base: str) -> str:
    return convert(entry, ReplicaConfig, base).replica.id


def _marked(entry: Any, base: str, drained: Collection[str]) -> Any:
    return {**entry, "drain": True} if _id(entry, base) in drained else entry
