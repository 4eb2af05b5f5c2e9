"""Calls of the script as bytes, from a template for each plan with holes of fixed width. Pure."""

from __future__ import annotations

import hashlib
from binascii import crc_hqx
from importlib import resources
from typing import Final, NamedTuple

from ratelimit.plan import Amounts, Bucket, Plan
from ratelimit.redis_reply import command, join

SCRIPT: Final = resources.files("ratelimit").joinpath("bucket.lua").read_bytes()
SHA: Final = hashlib.sha1(SCRIPT, usedforsecurity=False).hexdigest().encode()
BY_HASH: Final = join((b"EVALSHA", SHA))
BY_TEXT: Final = join((b"EVAL", SCRIPT))
ID_BYTES: Final = 32
TEMPLATES: Final = 10_000
SLOTS: Final = 16_384


class Template(NamedTuple):
    """The calls about one plan. `reserve` has holes for the id, for what each bucket must hold, and
    for what is asked of each; `use` for operation, id and what was used. `slot` is the place of the
    keys in a cluster."""

    reserve: bytes
    use: bytes
    slot: int


class Commands:
    """Makes calls for keys with this prefix. `lease_us`: of every reservation."""

    def __init__(self, prefix: str, lease_us: int) -> None:
        self._prefix = prefix
        self._lease = b"%d" % lease_us
        self._templates: dict[Plan, Template] = {}

    def __repr__(self) -> str:
        return f"<Commands {self._prefix} for {len(self._templates)} plans>"

    def template(self, plan: Plan) -> Template:
        template = self._templates.get(plan)
        if template is None:
            if len(self._templates) >= TEMPLATES:
                self._templates.clear()
            template = self._templates[plan] = self._make(plan)
        return template

    def reserve(self, plan: Plan, name: bytes, least: Amounts, asked: Amounts) -> bytes:
        return self.template(plan).reserve % (name, *least, *asked)

    def use(self, plan: Plan, operation: bytes, name: bytes, used: Amounts) -> bytes:
        return self.template(plan).use % (operation, name, *used)

    def look(self, plan: Plan) -> bytes:
        return self.use(plan, b"l", b"0" * ID_BYTES, plan.nothing)

    def reset(self, plan: Plan) -> bytes:
        return command(b"DEL", *self._keys(plan)[2:])

    def _keys(self, plan: Plan) -> list[bytes]:
        place = f"{self._prefix}:{{{plan.tag}}}:"
        names = ["leases", "open", *(bucket.key for bucket in plan.buckets)]
        return [(place + name).encode("ascii") for name in names]

    def _make(self, plan: Plan) -> Template:
        keys, buckets = self._keys(plan), plan.buckets
        count = 3 + len(keys) + 5 + 5 * len(buckets)
        head = b"*%d\r\n%b%b%b" % (count, BY_HASH, join((b"%d" % len(keys),)), join(keys))
        head = head.replace(b"%", b"%%")
        name = b"$%d\r\n%%b\r\n" % ID_BYTES
        letters = b"".join([_letter(bucket) for bucket in buckets])
        limits = join([b"%d" % number for bucket in buckets for number in bucket.limit])
        values = join((self._lease, b"0", letters)) + limits
        holes = b"$16\r\n%016d\r\n" * len(buckets)
        return Template(
            head + b"$1\r\nr\r\n" + name + values + holes * 2,
            head + b"$1\r\n%b\r\n" + name + values + b"$1\r\n0\r\n" * len(buckets) + holes,
            crc_hqx(plan.tag.encode("ascii"), 0) % SLOTS,
        )


def _letter(bucket: Bucket) -> bytes:
    letter = b"c" if bucket.concurrent else b"t"
    return letter.upper() if bucket.rule.shadow else letter
