"""Pictures of every page of the explorer, to be looked at: `PYTHONPATH=. python tests/screenshots.py [PAGE ...]`.

Each page at desktop and phone width, light and dark, whole, into screenshots/, which git ignores. Says which part of
a page is wider than the screen.
"""

import sys
import tempfile
from pathlib import Path

from browser import ROOT, chromium, explorer, idle, new_profile, watched
from dse.explorer.app import PAGES

WIDTHS, SCHEMES = (1280, 390), ("light", "dark")
HEIGHT, MOST_PX = 800, 6000
#: the first sweep and the first quantizer that run compile what they need
PATIENCE_MS = 300_000
#: what Streamlit scrolls inside of, made as high as its content
_UNROLL = """() => { for (const name of ['stMain', 'stAppViewContainer', 'stApp'])
    for (const e of document.querySelectorAll(`[data-testid=${name}]`)) e.style.overflow = 'visible';
    return document.querySelector('[data-testid=stMainBlockContainer]').scrollHeight; }"""
_WIDE = """() => [...document.querySelectorAll('[data-testid=stMain] *')]
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1 && e.checkVisibility()
        && !e.closest('[data-testid=stDataFrame]'))
    .map(e => (e.dataset.testid || e.tagName) + ': ' + (e.innerText || '').slice(0, 60)).slice(0, 3)"""


def shoot(browser, address, path, folder):
    """Four pictures of a page; prints what is too wide."""
    for width in WIDTHS:
        for scheme in SCHEMES:
            size = {"width": width, "height": HEIGHT}
            profile = new_profile(browser, viewport=size, color_scheme=scheme)
            with watched(profile, address) as page:
                page.set_default_timeout(PATIENCE_MS)
                page.goto(f"{address}/{path}")
                page.get_by_role("heading", level=1).first.wait_for()
                page.wait_for_timeout(1000)
                idle(page)
                page.set_viewport_size({"width": width, "height": min(page.evaluate(_UNROLL) + 120, MOST_PX)})
                page.wait_for_timeout(1000)
                idle(page)
                page.screenshot(path=folder / f"{path.partition('?')[0] or PAGES[0].path}-{width}-{scheme}.png")
                print(path or PAGES[0].path, width, scheme, *page.evaluate(_WIDE), flush=True)
            profile.close()


def main(paths):
    """Pictures of the pages of those addresses below the host; of all where none is named."""
    folder = ROOT / "screenshots"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as elsewhere, explorer(Path(elsewhere)) as address, chromium() as browser:
        for path in paths or ["", *(page.path for page in PAGES[1:])]:
            shoot(browser, address, path, folder)


if __name__ == "__main__":
    main(sys.argv[1:])
