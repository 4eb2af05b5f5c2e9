"""The command `profile`: where a client's milliseconds go, at any OpenAI-compatible endpoint."""

from __future__ import annotations

import argparse
import json
import os
import ssl
import sys
from urllib.parse import SplitResult, urlsplit

from core.errors import ConfigError
from proxy.budgets.config import BudgetsConfig
from proxy.serve.profile.client import CannotProfile, Profiler, Question
from proxy.serve.profile.report import render
from proxy.serve.supervise.supervisor import say

EXIT_FAILED = 1
PATH = "/v1/chat/completions"


def profile(arguments: argparse.Namespace) -> int:
    """Exit status 1: the endpoint does not answer as it should. Raises ConfigError."""
    url = _url(arguments.url)
    headers = {"Content-Type": "application/json", "X-Headrace-Timing": "1"}
    if arguments.token_env is not None:
        token = os.environ.get(arguments.token_env)
        if not token:
            raise ConfigError(f"--token-env: the variable {arguments.token_env} is not set")
        headers["Authorization"] = f"Bearer {token}"
    body = {
        "model": arguments.model,
        "stream": True,
        "max_tokens": arguments.tokens,
        "messages": [{"role": "user", "content": arguments.prompt}],
    }
    question = Question(
        url=url,
        headers=headers,
        body=json.dumps(body).encode(),
        tls=_tls(arguments.ca) if url.scheme == "https" else None,
        timeout_s=arguments.timeout,
    )
    try:
        samples = list(Profiler(question).samples(arguments.requests))
    except CannotProfile as error:
        say(str(error))
        return EXIT_FAILED
    sys.stdout.write("\n".join(render(samples, BudgetsConfig())) + "\n")
    return 0


def _url(text: str) -> SplitResult:
    wanted = f"expected a URL such as https://host:8443{PATH}, got `{text}`"
    try:
        url = urlsplit(text)
        usable = url.scheme in ("http", "https") and url.hostname and url.port != 0
    except ValueError as error:  # brackets that do not close, a port of 70000
        raise ConfigError(wanted) from error
    if not usable or not (text.isascii() and text.isprintable()) or " " in text:
        raise ConfigError(wanted)
    return url if url.path.strip("/") else url._replace(path=PATH)


def _tls(authority: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=authority)
    except OSError as error:
        raise ConfigError(f"--ca: cannot use {authority}: {error}") from error
