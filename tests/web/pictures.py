"""`make pictures`: the playground as it looks over the index that `make demo` leaves -> docs/playground.png.

Beside the picture lies the digest of the page's files, by which a test says when the picture is old.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path

from playwright.sync_api import sync_playwright

from boundarymorph.web.files import STATIC
from load_tests.processes import serving
from tests.web.conftest import CHROMIUM, UNPACKED

PICTURE = Path(__file__).parents[2] / "docs" / "playground.png"
DIGEST = PICTURE.with_suffix(".digest")


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
    environment: dict[str, str | float | bool] = {**os.environ, "LD_LIBRARY_PATH": str(UNPACKED / "al2023" / "lib")}
    with serving(["serve", "--data-directory", given.data]) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], env=environment)
        page = browser.new_page(viewport={"width": 1200, "height": 1000}, locale="en-US")
        page.goto(f"{server.url}/playground")
        page.locator("#curve-text").wait_for(timeout=60_000)
        page.wait_for_timeout(500)  # for the charts to be drawn
        page.screenshot(path=PICTURE)
        browser.close()
    DIGEST.write_text(f"{digest()}\n")
    print(f"written to {PICTURE}")


if __name__ == "__main__":
    main()
