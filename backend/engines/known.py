"""The model servers that `replicas[].engine` can name."""

from __future__ import annotations

from collections.abc import Mapping

from backend.engines.dialect import Dialect, EngineKind
from backend.engines.openai import OPENAI
from backend.engines.sglang import SGLANG
from backend.engines.vllm import VLLM

DIALECTS: Mapping[EngineKind, Dialect] = {"vllm": VLLM, "sglang": SGLANG, "openai": OPENAI}
