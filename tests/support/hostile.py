"""Requests that two servers may read differently, each with the status that refuses it.

`REFUSED` maps a name to the raw bytes and the expected status; `AMBIGUOUS_BODIES` are chunked
bodies that must not be taken for complete ones. `SMUGGLED` is what an attacker hides behind them.
"""

from __future__ import annotations

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"


def request(*fields: bytes, line: bytes = b"POST /v1/x HTTP/1.1", body: bytes = b"") -> bytes:
    """A request with `Host: a`, the given header lines and a body."""
    lines = [line, b"Host: a", *fields]
    return b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


def chunked(*fields: bytes, body: bytes, line: bytes = b"POST /v1/x HTTP/1.1") -> bytes:
    return request(b"Transfer-Encoding: chunked", *fields, line=line, body=body)


_LINES: dict[str, tuple[bytes, int]] = {
    "double space before the target": (b"GET  / HTTP/1.1", 400),
    "double space before the version": (b"GET /  HTTP/1.1", 400),
    "tab as separator": (b"GET\t/ HTTP/1.1", 400),
    "leading space": (b" GET / HTTP/1.1", 400),
    "trailing space": (b"GET / HTTP/1.1 ", 400),
    "HTTP/0.9 without version": (b"GET /", 400),
    "HTTP/0.9": (b"GET / HTTP/0.9", 400),
    "HTTP/2.0": (b"GET / HTTP/2.0", 400),
    "HTTP/1.2": (b"GET / HTTP/1.2", 400),
    "HTTP/1.9": (b"GET / HTTP/1.9", 400),
    "HTTP/11.1": (b"GET / HTTP/11.1", 400),
    "HTTP/1.10": (b"GET / HTTP/1.10", 400),
    "HTTP/01.1": (b"GET / HTTP/01.1", 400),
    "lower-case http": (b"GET / http/1.1", 400),
    "RTSP": (b"GET / RTSP/1.0", 400),
    "ICE": (b"GET / ICE/1.0", 400),
    "lower-case method": (b"get / HTTP/1.1", 400),
    "method with a colon": (b"GE:T / HTTP/1.1", 400),
    "method of RTSP": (b"DESCRIBE / HTTP/1.1", 405),
    "PUT": (b"PUT / HTTP/1.1", 405),
    "TRACE": (b"TRACE / HTTP/1.1", 405),
    "M-SEARCH": (b"M-SEARCH / HTTP/1.1", 405),
    "PRI": (b"PRI / HTTP/1.1", 405),
    "preface of HTTP/2": (b"PRI * HTTP/2.0", 400),
    "CONNECT to an authority": (b"CONNECT a:80 HTTP/1.1", 400),
    "CONNECT to a path": (b"CONNECT / HTTP/1.1", 405),
    "absolute form": (b"GET http://a/ HTTP/1.1", 400),
    "absolute form of another host": (b"GET http://b/ HTTP/1.1", 400),
    "asterisk form": (b"OPTIONS * HTTP/1.1", 400),
    "target without a slash": (b"GET v1 HTTP/1.1", 400),
    "fragment": (b"GET /#a HTTP/1.1", 400),
    "backslash": (b"GET /a\\b HTTP/1.1", 400),
    "byte above ASCII in the target": (b"GET /\xc3\xa9 HTTP/1.1", 400),
    "NUL in the target": (b"GET /\x00 HTTP/1.1", 400),
    "DEL in the target": (b"GET /\x7f HTTP/1.1", 400),
    "dot segment": (b"GET /a/./b HTTP/1.1", 400),
    "two dots": (b"GET /a/../b HTTP/1.1", 400),
    "two dots at the end": (b"GET /a/.. HTTP/1.1", 400),
    "two dots before the query": (b"GET /a/..?b HTTP/1.1", 400),
    "encoded dots": (b"GET /a/%2e%2E/b HTTP/1.1", 400),
    "half encoded dots": (b"GET /a/.%2e/b HTTP/1.1", 400),
    "encoded slash": (b"GET /a%2Fb HTTP/1.1", 400),
    "encoded backslash": (b"GET /a%5cb HTTP/1.1", 400),
    "encoded NUL": (b"GET /a%00 HTTP/1.1", 400),
    "double slash": (b"GET //a HTTP/1.1", 400),
}

