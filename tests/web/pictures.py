"""`make pictures`: the playground over the index that `make demo` leaves -> docs/playground.png and build/pictures/.

docs/playground.digest is the digest of the page's files, by which a test says when docs/playground.png is old.
build/pictures has each width in light and dark, to be looked at: what is seen at first, and the whole page after
another query.
"""

from __future__ import annotations

import argparse
import hashlib
from itertools import product
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Page

from boundarymorph.web.pages import STATIC
from load_tests.processes import serving
from tests.web.conftest import launched

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "playground.png"
DIGEST = PICTURE.with_suffix(".digest")
ALL = ROOT / "build" / "pictures"
WIDTHS = (1_440, 1_024, 390)
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
QUERY = "work with dates, times and time zones"


def digest() -> str:
    """Return a digest of everything that the page is made of."""
    made = hashlib.sha256()
    for path in sorted((Path(str(STATIC)) / "playground").iterdir()):
        made.update(path.name.encode() + b"\0" + path.read_bytes())
    return made.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="data", help="folder with the demo's index")
    given = parser.parse_args()
    with serving(["serve", "--data-directory", given.data]) as server, launched() as browser:
        url = f"{server.url}/playground"
        opened(browser, url, 1_200, "light").screenshot(path=PICTURE)
        for width, scheme in product(WIDTHS, SCHEMES):
            page = opened(browser, url, width, scheme)
            page.screenshot(path=ALL / f"{width}-{scheme}-first.png")
            page.fill("#query", QUERY)
            page.click("#go")
            settle(page)
            page.screenshot(path=ALL / f"{width}-{scheme}-selected.png", full_page=True)
            page.close()
    DIGEST.write_text(f"{digest()}\n")
    print(f"written to {PICTURE} and {ALL}")


def opened(browser: Browser, url: str, width: int, scheme: Literal["light", "dark"]) -> Page:
    """Return the page with its first answer."""
    page = browser.new_page(viewport={"width": width, "height": 1_000}, color_scheme=scheme, locale="en-US")
    page.goto(url)
    settle(page)
    return page


def settle(page: Page) -> None:
    """Wait for the answer, its comparison and the charts."""
    page.locator("#answer[aria-busy=false] #curve-text").wait_for(timeout=60_000)
    page.wait_for_timeout(500)


if __name__ == "__main__":
    main()
