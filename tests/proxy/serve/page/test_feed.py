"""The page's files belong together. The feed itself: tests/wire/test_live_page.py."""

from __future__ import annotations

import re
from importlib import resources

from proxy.phases import PHASES

PAGE = resources.files("proxy.serve.page")


def text(name: str) -> str:
    return PAGE.joinpath(name).read_text()


def test_the_script_knows_all_phases_in_their_order() -> None:
    found = re.search(r"const PHASES = \[(.*?)\];", text("page.js"), re.DOTALL)
    assert found is not None
    assert re.findall(r'"(\w+)"', found[1]) == list(PHASES)


def test_each_place_that_the_script_fills_is_there() -> None:
    script = text("page.js")
    wanted = set(re.findall(r'\bat\("([\w-]+)"\)', script)) | {"ttft", "itl"}
    wanted |= set(re.findall(r'\bfill\("([\w-]+)"', script))
    assert wanted <= set(re.findall(r'id="([\w-]+)"', text("index.html")))


def test_nothing_is_loaded_from_elsewhere_and_no_text_becomes_markup() -> None:
    for name in ("index.html", "page.css", "page.js"):
        assert "//" not in text(name).replace("http://www.w3.org/2000/svg", "")
    for unsafe in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert unsafe not in text("page.js")
