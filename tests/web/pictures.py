"""Take a picture of the playground as it opens: `make pictures` writes docs/playground.png.

docs/playground.digest is the digest of the page's files. A test compares it to find outdated pictures.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from boundarymorph.web.pages import STATIC
from load_tests.processes import serving
from tests.web.conftest import launched

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "playground.png"
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
    with serving(["serve", "--data-directory", given.data]) as server, launched() as browser:
        page = browser.new_page(viewport={"width": 1_200, "height": 1_080}, color_scheme="light", locale="en-US")
        page.goto(f"{server.url}/playground")
        page.locator("#answer[aria-busy=false] .totals b").last.wait_for(timeout=60_000)
        page.screenshot(path=PICTURE)
    DIGEST.write_text(f"{digest()}\n")
    print(f"written to {PICTURE}")


if __name__ == "__main__":
    main()
