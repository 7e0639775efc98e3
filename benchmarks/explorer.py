"""How fast the explorer answers in Chromium: the first page after start, and a slider's new figure.

    python benchmarks/explorer.py [--tabs 20]

Times are the best and the median of several, beside a page of one slider and one figure on the same server software
in the same run: what Streamlit and the browser take by themselves. Needs playwright and Chromium.
"""

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
MOVES = 12
FLOOR = """
import streamlit as st
n = st.select_slider("n", [2**i for i in range(15)], 64)
st.plotly_chart({"data": [{"type": "bar", "x": [1, 2], "y": [n, 2 * n]}], "layout": {}}, key="memory")
"""
#: pages by their address, and a figure of each that follows the batch
FIGURES = (("", "memory"), ("", "throughput"), ("throughput", "throughput"), ("roofline", "operations"))
#: notes when a key goes down, and the frame after the named figure shows other numbers
WATCH = """name => {
    const numbers = () => {
        const figure = document.querySelector(`.st-key-${name} .js-plotly-plot`);
        return figure && figure.data ? JSON.stringify(figure.data.map(trace => [trace.x, trace.y])) : null;
    };
    document.addEventListener("keydown", () => {
        const before = numbers();
        window.pressed = performance.now();
        window.drawn = 0;
        const look = () => {
            const now = numbers();
            if (now && now !== before) requestAnimationFrame(() => { window.drawn = performance.now() });
            else requestAnimationFrame(look);
        };
        look();
    }, true);
}"""


def serve(*command: str) -> tuple[subprocess.Popen[bytes], str]:
    """A server started by `command`, once it answers; and its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", *command, "--server.port", str(port), "--server.headless", "true"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    while process.poll() is None:
        try:
            urllib.request.urlopen(f"{address}/_stcore/health", timeout=5)
            return process, address
        except OSError:
            time.sleep(0.02)
    raise SystemExit("the server did not start")


def drawn(page: Page, address: str) -> float:
    """Seconds to open the page until its last figure is there."""
    start = time.perf_counter()
    page.goto(address)
    page.locator(".js-plotly-plot .main-svg").last.wait_for(state="attached", timeout=120_000)
    return time.perf_counter() - start


def moves(page: Page, name: str) -> list[float]:
    """Seconds from a key on the first slider to the figure drawn anew, for several moves."""
    page.get_by_test_id("stStatusWidget").wait_for(state="detached", timeout=60_000)
    page.evaluate(WATCH, name)
    slider = page.get_by_role("slider").first
    slider.focus()
    found = []
    for i in range(MOVES):
        slider.press("ArrowRight" if i % 8 < 4 else "ArrowLeft")
        page.wait_for_function("window.drawn > 0", timeout=60_000)
        page.get_by_test_id("stStatusWidget").wait_for(state="detached", timeout=60_000)
        page.wait_for_timeout(300)
        found.append(page.evaluate("(window.drawn - window.pressed) / 1000"))
    return found


def say(what: str, found: list[float]) -> None:
    """One line: best and median."""
    print(f"{what:<44} best {min(found):6.3f} s   median {statistics.median(found):6.3f} s")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tabs", type=int, default=0, help="also open so many tabs at once and see that none mix")
    tabs = parser.parse_args().tabs
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"])
        floor_script = Path(folder) / "floor.py"
        floor_script.write_text(FLOOR)
        floor, floor_address = serve("streamlit", "run", str(floor_script), "--browser.gatherUsageStats", "false")
        try:
            page = browser.new_page()
            least_open = drawn(page, floor_address)
            least = moves(page, "memory")
        finally:
            floor.terminate()
        starts, opens = [], []
        for i in range(3):
            start = time.perf_counter()
            server, address = serve("dse", "app", "--")
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            opens.append(drawn(page, address))
            starts.append(time.perf_counter() - start)
            if i < 2:
                server.terminate()
                server.wait()
        try:
            say("a page of one slider and one figure", least)
            say("  its first page, the browser's part", [least_open])
            say("explorer: from `dse app` to the first page", starts)
            say("  of it the browser's part", opens)
            for path, name in FIGURES:
                page = browser.new_page(viewport={"width": 1280, "height": 800})
                drawn(page, f"{address}/{path}")
                found = moves(page, name)
                say(f"{path or 'what if'}: slider to the new {name}", found)
                print(f"{'':<44} {min(found) / min(least):.2f} times the page of one figure, best against best")
            if tabs:
                together(browser, address, tabs)
        finally:
            server.terminate()
            browser.close()


def together(browser, address: str, n_tabs: int) -> None:
    """Many tabs at once, each with its own batch: each must show its own, whatever the others ask."""
    context = browser.new_context()
    start = time.perf_counter()
    opened = []
    for batch in range(2, 2 + n_tabs):
        tab = context.new_page()
        tab.goto(f"{address}/?batch={batch}", wait_until="commit")
        opened.append((batch, tab))
    for batch, tab in opened:
        tab.get_by_text(f"batch {batch}, 1,024 tokens in").first.wait_for(timeout=300_000)
    print(f"{n_tabs} tabs at once, none mixed: all drawn after {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
