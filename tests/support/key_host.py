"""An issuer's key set over HTTPS, in the test's own loop."""

from __future__ import annotations

import ssl

from aiohttp import web
from listening import Site
from running import Identity


class KeyHost:
    """Serves the identity's key set; `fetches` so far."""

    def __init__(self, identity: Identity) -> None:
        self.fetches = 0
        self._identity = identity
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(identity.files.certificate, identity.files.key)
        self._site = Site(web.get("/jwks.json", self._serve), tls=context)
        self.stop = self._site.stop
        self.url = ""

    async def start(self, port: int = 0) -> None:
        self._site.port = port
        await self._site.start()
        self.url = f"https://127.0.0.1:{self._site.port}/jwks.json"

    async def _serve(self, _: web.Request) -> web.Response:
        self.fetches += 1
        return web.Response(body=self._identity.issuer.key_set(), content_type="application/json")
