"""Text to token ids: fastokens, or Hugging Face's `tokenizers` for what that does not support.

Performs: reads the tokenizer's file. Encoding itself is a plain call that releases the
interpreter's lock.
"""

from __future__ import annotations

import array
import logging
import os
import struct
from collections.abc import Sequence
from typing import Protocol

import fastokens
import tokenizers

from core.errors import BadRequest, ConfigError

_log = logging.getLogger("headrace.routing")

# Text between special tokens repeats from turn to turn; fastokens keeps the ids of this much.
_SEGMENT_CACHE_BYTES = 16 * 1024 * 1024
_WARM_UP = "Warm up: 123 words, ünïcödé 東京 🙂\n\n\tdef f(x):\n    return {'a': x}  # <|none|>"


class Tokenizer(Protocol):
    """`inline_bytes`: up to how much text encoding is cheaper than a thread's hop."""

    inline_bytes: int

    def encode(self, text: str, *, special: bool) -> bytes:
        """The ids as 32-bit little-endian numbers; `special`: with the tokens (BOS...) that the
        tokenizer adds by itself. Raises BadRequest for text that is not Unicode."""

    def encode_all(self, texts: Sequence[str], *, special: bool) -> list[bytes]: ...


class FastTokenizer:
    """By fastokens."""

    inline_bytes = 64 * 1024

    def __init__(self, inner: fastokens.Tokenizer) -> None:
        inner.no_truncation()
        inner.no_padding()
        inner.enable_segment_cache(_SEGMENT_CACHE_BYTES)
        self._encode = inner.encode_batch_flat

    def __repr__(self) -> str:
        return "<FastTokenizer>"

    def encode(self, text: str, *, special: bool) -> bytes:
        try:
            ids: bytes = self._encode([text], special)[0]
        except UnicodeEncodeError as error:
            raise _not_unicode() from error
        return ids

    def encode_all(self, texts: Sequence[str], *, special: bool) -> list[bytes]:
        try:
            ids, offsets = self._encode(list(texts), special)
        except UnicodeEncodeError as error:
            raise _not_unicode() from error
        ends = struct.unpack(f"<{len(offsets) // 8}Q", offsets)
        return [ids[ends[i] * 4 : ends[i + 1] * 4] for i in range(len(texts))]


class HuggingFaceTokenizer:
    """By `tokenizers`: slower, never inline."""

    inline_bytes = 0

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner

    def __repr__(self) -> str:
        return "<HuggingFaceTokenizer>"

    def encode(self, text: str, *, special: bool) -> bytes:
        return self.encode_all([text], special=special)[0]

    def encode_all(self, texts: Sequence[str], *, special: bool) -> list[bytes]:
        try:
            # The batch call releases the interpreter's lock, `encode` does not.
            encodings = self._inner.encode_batch_fast(list(texts), add_special_tokens=special)
        except (UnicodeEncodeError, TypeError) as error:
            raise _not_unicode() from error
        return [array.array("I", encoding.ids).tobytes() for encoding in encodings]

    def warm_up(self) -> None:
        # Not the batch call: it would start threads, which a fork does not survive.
        self._inner.encode(_WARM_UP)


def load_tokenizer(path: str) -> Tokenizer:
    """Load and warm up, on the caller's thread alone, so that a fork may follow.

    Raises ConfigError when the file is missing or no tokenizer.
    """
    try:
        open(path, "rb").close()
    except OSError as error:
        raise ConfigError(
            f"cannot read the tokenizer {path}: {error.strerror}; correct `tokenizer`"
        ) from error
    # One prompt uses one core, and no thread of fastokens' pool is alive when workers fork.
    os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")
    try:
        # By its path: what is read here would be decoded with the interpreter's lock held.
        fast = FastTokenizer(fastokens.Tokenizer.from_file(path))
    except (OSError, ValueError, RuntimeError) as refusal:
        return _fallback(path, refusal)
    fast.encode(_WARM_UP, special=True)
    return fast


def _fallback(path: str, refusal: Exception) -> Tokenizer:
    try:
        slow = HuggingFaceTokenizer(tokenizers.Tokenizer.from_file(path))
    except Exception as error:  # `tokenizers` raises nothing narrower
        raise ConfigError(
            f"the tokenizer {path} cannot be used ({error}); "
            "give the `tokenizer.json` that came with the model"
        ) from error
    _log.warning("%s is read by the slower `tokenizers`: fastokens refuses it (%s)", path, refusal)
    slow.warm_up()
    return slow


def _not_unicode() -> BadRequest:
    return BadRequest("the prompt holds text that is not Unicode (a lone surrogate)")
