"""The shape of the house: what a module may be, checked on the source itself."""

from __future__ import annotations

import ast
import functools
import re
import tokenize
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from proxy.serve.config import load_config

ROOT = Path(__file__).parents[2]
PRODUCT = ("core", "auth", "ratelimit", "routing", "backend", "proxy")
PACKAGES = (*PRODUCT, "loadtest")
LONGEST = 350

# A module either decides (plain functions, `now` is an argument) or performs. These perform;
# every other one must do without the libraries below. Before adding to the list, ask whether the
# part that decides can be a module of its own.
PERFORMS = {
    "core.shared_lock",
    "core.tasks",
    "auth.authenticator",
    "auth.fetcher",
    "auth.revocation_watch",
    "auth.source",
    "auth.verifier",
    "backend.asker",
    "backend.dial",
    "backend.dialer",
    "backend.http1_protocol",
    "backend.http2_protocol",
    "backend.kv.follower",
    "backend.kv.sockets",
    "backend.kv.subscriber",
    "backend.monitor",
    "backend.pool",
    "backend.registry",
    "backend.target",
    "backend.token_probes",
    "routing.waiting_room",
    "proxy.listen.accept",
    "proxy.access_log",
    "proxy.listen.arrivals",
    "proxy.flow",
    "proxy.hedge",
    "proxy.http1.connection",
    "proxy.http2.connection",
    "proxy.line_sink",
    "proxy.listen.listener",
    "proxy.listen.negotiated",
    "proxy.pipeline",
    "proxy.prefills",
    "proxy.relay",
    "proxy.overload.resources",
    "proxy.listen.sockets",
    "proxy.tls.ticket_ring",
    "proxy.tracing.tracer",
    "proxy.turns",
    "proxy.serve.admin",
    "proxy.serve.admin_client",
    "proxy.serve.app",
    "proxy.serve.aside",
    "proxy.serve.budget",
    "proxy.serve.page.feed",
    "proxy.serve.profile.client",
    "proxy.serve.supervise.channel",
    "proxy.serve.supervise.children",
    "proxy.serve.commands",
    "proxy.serve.core_link",
    "proxy.serve.core_process",
    "proxy.serve.supervise.control",
    "proxy.serve.demo",
    "proxy.serve.demo_parts",
    "proxy.serve.identities",
    "proxy.serve.finder",
    "proxy.serve.floors",
    "proxy.serve.host_memory",
    "proxy.serve.host_sharing",
    "proxy.serve.inspection",
    "proxy.serve.kv_index",
    "proxy.serve.logs",
    "proxy.serve.prepared",
    "proxy.serve.snapshots",
    "proxy.serve.supervise.replace",
    "proxy.serve.simulate",
    "proxy.serve.supervise.service_manager",
    "proxy.serve.supervise.successor",
    "proxy.serve.supervise.supervisor",
    "proxy.serve.throwaway",
    "proxy.serve.supervise.worker",
    "ratelimit.leases",
    "ratelimit.limiter",
    "ratelimit.redis_channel",
    "ratelimit.redis_cluster",
    "ratelimit.redis_inspect",
    "ratelimit.redis_link",
    "ratelimit.redis_names",
    "ratelimit.redis_store",
    "ratelimit.redis_wire",
    "ratelimit.shared_store",
    "routing.prompter",
}
PERFORMING_LIBRARIES = {
    *("asyncio", "time", "socket", "threading", "concurrent", "multiprocessing", "subprocess"),
    *("select", "selectors", "signal", "aiohttp", "uvloop", "redis", "httpx", "requests"),
    *("ctypes", "zmq"),
}


def modules(*packages: str) -> list[Path]:
    return sorted(path for name in packages for path in (ROOT / name).rglob("*.py"))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree(path)))


@functools.cache
def imports(path: Path) -> set[str]:
    """Top-level names of what is imported at run time."""
    return set(_imports(tree(path)))


