"""The live page in Chromium, before a real gateway: at rest, used, in trouble, and attacked."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from client import ask, chat
from ports import free_port
from running import InProcess, base_config, eventually

from loadtest.replica import FakeReplica
from proxy.phases import PHASES

playwright = pytest.importorskip("playwright.async_api", reason="no Playwright: `make test-page`")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
if CHROMIUM is None:
    pytest.skip("no Chromium: install the package `chromium`", allow_module_level=True)

pytestmark = pytest.mark.asyncio(loop_scope="module")
HOSTILE = """"'><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>&lt;b&gt;"""
ODD = "<script>window.hacked=1</script>"
"""As an id of a replica may be."""
PHONE = {"width": 390, "height": 844}


class Desk:
    """A gateway with two replicas, and a browser to look at it. `complaints`: of its console."""

    def __init__(self, gateway: InProcess, replicas: list[FakeReplica], browser: Any) -> None:
        self.gateway = gateway
        self.replicas = replicas
        self._browser = browser
        self.complaints: list[str] = []

    async def open(self, *, live: bool = True, **options: Any) -> Any:
        """A new page. Not `live`: its feed says nothing, for the test to do so."""
        context = await self._browser.new_context(**options)
        page = await context.new_page()
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        if not live:
            await page.clock.install()
            await page.route("**/live", lambda route: None)  # never answered
        await page.goto(f"http://127.0.0.1:{self.gateway.admin_port}/")
        return page

    async def ask(self, **fields: Any) -> None:
        await ask(self.gateway.port, chat("where does a river begin?", **fields))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    async with FakeReplica() as one, FakeReplica() as two:
        document = base_config(
            [one.url, two.url],
            admin={"address": f"127.0.0.1:{free_port()}"},
            budgets={"default": "chat"},
        )
        document["replicas"][1]["id"] = ODD
        async with (
            InProcess(document, tmp_path_factory.mktemp("gateway")) as gateway,
            playwright.async_playwright() as driver,
        ):
            browser = await driver.chromium.launch(
                executable_path=CHROMIUM, args=["--no-sandbox", "--disable-background-networking"]
            )
            yield Desk(gateway, [one, two], browser)
            await browser.close()


@pytest.fixture(autouse=True)
def no_complaints(desk: Desk) -> Iterator[None]:
    desk.complaints.clear()
    yield
    assert desk.complaints == []


async def until(page: Any, expression: str) -> None:
    """Playwright's own way of waiting evaluates a string, which the page's policy forbids."""
    await eventually(lambda: page.evaluate(expression))


async def feed_of(desk: Desk) -> dict[str, Any]:
    """One document of the feed."""
    page = await desk.open()
    text = await page.evaluate(
        """() => new Promise((done) => {
             const feed = new EventSource("live");
             feed.onmessage = (message) => { feed.close(); done(message.data); };
           })"""
    )
    await page.close()
    document: dict[str, Any] = json.loads(text)
    return document


async def test_at_rest_it_says_that_all_is_well(desk: Desk) -> None:
    page = await desk.open()
    await page.wait_for_selector("#state.good")
    assert "ready, 1 worker" in await page.inner_text("#state")
    rows = await page.locator("#replicas tbody tr").all_inner_texts()
    assert [row.split("\t")[:2] for row in rows] == [[ODD, "well"], ["r0", "well"]]
    assert await page.inner_text("#recent tbody") == "none yet"
    await page.close()


async def test_what_happens_is_shown_and_the_keyboard_opens_and_shuts_a_waterfall(
    desk: Desk,
) -> None:
    page = await desk.open()
    await desk.ask(max_tokens=12)
    await desk.ask(model="none")
    await until(page, "document.querySelectorAll('#recent button').length >= 2")
    await until(page, "document.querySelectorAll('#itl polyline').length == 2")
    assert "model_not_found" in await page.inner_text("#failures tbody")
    assert "PASS" in await page.inner_text("#tiers tbody")
    await page.locator("#only-failures").focus()
    await page.keyboard.press("Tab")  # to the newest
    await page.keyboard.press("Tab")
    chosen = await page.evaluate("document.activeElement.dataset.id")
    await page.keyboard.press("Enter")
    await page.wait_for_selector("#waterfall:focus")
    words = await page.inner_text("#waterfall")
    assert chosen in words
    shown = [row.split()[0] for row in await page.locator("#waterfall .phase").all_inner_texts()]
    assert shown == [phase for phase in PHASES if phase in shown]
    assert {"auth", "tokenize", "first_token", "relay"} <= set(shown)
    # The table is made anew each second; who has focus in it keeps it.
    await page.keyboard.press("Escape")
    assert await page.locator("#waterfall").is_hidden()
    assert await page.evaluate("document.activeElement.dataset.id") == chosen
    await page.evaluate("document.querySelector('#recent tbody tr').dataset.old = 1")
    await until(page, "!document.querySelector('#recent tbody tr').dataset.old")
    assert await page.evaluate("document.activeElement.dataset.id") == chosen
    await page.locator("#only-failures").check()
    assert "200 ok" not in await page.inner_text("#recent tbody")
    await page.close()


