from __future__ import annotations

import datetime
import ssl
from pathlib import Path

from proxy.config import TlsConfig
from proxy.serve.throwaway import make_certificate
from proxy.tls import server_context


def test_chunks_go_to_openssl_without_a_python_call(tmp_path: Path) -> None:
    files = make_certificate(tmp_path)
    settings = TlsConfig(certificate=str(files.certificate), key=str(files.key))  # type: ignore[arg-type]
    context = server_context(settings, datetime.datetime.now(datetime.UTC))
    made = context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True)
    assert isinstance(made, ssl.SSLObject)
    assert type(made.read).__name__ == type(made.write).__name__ == "builtin_function_or_method"
