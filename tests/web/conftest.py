"""Run a real browser on a real service over documents of the demo."""

from __future__ import annotations

import ast
import os
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

from boundarymorph.cli import demo
from tests.system.service import Service, service

NODE_MODULES = Path(__file__).parent / "node_modules"
UNPACKED = NODE_MODULES / ".chromium"  # `make setup` unpacks it
CHROMIUM = os.environ.get("CHROMIUM") or UNPACKED / "chromium"  # another browser, if that one does not run
# Some of the modules that the demo indexes.
MODULES = ("calendar", "datetime", "decimal", "pathlib", "tarfile", "textwrap", "zipfile")
REFUSED = "Failed to load resource"  # Chromium's message for an answer with an error status
expect.set_options(timeout=20_000)
Open = Callable[..., AbstractContextManager[Page]]


@contextmanager
def launched() -> Iterator[Browser]:
    environment: dict[str, str | float | bool] = {**os.environ, "LD_LIBRARY_PATH": str(UNPACKED / "al2023" / "lib")}
    arguments = ["--no-sandbox"]  # root cannot use the sandbox
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=CHROMIUM, args=arguments, env=environment) as browser,
    ):
        yield browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def demo_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield the URL of a service with an index like the demo's, of a few modules."""
    library = Path(sysconfig.get_path("stdlib"))
    documents = [
        {"id": name, "title": name, "text": text, "metadata": {"kind": kind}}
        for module in MODULES
        for name, text, kind in demo._definitions(ast.parse((library / f"{module}.py").read_bytes()), module)
    ]
    with service(tmp_path_factory.mktemp("web") / "data") as running:
        running.fill(demo.INDEX, documents)
        yield running


@pytest.fixture
def opened(browser: Browser, demo_service: Service) -> Open:
    """Yield a function that opens a path of a service in a fresh profile.

    The test fails if the browser logs a message, or the page requests anything from other hosts.
    """

    @contextmanager
    def open_page(
        path: str = "/playground", url: str = demo_service.url, refusals: bool = False, **options: Any
    ) -> Iterator[Page]:
        """Open a page; with `refusals`, answers may be errors."""
        said: list[str] = []

        def on_message(message: ConsoleMessage) -> None:
            if not (refusals and message.text.startswith(REFUSED)):
                said.append(message.text)

        def on_request(request: Request) -> None:
            if not request.url.startswith((url, "data:")):
                said.append(request.url)

        with browser.new_context(locale="en-US", **options) as context:
            context.set_default_timeout(20_000)
            page = context.new_page()
            page.on("console", on_message)
            page.on("pageerror", lambda error: said.append(str(error)))
            page.on("request", on_request)
            page.goto(url + path)
            yield page
            assert context.cookies() == []
            assert page.evaluate("localStorage.length + sessionStorage.length") == 0
        assert said == []

    return open_page
