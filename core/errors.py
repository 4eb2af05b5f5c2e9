"""One small tree of failures. A foreign exception is mapped to it where its library is called.

Every error knows which side it came from and whether another replica may be tried; turning one
into bytes for a client is the work of `proxy/answers.py` alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

Source = Literal["downstream", "gateway", "upstream"]


class ConfigError(Exception):
    """Something the operator wrote is wrong. `str()` is one sentence: place, fault, mend."""


class GatewayError(Exception):
    """A failure of one exchange.

    `status` is the HTTP status, `code` a machine-readable reason, `kind` the `type` of OpenAI's
    error object, `retry_after_s` seconds (None: say nothing), `param` the request field at fault.
    `headers` are extra response headers (lower-case name, value), `details` further members of
    the error object.
    """

    status: int = 500
    code: str = "internal_error"
    kind: str = "server_error"
    source: Source = "gateway"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
        details: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = code or self.code
        self.param = param
        self.retry_after_s = retry_after_s
        self.headers = tuple(headers)
        self.details = details


class BadRequest(GatewayError):
    status = 400
    code = "invalid_request"
    kind = "invalid_request_error"
    source: Source = "downstream"


class Unauthenticated(BadRequest):
    """No credentials, or none that hold. The message never says which check failed: `fault` does,
    for the operator."""

    status = 401
    code = "invalid_api_key"
    kind = "authentication_error"

    def __init__(self, message: str, fault: str = "") -> None:
        super().__init__(message)
        self.fault = fault


class Forbidden(BadRequest):
    status = 403
    code = "permission_denied"
    kind = "permission_error"


class NotFound(BadRequest):
    status = 404
    code = "not_found"


class MethodNotAllowed(BadRequest):
    status = 405
    code = "method_not_allowed"


class RequestTimeout(BadRequest):
    status = 408
    code = "request_timeout"


class PayloadTooLarge(BadRequest):
    status = 413
    code = "payload_too_large"


class MisdirectedRequest(BadRequest):
    status = 421
    code = "misdirected_request"


class UnsupportedMediaType(BadRequest):
    status = 415
    code = "unsupported_media_type"


class ExpectationFailed(BadRequest):
    status = 417
    code = "expectation_failed"


class HeadersTooLarge(BadRequest):
    status = 431
    code = "headers_too_large"


class RateLimited(GatewayError):
    status = 429
    code = "rate_limit_exceeded"
    kind = "rate_limit_error"
    source: Source = "downstream"


class ClientGone(GatewayError):
    """The client left before its answer was complete. Logged as 499, answered with nothing."""

    status = 499
    code = "client_gone"
    source: Source = "downstream"


class Unavailable(GatewayError):
    """Nothing can serve this now: no replica, no key set, no limiter in mode `closed`."""

    status = 503
    code = "unavailable"


class UpstreamError(GatewayError):
    """A replica failed. `retryable`: another replica may be tried while nothing was sent."""

    status = 502
    code = "upstream_error"
    source: Source = "upstream"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        retryable: bool = True,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, code=code, retry_after_s=retry_after_s)
        self.retryable = retryable


class UpstreamAnswered(UpstreamError):
    """A replica said itself, by status or by event, that it failed with `status`."""

    def __init__(self, message: str, *, status: int = 502) -> None:
        overloaded = status == 503
        super().__init__(
            message,
            code="upstream_overloaded" if overloaded else "upstream_error",
            retryable=status >= 500,
            retry_after_s=1.0 if overloaded else None,
        )
        self.status = status
        if status < 500:
            self.kind = BadRequest.kind


class Outrun(GatewayError):
    """A try that another one was faster than. Nobody is told."""


class UpstreamUnreachable(UpstreamError):
    """No connection could be made, or it was refused: nothing was sent."""

    status = 503
    code = "upstream_unreachable"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message, code=code, retry_after_s=1.0)


class UpstreamReset(UpstreamError):
    """The connection was lost. `reused` and `answered` decide whether a fresh one is tried."""

    code = "upstream_reset"

    def __init__(self, message: str, *, reused: bool, answered: bool) -> None:
        super().__init__(message)
        self.reused = reused
        self.answered = answered


class UpstreamProtocolError(UpstreamError):
    """The replica's bytes are not HTTP that we accept."""

    code = "upstream_protocol_error"


class UpstreamTimeout(UpstreamError):
    """`phase`: connect, tls, first_token or idle."""

    status = 504
    code = "upstream_timeout"

    def __init__(self, message: str, *, phase: str, retryable: bool = False) -> None:
        super().__init__(message, code=f"upstream_timeout_{phase}", retryable=retryable)
        self.phase = phase
