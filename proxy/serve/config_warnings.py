"""What a configuration may say and yet seldom means."""

from __future__ import annotations

from collections.abc import Iterator

from proxy.serve.config import Config


def warnings(config: Config) -> list[str]:
    """What is allowed and yet seldom meant, one sentence each."""
    open_places = [str(a) for a in config.listen.addresses if not a.parsed.is_loopback]
    found = []
    if open_places and config.listen.tls == "off":
        found.append(
            f"$.listen.tls: off, and {', '.join(open_places)} can be reached from other hosts: "
            "prompts and credentials travel in the clear unless a proxy in front ends TLS"
        )
    if open_places and config.auth == "none":
        found.append(f"$.auth: none, and anybody who can reach {', '.join(open_places)} is served")
    if config.admin is not None and not config.admin.address.parsed.is_loopback:
        found.append(
            f"$.admin.address: {config.admin.address} can be reached from other hosts, without "
            "TLS or authentication"
        )
    waits = config.routing.admission.max_waiting > 0
    if not waits and not any(model.takes_priority for model in config.models):
        found += _idle_priorities(config)
    return found


def _idle_priorities(config: Config) -> Iterator[str]:
    if config.auth == "none":
        return
    if any(issuer.claims.priority is not None for issuer in config.auth.issuers):
        yield "$.auth.issuers: a claim is the priority, nobody waits, and no model `takes_priority`"
    keys = () if config.auth.api_keys is None else config.auth.api_keys.keys
    if any(key.priority for key in keys):
        yield "$.auth.api_keys: a key has a priority, nobody waits, and no model `takes_priority`"
    if any(rule.priority for rule in config.auth.client_certificates):
        yield (
            "$.auth.client_certificates: a rule has a priority, nobody waits, and no model "
            "`takes_priority`"
        )
