"""Whatever else speaks OpenAI's API: other servers, and providers with keys of their own.

There is no load to read and no cache to follow. `GET /v1/models` stands for health: who answers it
is alive, even with "too many requests" or "no such path"; only a refused key and a failure of the
server's own are bad. OpenAI refuses bodies with fields that it does not know (400).
"""

from __future__ import annotations

from backend.engines.dialect import Dialect


def healthy(status: int) -> bool:
    return status < 500 and status not in (401, 403)


OPENAI = Dialect(
    None,
    health_path="/v1/models",
    healthy=healthy,
    probe_s=10.0,
    tells_sources=False,
    own_fields=False,
)
