"""The composition root: what is made before the fork, and how one worker is put together.

`prepare` builds everything that can fail because of the configuration, so that `headrace check`
finds it and so that workers share it; `serve` joins the packages and runs one worker.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass

from auth.board import Board
from auth.verifier import AnonymousAuthenticator, Authenticator
from backend.pool import Pool
from backend.registry import Registry
from backend.retries import RetryBudget
from backend.upstream_tls import build_contexts
from core.errors import ConfigError
from core.load_board import LoadBoard
from core.metrics import Metrics, MetricsBoard
from core.shared_memory import StateBoard, WorkerState
from core.tasks import spawn
from proxy.access_log import AccessLog
from proxy.admission import Admission
from proxy.catalog import Catalog
from proxy.cors import Cors
from proxy.dispatch import Dispatcher
from proxy.flow import Watchdog
from proxy.listener import Listener
from proxy.observe import Observer
from proxy.pipeline import Pipeline, Services
from proxy.serve.admin import start_admin
from proxy.serve.config import Config, parse_config
from proxy.serve.logs import set_up_logging
from proxy.serve.messages import Drain, Outcome
from proxy.serve.reload import static_changes
from proxy.serve.worker import Reloadable, Stop
from proxy.shedding import Shedding
from proxy.sockets import Sockets, connection_limit
from proxy.tls import ServerTls
from proxy.tls import Staged as StagedTls
from proxy.tls_context import ignore_bad_names
from ratelimit.config import LimitsConfig
from ratelimit.limiter import Limiter
from routing.prompter import Prompter
from routing.router import Router

_log = logging.getLogger("headrace.serve")
_BEAT_S = 1.0
_SETTLE_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Shared:
    """What the processes share, whatever the configuration says: made once, before the first fork,
    and never replaced. `started`: Unix seconds. `secret`: seeds block hashes and the keys of TLS
    tickets unless the configuration does."""

    started: int
    metrics_board: MetricsBoard
    states: StateBoard
    loads: LoadBoard
    key_board: Board
    secret: bytes

    @classmethod
    def make(cls, workers: int, secret: bytes = b"") -> Shared:
        """`secret`: of the gateway whose place is taken."""
        return cls(
            started=int(time.time()),
            metrics_board=MetricsBoard(workers),
            states=StateBoard(workers),
            loads=LoadBoard(workers),
            key_board=Board(),
            secret=secret or os.urandom(32),
        )


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the workers share of one configuration. `generation` counts from 1, by one for each
    `prepare` that had a `previous`."""

    config: Config
    generation: int
    shared: Shared
    tls: ServerTls | None
    tls_staged: StagedTls | None
    upstream_tls: dict[str, ssl.SSLContext]
    prompter: Prompter

    def commit(self) -> None:
        """Show the certificates of this configuration from now on, to be called once in every
        process that takes it over. Not for the first one."""
        if self.tls is not None and self.tls_staged is not None:
            self.tls.commit(self.tls_staged)

    def tls_warnings(self) -> list[str]:
        """What of its certificates and ticket keys needs care."""
        return [] if self.tls is None else self.tls.warnings(self.tls_staged)


def prepare(
    config: Config, shared: Shared | None = None, previous: Prepared | None = None
) -> Prepared:
    """Build what workers forked from now on share. Binds nothing and starts nothing.

    `previous`: what was prepared before. What has not changed is taken from there (tokenizers,
    templates and TLS contexts whose settings and files are the same), and so is `shared`, which
    without either is made. Raises ConfigError, in the words of `headrace check`, also when a
    static setting differs from `previous`; nothing is changed then. The caller puts the result in
    the place of `previous` once every worker has committed.
    """
    if previous is not None:
        shared = previous.shared
        if faults := static_changes(previous.config, config):
            raise ConfigError("\n".join(faults))
    shared = shared or Shared.make(config.workers)
    tls = previous.tls if previous is not None else None
    tls_staged = None
    if config.listen.tls != "off":
        if tls is None:
            tls = ServerTls(config.listen.tls, time.time, secret=shared.secret)
        else:
            tls_staged = tls.stage(config.listen.tls)
    with _at("$.models"):
        prompter = Prompter(config.models, config.routing)
    with _at("$.replicas"):
        upstream_tls = build_contexts(config.replicas)
    prepared = Prepared(
        config=config,
        generation=1 if previous is None else previous.generation + 1,
        shared=shared,
        tls=tls,
        tls_staged=tls_staged,
        upstream_tls=upstream_tls,
        prompter=prompter,
    )
    _build_all(prepared)
    return prepared


