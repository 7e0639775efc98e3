"""The docs' picture of the explorer: its answer on three KV formats on one H200, as Chromium draws it.

    python docs/images/from_explorer.py [FILE.png]

Needs playwright and Chromium.
"""

import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).with_name("explorer.png")
ADDRESS = ""
WAIT_MS = 120_000


def main() -> None:
    """Start the explorer, draw the page, write the picture, and stop the explorer."""
    picture = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "dse", "app", "--", "--server.port", str(port), "--server.headless", "true"]
    )
    try:
        while server.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=5)
                break
            except OSError:
                time.sleep(0.1)
        chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1440, "height": 980})
            page.set_default_timeout(WAIT_MS)
            page.goto(f"http://127.0.0.1:{port}/{ADDRESS}")
            page.locator(".st-key-speeds .js-plotly-plot .main-svg").first.wait_for(state="attached")
            page.get_by_test_id("stStatusWidget").wait_for(state="detached")
            page.wait_for_timeout(2000)  # plotly's last strokes and the fonts
            page.screenshot(path=picture)
            browser.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