def _imports(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            yield child.module.partition(".")[0]
        else:
            yield from _imports(child)


@functools.cache
def comments(path: Path) -> dict[int, str]:
    with tokenize.open(path) as file:
        tokens = tokenize.generate_tokens(file.readline)
        return {t.start[0]: t.string for t in tokens if t.type == tokenize.COMMENT}


def at(path: Path, node: ast.expr | ast.stmt | ast.excepthandler) -> str:
    return f"{path.relative_to(ROOT)}:{node.lineno}"


def test_modules_that_decide_import_nothing_that_performs() -> None:
    performing = {
        name_of(path) for path in modules(*PRODUCT) if PERFORMING_LIBRARIES & imports(path)
    }
    assert performing - PERFORMS == set(), "these perform and are not in the list"
    assert PERFORMS - performing == set(), "these do not perform (any more): drop them"


def test_background_tasks_start_in_one_place() -> None:
    found = [
        at(path, node)
        for path in modules(*PRODUCT)
        if name_of(path) != "core.tasks"
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and node.attr in ("create_task", "ensure_future")
    ]
    assert found == []


def test_catching_everything_needs_a_reason() -> None:
    found = []
    for path in modules(*PACKAGES):
        for node in nodes(path):
            if isinstance(node, ast.ExceptHandler) and _is_broad(node) and not _reraises(node):
                said = comments(path)
                around = said.get(node.lineno, "") + said.get(node.lineno + 1, "")
                if not re.search(r"[a-z]{3,} [a-z]+", re.sub(r"# noqa:? ?[A-Z0-9]*", "", around)):
                    found.append(at(path, node))
    assert found == []


def _is_broad(handler: ast.ExceptHandler) -> bool:
    caught = ast.unparse(handler.type) if handler.type is not None else "BaseException"
    return bool({"Exception", "BaseException"} & set(re.findall(r"\w+", caught)))


def _reraises(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def test_imports_are_at_the_top() -> None:
    found = [
        at(path, inner)
        for path in modules(*PACKAGES)
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Import | ast.ImportFrom | ast.Global)
    ]
    assert found == []


def test_files_are_short() -> None:
    lengths = {name_of(p): p.read_text(encoding="utf-8").count("\n") for p in modules(*PACKAGES)}
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        name_of(p) for p in modules(*PACKAGES) if tree(p).body and not ast.get_docstring(tree(p))
    ]
    assert silent == []


def test_no_module_is_named_after_a_library_it_uses() -> None:
    assert [name_of(p) for p in modules(*PACKAGES) if p.stem in imports(p)] == []


def test_our_top_level_names_are_ours_alone() -> None:
    owners = metadata.packages_distributions()
    foreign = {name: set(owners.get(name, ())) - {"headrace"} for name in PACKAGES}
    assert foreign == {name: set() for name in PACKAGES}
    assert set(PACKAGES) <= set(owners)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.name)
def test_every_example_configuration_loads(path: Path) -> None:
    assert load_config(str(path)).models


def test_tests_mirror_modules() -> None:
    """`tests/a/test_c.py` tests a module `c` of `a`; what needs sockets is in `tests/wire`, what
    compares with others in `tests/oracles`."""
    lost = set()
    for package in PACKAGES:
        known = {path.stem for path in modules(package)} | {p.parent.name for p in modules(package)}
        for test in (ROOT / "tests" / package).rglob("test_*.py"):
            if test.stem.removeprefix("test_") not in known:
                lost.add(str(test.relative_to(ROOT)))
    assert lost == set()


def test_tests_of_modules_need_nothing_beside_the_project() -> None:
    """Their result is the same everywhere, and they are fast."""
    looking = [
        str(test.relative_to(ROOT))
        for package in PACKAGES
        for test in (ROOT / "tests" / package).rglob("*.py")
        if re.search(r"^from beside\b|[\"/]shared[\"/]", test.read_text(encoding="utf-8"), re.M)
    ]
    assert looking == []