_FIELDS: dict[str, tuple[tuple[bytes, ...], int]] = {
    "two Hosts": ((b"Host: b",), 400),
    "two equal Hosts": ((b"Host: a",), 400),
    "TE gzip, chunked": ((b"Transfer-Encoding: gzip, chunked",), 400),
    "TE chunked, identity": ((b"Transfer-Encoding: chunked, identity",), 400),
    "TE identity": ((b"Transfer-Encoding: identity",), 400),
    "TE xchunked": ((b"Transfer-Encoding: xchunked",), 400),
    "TE chunk": ((b"Transfer-Encoding: chunk",), 400),
    "TE quoted": ((b'Transfer-Encoding: "chunked"',), 400),
    "TE empty": ((b"Transfer-Encoding:",), 400),
    "TE with a parameter": ((b"Transfer-Encoding: chunked;q=1",), 400),
    "TE with a trailing tab": ((b"Transfer-Encoding: chunked\t",), 400),
    "TE with a trailing space": ((b"Transfer-Encoding: chunked ",), 400),
    "TE behind a vertical tab": ((b"Transfer-Encoding:\x0bchunked",), 400),
    "TE behind a no-break space": ((b"Transfer-Encoding:\xa0chunked",), 400),
    "TE twice": ((b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"), 400),
    "TE twice, different": ((b"Transfer-Encoding: cow", b"Transfer-Encoding: chunked"), 400),
    "CL and TE": ((b"Content-Length: 3", b"Transfer-Encoding: chunked"), 400),
    "TE and CL": ((b"Transfer-Encoding: chunked", b"Content-Length: 3"), 400),
    "CL twice": ((b"Content-Length: 3", b"Content-Length: 4"), 400),
    "CL twice, equal": ((b"Content-Length: 3", b"Content-Length: 3"), 400),
    "CL list": ((b"Content-Length: 3, 3",), 400),
    "CL +3": ((b"Content-Length: +3",), 400),
    "CL -3": ((b"Content-Length: -3",), 400),
    "CL 0x3": ((b"Content-Length: 0x3",), 400),
    "CL 1_0": ((b"Content-Length: 1_0",), 400),
    "CL 3.0": ((b"Content-Length: 3.0",), 400),
    "CL empty": ((b"Content-Length:",), 400),
    "CL of 20 digits": ((b"Content-Length: 00000000000000000003",), 400),
    "CL of 30 digits": ((b"Content-Length: " + b"9" * 30,), 400),
    "CL in Arabic digits": (("Content-Length: \u0663".encode(),), 400),
    "CL with a trailing space": ((b"Content-Length: 3 ",), 400),
    "CL behind a form feed": ((b"Content-Length:\x0c3",), 400),
    "space before the colon": ((b"Content-Length : 3",), 400),
    "tab before the colon": ((b"Transfer-Encoding\t: chunked",), 400),
    "underscore": ((b"Content_Length: 3",), 400),
    "underscore in any name": ((b"X_Tenant: b",), 400),
    "name with a space": ((b"X Y: b",), 400),
    "name above ASCII": ((b"X\xe9: b",), 400),
    "empty name": ((b": b",), 400),
    "no colon": ((b"abc",), 400),
    "folded line": ((b"X: a", b" b"), 400),
    "folded line with a tab": ((b"X: a", b"\tTransfer-Encoding: chunked"), 400),
    "NUL in a value": ((b"X: a\x00b",), 400),
    "vertical tab in a value": ((b"X: a\x0bb",), 400),
    "escape in a value": ((b"X: a\x1bb",), 400),
    "DEL in a value": ((b"X: a\x7fb",), 400),
    "bare CR in a value": ((b"X: a\rTransfer-Encoding: chunked",), 400),
    "bare LF in a value": ((b"X: a\nTransfer-Encoding: chunked",), 400),
    "CR CR LF": ((b"X: a\r",), 400),
    "Content-Encoding": ((b"Content-Encoding: gzip",), 415),
    "Content-Encoding twice": ((b"Content-Encoding: identity",) * 2, 400),
    "Expect of something else": ((b"Expect: 200-ok",), 417),
    "Authorization twice": ((b"Authorization: Bearer a", b"Authorization: Bearer b"), 400),
    "Upgrade of a chunked request": (
        (b"Connection: upgrade", b"Upgrade: h2c", b"Transfer-Encoding: chunked"),
        400,
    ),
}

_HOSTS = (
    b"",
    b"a/b",
    b"u@a",
    b"a b",
    b"a:b",
    b"a:123456",
    b"a,b",
    b"a\\b",
    b"a?b",
    b"a#b",
    b"[::1",
)

_RAW: dict[str, tuple[bytes, int]] = {
    "no Host": (b"POST /v1/x HTTP/1.1\r\nX: a\r\n\r\n", 400),
    "TE on HTTP/1.0": (chunked(line=b"POST /v1/x HTTP/1.0", body=b"0\r\n\r\n"), 400),
    "bare LF everywhere": (b"GET / HTTP/1.1\nHost: a\n\n", 400),
    "bare LF after the request line": (b"GET / HTTP/1.1\nHost: a\r\n\r\n", 400),
    "bare LF at the end": (b"GET / HTTP/1.1\r\nHost: a\n\r\n", 400),
    "bare CR after the request line": (b"GET / HTTP/1.1\rHost: a\r\n\r\n", 400),
    "space first": (b"GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400),
    "empty line of LF first": (b"\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "TLS to a plain port": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
}

REFUSED: dict[str, tuple[bytes, int]] = {
    **{name: (request(line=line), status) for name, (line, status) in _LINES.items()},
    **{
        name: (request(*fields, body=b"0\r\n\r\n"), status)
        for name, (fields, status) in _FIELDS.items()
    },
    **{
        f"Host {host!r}": (b"GET / HTTP/1.1\r\nHost: " + host + b"\r\n\r\n", 400) for host in _HOSTS
    },
    **_RAW,
}

AMBIGUOUS_BODIES: dict[str, bytes] = {
    "size with a sign": b"+1\r\na\r\n0\r\n\r\n",
    "negative size": b"-1\r\na\r\n0\r\n\r\n",
    "size with 0x": b"0x1\r\na\r\n0\r\n\r\n",
    "size with an underscore": b"0_1\r\na\r\n0\r\n\r\n",
    "space before the size": b" 1\r\na\r\n0\r\n\r\n",
    "space behind the size": b"1 \r\na\r\n0\r\n\r\n",
    "no size": b"\r\na\r\n0\r\n\r\n",
    "extension without size": b";a\r\na\r\n0\r\n\r\n",
    "size of 17 digits": b"fffffffffffffffff\r\na\r\n0\r\n\r\n",
    "LF behind the size": b"1\na\r\n0\r\n\r\n",
    "LF behind the data": b"1\r\na\n0\r\n\r\n",
    "LF in an extension": b"1;a\nb\r\na\r\n0\r\n\r\n",
    "CR in an extension": b"1;a\rb\r\na\r\n0\r\n\r\n",
    "NUL in an extension": b"1;a\x00\r\na\r\n0\r\n\r\n",
    "quoted line end in an extension": b'1;a="\r\n"\r\na\r\n0\r\n\r\n',
    "CR CR LF": b"1\r\r\na\r\n0\r\n\r\n",
    "no CRLF behind the data": b"1\r\na0\r\n\r\n",
    "more data than the size": b"1\r\nab\r\n0\r\n\r\n",
    "LF at the end": b"1\r\na\r\n0\r\n\n",
    "CR and no LF at the end": b"1\r\na\r\n0\r\n\rX",
    "Content-Length as a trailer": b"1\r\na\r\n0\r\nContent-Length: 5\r\n\r\n",
    "Transfer-Encoding as a trailer": b"1\r\na\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "folded trailer": b"1\r\na\r\n0\r\nX: a\r\n b\r\n\r\n",
    "trailer with LF": b"1\r\na\r\n0\r\nX: a\n\r\n",
    "trailer with a space before the colon": b"1\r\na\r\n0\r\nX : a\r\n\r\n",
}
