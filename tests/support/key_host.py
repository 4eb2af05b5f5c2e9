"""An issuer's key set over HTTPS, in the test's own loop."""

from __future__ import annotations

import ssl

from aiohttp import web
from running import Identity


class KeyHost:
    """Serves the identity's key set; `fetches` so far."""

    def __init__(self, identity: Identity) -> None:
        self.fetches = 0
        self._identity = identity
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self, port: int = 0) -> None:
        application = web.Application()
        application.router.add_get("/jwks.json", self._serve)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._identity.files.certificate, self._identity.files.key)
        await web.TCPSite(self._runner, "127.0.0.1", port, ssl_context=context).start()
        self.url = f"https://127.0.0.1:{self._runner.addresses[0][1]}/jwks.json"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve(self, _: web.Request) -> web.Response:
        self.fetches += 1
        return web.Response(body=self._identity.issuer.key_set(), content_type="application/json")