def _build_all(prepared: Prepared) -> None:
    """Build each part once for its errors: secrets that are missing, files that are broken."""
    metrics = Metrics.private()
    config = prepared.config
    with _at("$.auth"):
        _authenticator(prepared, metrics)
    with _at("$.replicas"):
        Pool(config.replicas, config.upstream, metrics, time.monotonic, prepared.upstream_tls)
    with _at("$.limits"):
        Limiter(config.limits or LimitsConfig(), metrics)


@contextmanager
def _at(path: str) -> Iterator[None]:
    """Say which section a fault belongs to, where the fault does not say so itself."""
    try:
        yield
    except ConfigError as error:
        lines = str(error).splitlines()
        raise ConfigError(
            "\n".join(line if line.startswith("$") else f"{path}: {line}" for line in lines)
        ) from error


def _authenticator(prepared: Prepared, metrics: Metrics) -> Authenticator | AnonymousAuthenticator:
    auth = prepared.config.auth
    if auth == "none":
        return AnonymousAuthenticator()
    return Authenticator(auth, metrics, prepared.shared.key_board)


class Worker:
    """The parts of one worker, joined."""

    def __init__(self, prepared: Prepared, index: int) -> None:
        config = prepared.config
        metrics = prepared.shared.metrics_board.for_worker(index)
        clock = time.monotonic
        self._prepared = prepared
        self._staged: Prepared | None = None
        self._outcome = Outcome()
        self.metrics = metrics
        if prepared.tls is not None:
            prepared.tls.use_metrics(metrics)
        self._state = prepared.shared.states.for_worker(index)
        self._watchdog = Watchdog()
        prepared.prompter.use_metrics(metrics)
        self._authenticator = _authenticator(prepared, metrics)
        self._limiter = Limiter(config.limits or LimitsConfig(), metrics)
        self._registry = Registry(
            config.replicas, config.upstream, metrics, clock, contexts=prepared.upstream_tls
        )
        self._pool = Pool(config.replicas, config.upstream, metrics, clock, prepared.upstream_tls)
        self._registry.hooks.on_refused = self._pool.refused
        self._registry.hooks.activity = self._pool.activity
        self._log = AccessLog(config.log.access, metrics)
        observer = Observer(log=self._log, metrics=metrics, clock=clock)
        retries = config.upstream.retries
        self._router = Router(config.routing, self._registry, metrics, clock)
        dispatcher = Dispatcher(
            router=self._router,
            pool=self._pool,
            health=self._registry,
            budget=RetryBudget(retries.budget_ratio, retries.budget_floor),
            max_tries=retries.max_tries,
            timeouts=config.upstream.timeouts,
            watchdog=self._watchdog,
            clock=clock,
            metrics=metrics,
        )
        admission = Admission(config.listen.limits, metrics)
        secret = config.routing.secret
        pipeline = Pipeline(
            Services(
                authenticator=self._authenticator,
                catalog=Catalog(config.models, prepared.shared.started),
                prompter=prepared.prompter,
                limiter=self._limiter,
                dispatcher=dispatcher,
                observer=observer,
                admission=admission,
                cors=Cors(config.listen.cors.origins if config.listen.cors else ()),
                health_path=config.listen.health_path,
                cache_secret=secret.reveal() if secret is not None else "",
                clock=clock,
            )
        )
        self._listener = Listener(
            handler=pipeline.handle,
            on_refused=observer.refused,
            watchdog=self._watchdog,
            settings=config.listen,
            admission=admission,
            board=prepared.shared.loads,
            index=index,
            most_connections=connection_limit(),
            metrics=metrics,
            tls=prepared.tls,
        )
        self._shedding = Shedding(
            config.listen.overload,
            listener=self._listener,
            admission=admission,
            board=prepared.shared.loads,
            index=index,
            watchdog=self._watchdog,
            metrics=metrics,
        )

    def __repr__(self) -> str:
        return f"<Worker {self._state!r} {self._listener!r}>"

    async def run(
        self, sockets: Sockets, stop: Stop, ready: Callable[[], None], settle_s: float = 0.0
    ) -> None:
        """Serve until `stop` is set and the exchanges are over. For up to `settle_s` seconds
        connections are not accepted before they can be served."""
        async with AsyncExitStack() as stack:
            stack.callback(self._log.close)
            stack.callback(self._prepared.prompter.close)
            self._watchdog.start()
            stack.callback(self._watchdog.close)
            for part in (self._authenticator, self._limiter, self._registry, self._pool):
                await part.start()
                stack.push_async_callback(part.close)
            await self._settle(settle_s)
            admin = None
            if sockets.admin is not None:
                admin = await start_admin(
                    sockets.admin.socket,
                    metrics=self._prepared.shared.metrics_board,
                    reasons=self._report,
                    states=self._prepared.shared.states,
                    outcome=lambda: self._outcome,
                )
                stack.push_async_callback(admin.close)
            context = self._prepared.tls.context if self._prepared.tls is not None else None
            for bound in sockets.listen:
                await self._listener.serve(bound.socket, context)
            beat = spawn(self._beat(), "state")
            stack.callback(beat.cancel)
            ready()
            drain = await stop.wait()
            beat.cancel()
            self._state.publish(WorkerState.DRAINING, os.getpid(), time.monotonic())
            if drain.handed_over and admin is not None:
                await admin.close()  # the successor answers for itself
            await self._end(drain, stop)

    async def _settle(self, most_s: float) -> None:
        for _ in range(int(most_s / _SETTLE_LOOK_S)):
            if not self._report():
                break
            await asyncio.sleep(_SETTLE_LOOK_S)

    async def _end(self, drain: Drain, stop: Stop) -> None:
        """Let the news spread, then accept no more and let exchanges end."""
        config = self._prepared.config
        self._listener.draining = True  # from now on answers end their connections
        if drain.delay:
            await stop.pause(config.propagation_s)
        if not await stop.bear(self._listener.drain(config.drain_s)):
            await self._listener.drain(0.0)

    # --- a new configuration, in three steps, so that all workers take it or none

    async def stage(self, text: bytes, path: str) -> None:
        """Make a new configuration ready to be used: `text`, as it was read from `path`.

        Parses and validates it, builds everything that can fail, starts what needs time (key sets,
        probes) and waits for that a while. No effect on requests. Raises ConfigError, in the words
        of `headrace check`, and is then as before. What was staged earlier is dropped.
        """
        config = parse_config(text, path)
        self._staged = prepare(config, previous=self._prepared)

    def commit(self) -> None:
        """Use what was staged: for every exchange that begins from now on, at once. Those in
        flight end with what they began with. Raises nothing. Without anything staged, nothing
        happens."""
        if self._staged is not None:
            self._prepared, self._staged = self._staged, None
            self._prepared.commit()

    def drop(self) -> None:
        """Forget what was staged, if anything: another worker could not."""
        self._staged = None

    def told(self, outcome: Outcome) -> None:
        """How the last reload went, for the admin page."""
        self._outcome = outcome

    def _report(self) -> list[str]:
        """Why this worker cannot serve. Publishes its state, so that any worker can answer for
        all."""
        parts = (self._authenticator, self._limiter, self._registry)
        reasons = [reason for part in parts if (reason := part.ready()) is not None]
        if not self._listener.draining:
            state = WorkerState.NOT_READY if reasons else WorkerState.READY
            self._state.publish(state, os.getpid(), time.monotonic())
        return reasons

    async def _beat(self) -> None:
        while True:
            self._report()
            self._router.publish()
            await asyncio.sleep(_BEAT_S)


async def serve(
    prepared: Prepared,
    sockets: Sockets,
    index: int,
    stop: Stop,
    ready: Callable[[Reloadable], None],
    *,
    settle_s: float = 0.0,
) -> None:
    """One worker, from its fork to its end."""
    worker = Worker(prepared, index)
    lost = worker.metrics.counter(
        "headrace_log_dropped_total", "Lines of the log on stderr that were lost as it was full"
    )
    sys.unraisablehook = ignore_bad_names
    handler = set_up_logging(prepared.config.log.level, lost.inc)
    try:
        await worker.run(sockets, stop, lambda: ready(worker), settle_s)
    finally:
        handler.close()
