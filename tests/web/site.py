"""Open every page of the built site in a browser, in a wide and a narrow window.

`make docs` runs this. A page may request nothing from other hosts, must not be wider than the window, and must log no
message.
"""

from __future__ import annotations

import argparse
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from threading import Thread

from playwright.sync_api import Page

from tests.web.conftest import launched

WIDTHS = (1_440, 390)


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore requests that the browser has cancelled."""


def faults_of(page: Page, url: str, own: str) -> list[str]:
    """Return the faults of a page; `own` is the address of the site."""
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("request", lambda request: None if request.url.startswith((own, "data:")) else said.append(request.url))
    page.goto(url, wait_until="load")
    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        said.append("wider than the screen")
    return [f"{url}: {what}" for what in said]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path)
    site: Path = parser.parse_args().site
    server = Server(("127.0.0.1", 0), partial(Handler, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    own = f"http://127.0.0.1:{server.server_port}"
    pages = sorted(path.relative_to(site).as_posix() for path in site.glob("*.html"))
    faults: list[str] = []
    with launched() as browser:
        for width, name in product(WIDTHS, pages):
            with browser.new_page(viewport={"width": width, "height": 900}) as page:
                faults += faults_of(page, f"{own}/{name}", own)
    server.shutdown()
    if faults:
        raise SystemExit("\n".join(faults))
    print(f"{len(pages)} pages in {site}, each at {' and '.join(map(str, WIDTHS))} pixels")


if __name__ == "__main__":
    main()
