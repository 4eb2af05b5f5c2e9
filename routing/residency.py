"""Which canonical blocks one engine holds, by its own events. Pure.

An engine names blocks by hashes that nobody else can compute (its seed, its version, its salts).
They are only remembered: each is mapped to the keys of ours (`routing/blocks.py`) that are complete
with it, which follow from its parent's and from the tokens that the event carries. Sizes need not
be equal. A key is held while the engine's block that completes it and all before that one are
there, since an engine looks for a prefix from its start: so what is claimed is what it would find.

The engine's first block tells the salt and the adapter that were hashed with it, and the chain of
keys starts from the same two: a salted prompt finds what was stored under its own salt, nothing
else. Blocks that depend on more (images, embeddings), and blocks after those or after a parent
that is not known, are left out: too little is claimed, never too much.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from core.kv_events import GPU, TIERS, BlockHash, Cleared, Event, Removed, Stored
from routing.blocks import MOST_BLOCKS, TOKEN_BYTES, chain

_COUNT_BITS = 16
_COUNT_MASK = (1 << _COUNT_BITS) - 1
NOWHERE = TIERS
_FEW = 8
_NO_KEYS: tuple[int, ...] = ()


class Sink(Protocol):
    """Who is told. `tier`: the slowest that a block or any before it must be fetched from."""

    def hold(self, block: int, tier: int) -> None:
        """It is there from now on, or in another tier than before."""

    def unhold(self, block: int) -> None: ...

    def clear(self) -> None: ...


class _Node:
    """One block of the engine's. `keys` are completed by it, `key` is the last one completed by it
    or before it, `rest` the bytes of the tokens since. `copies` counts announcements, some bits a
    tier. `tier` is that of the prefix up to its end. Without copies it is kept for its children,
    which are there by name, as circles would have to be collected."""

    __slots__ = ("children", "copies", "key", "keys", "name", "parent", "rest", "tier")

    def __init__(
        self, name: BlockHash, parent: _Node | None, key: int, keys: Sequence[int], rest: bytes
    ) -> None:
        self.name = name
        self.parent = parent
        self.key = key
        self.keys = keys
        self.rest = rest
        self.copies = 0
        self.tier = NOWHERE
        self.children: list[BlockHash] | set[BlockHash] | None = None

    def __repr__(self) -> str:
        return f"<_Node {self.name!r} tier={self.tier}>"

    def adopt(self, child: BlockHash) -> None:
        children = self.children
        if children is None:
            self.children = [child]
        elif isinstance(children, set):
            children.add(child)
        else:
            children.append(child)
            if len(children) > _FEW:
                self.children = set(children)


class Residency:
    """`start(adapter, salt)` begins a chain of keys. `unknown` counts blocks left out because they
    follow none that is known, `opaque` those that depend on more than tokens, `refused` those
    beyond `most` (an engine announces no more than it has memory for; this bounds a broken one).
    """

    def __init__(
        self,
        block_tokens: int,
        start: Callable[[str | None, str], int],
        sink: Sink,
        most: int = 4_000_000,
    ) -> None:
        self._block_tokens = block_tokens
        self._start = start
        self._sink = sink
        self._most = most
        self._nodes: dict[BlockHash, _Node] = {}
        # Of engines whose blocks do not divide ours: two of theirs may complete the same key.
        self._sharers: dict[int, list[_Node]] = {}
        self._group: int | None = None
        self.largest = 0
        """The size of the engine's blocks in tokens, once it has told of one."""
        self.unknown = 0
        self.opaque = 0
        self.refused = 0

    def __repr__(self) -> str:
        return f"<Residency {len(self._nodes)} engine blocks>"

    def __len__(self) -> int:
        return len(self._nodes)

    def apply(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Stored):
                self._stored(event)
            elif isinstance(event, Removed):
                self._removed(event)
            else:
                assert isinstance(event, Cleared)
                self.clear()

    def clear(self) -> None:
        """Nothing is there any more, or nothing is known to be."""
        self._nodes.clear()
        self._sharers.clear()
        self._group = None
        self._sink.clear()

    def _stored(self, event: Stored) -> None:
        # Engines with groups announce each; one that serves whole prefixes stands for all.
        if not event.reusable:
            return
        if self._group is None:
            self._group = event.group
        elif event.group != self._group:
            return
        self.largest = max(self.largest, event.block_tokens)
        nodes, hashes = self._nodes, event.hashes
        parent = None if event.parent is None else nodes.get(event.parent)
        if parent is None and event.parent is not None:
            # It may be known itself, from when its parent was: then only count.
            self._announced_again(event)
            return
        made = hashes[: event.plain]
        self.opaque += len(hashes) - len(made)
        most = (MOST_BLOCKS - 1) * self._block_tokens // event.block_tokens
        if len(made) > most:  # nobody asks for prompts of that length
            self.refused += len(made) - most
            made = made[:most]
        if len(nodes) + len(made) > self._most:
            self.refused += len(made)
            return
        if any(name not in nodes for name in made):
            self._make(event, made, parent)
        self._count(made, event.tier)

    def _make(self, event: Stored, made: Sequence[BlockHash], parent: _Node | None) -> None:
        """Nodes for those of `made` that have none."""
        nodes, step = self._nodes, self._block_tokens * TOKEN_BYTES
        if parent is None:
            key, data = self._start(event.adapter, event.salt), b""
        else:
            key, data = parent.key, parent.rest
        try:
            tokens = array("I", event.token_ids[: len(made) * event.block_tokens]).tobytes()
        except (TypeError, OverflowError):
            self.opaque += len(made)
            return
        end = len(data)
        data += tokens
        keys = chain(data, self._block_tokens, key)
        size = event.block_tokens * TOKEN_BYTES
        shared = self._block_tokens % event.block_tokens != 0
        done, above = 0, parent
        for name in made:
            end += size
            first, done = done, end // step
            if first < done:
                key = keys[done - 1]
            node = nodes.get(name)
            if node is None:
                completed = keys[first:done] if first < done else _NO_KEYS
                node = nodes[name] = _Node(name, above, key, completed, data[done * step : end])
                if above is not None:
                    above.adopt(name)
                if shared:
                    self._share(node)
            above = node

    def _announced_again(self, event: Stored) -> None:
        known = [name for name in event.hashes if name in self._nodes]
        self.unknown += len(event.hashes) - len(known)
        self._count(known, event.tier)

    def _count(self, names: Sequence[BlockHash], tier: int) -> None:
        find = self._nodes.get
        shift = tier * _COUNT_BITS
        for name in names:
            node = find(name)
            if node is None:
                continue
            copies = node.copies
            if (copies >> shift) & _COUNT_MASK != _COUNT_MASK:
                node.copies = copies + (1 << shift)
            if tier < node.tier:
                self._review(node)

    def _removed(self, event: Removed) -> None:
        if self._group is not None and event.group != self._group:
            return
        shift = event.tier * _COUNT_BITS
        for name in event.hashes:
            node = self._nodes.get(name)
            if node is None or not (node.copies >> shift) & _COUNT_MASK:
                continue
            node.copies -= 1 << shift
            self._review(node)
            if not node.copies and not node.children:
                self._forget(node)

    def _forget(self, node: _Node) -> None:
        """And those before it that were only kept for it."""
        while True:
            del self._nodes[node.name]
            if self._sharers:
                self._unshare(node)
            above = node.parent
            if above is None:
                return
            assert above.children is not None
            above.children.remove(node.name)
            if above.children:
                return
            above.children = None
            if above.copies:
                return
            node = above

    def _review(self, node: _Node) -> None:
        """Where the prefix up to the end of `node`, and of all after it, is now."""
        pending = [node]
        while pending:
            node = pending.pop()
            tier, above = _tier(node.copies), node.parent
            if above is not None and above.tier > tier:
                tier = above.tier
            if tier == node.tier:
                continue
            node.tier = tier
            if node.keys:
                self._tell(node)
            if node.children is not None:
                pending.extend([self._nodes[name] for name in node.children])

    def _tell(self, node: _Node) -> None:
        for key in node.keys:
            tier = node.tier
            if self._sharers and (sharers := self._sharers.get(key)) is not None:
                tier = min([sharer.tier for sharer in sharers])
            if tier < NOWHERE:
                self._sink.hold(key, tier)
            else:
                self._sink.unhold(key)

    def _share(self, node: _Node) -> None:
        for key in node.keys:
            self._sharers.setdefault(key, []).append(node)

    def _unshare(self, node: _Node) -> None:
        for key in node.keys:
            sharers = self._sharers.get(key)
            if sharers is not None:
                sharers.remove(node)
                if not sharers:
                    del self._sharers[key]


def _tier(copies: int) -> int:
    """The fastest that has a copy."""
    if copies & _COUNT_MASK:
        return GPU
    for tier in range(TIERS):
        if (copies >> (tier * _COUNT_BITS)) & _COUNT_MASK:
            return tier
    return NOWHERE