async def test_names_and_messages_are_text_whatever_they_are(desk: Desk) -> None:
    await desk.ask(max_tokens=2)

    def hostile(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: hostile(one) for key, one in value.items()}
        if isinstance(value, list):
            return [hostile(one) for one in value]
        return HOSTILE if isinstance(value, str) else value

    document = await feed_of(desk)
    tier = {"tier": "", "part": "", "allowed_ms": 1, "p50": 1, "p95": 1, "p99": 1, "late": 1}
    document |= {
        "ready": False,
        "reasons": [""],
        "tiers": [tier],
        "slower": [{"phase": "", "usual_ms": 1, "now_ms": 2}],
        "limits": [{"rule": "", "unit": "", "asked": 1, "refused": 1}],
        "failures": [{"phase": "", "reason": "", "count": 1}],
    }
    page = await desk.open(live=False)
    await page.evaluate("(view) => show(view)", hostile(document))
    await page.locator("#recent button").first.click()
    text = await page.inner_text("body")
    assert text.count(HOSTILE) >= 9
    assert (
        await page.evaluate("document.querySelectorAll('main script, main img, body b b').length")
        == 0
    )
    assert await page.evaluate("window.hacked === undefined")
    await page.close()


async def test_a_feed_that_stalls_is_said_and_begun_anew(desk: Desk) -> None:
    page = await desk.open(live=False)
    await page.evaluate("(view) => show(view)", await feed_of(desk))
    assert "ready" in await page.inner_text("#state")
    await page.clock.fast_forward(6_000)
    await page.wait_for_selector("body.old #state.bad")
    assert "no news for" in await page.inner_text("#state")
    await page.unroute("**/live")
    await page.clock.run_for(12_000)  # it gives that connection up
    await page.wait_for_selector("body:not(.old) #state.good")
    await page.close()


async def test_a_page_that_is_open_for_long_does_not_grow(desk: Desk) -> None:
    page = await desk.open(live=False)
    document = await feed_of(desk)
    document["traffic"]["ttft_ms"] = {"p50": 10.0, "p95": 20.0, "p99": 30.0}
    many = "([view, times]) => { for (let n = 0; n < times; n++) show(view); }"
    size = "document.querySelectorAll('*').length"
    await page.evaluate(many, [document, 200])
    before = await page.evaluate(size)
    await page.evaluate(many, [document, 1000])
    assert await page.evaluate(size) == before
    points = await page.get_attribute("#ttft polyline", "points")
    assert len(points.split()) == 120
    await page.close()


async def test_it_fits_a_phone_and_is_dark_where_that_is_wished(desk: Desk) -> None:
    await desk.ask(max_tokens=2)
    phone = await desk.open(viewport=PHONE, color_scheme="dark")
    await phone.locator("#recent button").first.click()
    assert await phone.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    dark = await phone.evaluate("getComputedStyle(document.body).backgroundColor")
    light = await desk.open(color_scheme="light")
    assert dark == "rgb(13, 17, 23)"
    assert await light.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    await phone.close()
    await light.close()


async def test_a_dead_replica_is_named(desk: Desk) -> None:
    """The last one: it stays dead."""
    page = await desk.open()
    await page.wait_for_selector("#state.good")
    await desk.replicas[1].__aexit__(None, None, None)
    for number in range(8):
        await desk.ask(max_tokens=2, user=str(number))
    await until(
        page,
        "[...document.querySelectorAll('#replicas .bad')].some((cell) => cell.innerText == 'away')",
    )
    rows = await page.locator("#replicas tbody tr").all_inner_texts()
    assert [row.split("\t")[:2] for row in rows] == [[ODD, "away"], ["r0", "well"]]
    await page.close()


async def test_a_page_that_is_left_behind_says_so(tmp_path: Path) -> None:
    async with FakeReplica() as replica, playwright.async_playwright() as driver:
        document = base_config([replica.url], admin={"address": f"127.0.0.1:{free_port()}"})
        browser = await driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-background-networking"]
        )
        page = await browser.new_page()
        async with InProcess(document, tmp_path) as gateway:
            await page.goto(f"http://127.0.0.1:{gateway.admin_port}/")
            await page.wait_for_selector("#state.good")
        await page.wait_for_selector("body.old #state.bad")
        assert "does not answer" in await page.inner_text("#state")
        await browser.close()
