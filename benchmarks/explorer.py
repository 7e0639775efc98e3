"""How fast the explorer answers in Chromium: the first page after start, a field's new numbers and figure, a page, the
first visit of dumps.

    python -m benchmarks.explorer [--tabs 20] [--against CHECKOUT --page P --field LABEL --number CSS --figure NAME]

`--against` measures a page of another checkout in the same run: its address, the field that is moved, where its
numbers stand, a figure's key.

Times are the best and the median of several, beside a page of one slider and one figure on the same server software
in the same run: what Streamlit and the browser take by themselves. Beside them stands the processor time of the server,
which other work on the machine changes less. Needs playwright and Chromium.
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
from collections.abc import Callable
from functools import partial
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parents[1]
MOVES = 12
FLOOR = """
import streamlit as st
n = st.number_input("Requests at once", 1, 10000, 64)
st.container(key="opened").text(n)
st.plotly_chart({"data": [{"type": "bar", "x": [1, 2], "y": [n, 2 * n]}], "layout": {}}, key="speeds")
"""
#: pages by their address, and a figure of each that follows the batch
FIGURES = (("?batch=64", "speeds"), ("why?batch=64", "operations"))
FIELD, CARD = "Requests at once", ".st-key-opened"
#: notes when a key goes down, and the frame after what `read` gives is another
WATCH = """read => {
    const numbers = new Function(read);
    document.addEventListener("keydown", event => {
        if (event.key !== "Enter") return;
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
OF_FIGURE = """const figure = document.querySelector('.st-key-%s .js-plotly-plot');
return figure && figure.data ? JSON.stringify(figure.data.map(trace => [trace.x, trace.y])) : null;"""
OF_TEXT = "const place = document.querySelector('%s'); return place ? place.innerText : null;"


def serve(*command: str, root: Path = ROOT) -> tuple[subprocess.Popen[bytes], str]:
    """A server started by `command`, once it answers; and its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", *command, "--server.port", str(port), "--server.headless", "true"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(root)},
        cwd=root,
    )
    address = f"http://127.0.0.1:{port}"
    while process.poll() is None:
        try:
            urllib.request.urlopen(f"{address}/_stcore/health", timeout=5)
            return process, address
        except OSError:
            time.sleep(0.02)
    raise SystemExit("the server did not start")


def drawn(page: Page, address: str) -> float:
    """Seconds to open the page until its script has ended."""
    start = time.perf_counter()
    page.goto(address)
    page.get_by_role("heading", level=1).or_(page.locator(".js-plotly-plot .main-svg")).first.wait_for(timeout=120_000)
    page.get_by_test_id("stStatusWidget").wait_for(state="detached", timeout=120_000)
    return time.perf_counter() - start


def click_through(page: Page) -> None:
    """From the first page to maps of a dump by links and tabs."""
    page.get_by_role("link", name="Why").first.click()
    for tab in ("Quantization error", "Values before and after"):
        page.get_by_role("radio", name=tab).click()


def lab(page: Page, open_it: Callable[[], object]) -> tuple[float, float]:
    """Seconds to the first map of a dump on the page Why, and to the end of its script, at a server that is new."""
    start = time.perf_counter()
    open_it()
    page.locator(".st-key-map-before .js-plotly-plot .main-svg").first.wait_for(state="attached", timeout=120_000)
    first = time.perf_counter() - start
    page.locator(".st-key-map-error .js-plotly-plot .main-svg").first.wait_for(state="attached", timeout=120_000)
    page.get_by_test_id("stStatusWidget").wait_for(state="detached", timeout=120_000)
    return first, time.perf_counter() - start


def cpu_s(server: subprocess.Popen[bytes]) -> float:
    """Seconds of processor that a server has taken."""
    ticks = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def moves(page: Page, read: str, label: str = FIELD) -> list[float]:
    """Seconds from Enter in a field until what `read` gives is another, for several moves."""
    page.get_by_test_id("stStatusWidget").wait_for(state="detached", timeout=60_000)
    page.evaluate(WATCH, read)
    field = page.get_by_label(label, exact=True).first
    found = []
    for i in range(MOVES):
        field.fill(str(8 + 2 * (i % 8)))  # all of them fit
        field.press("Enter")
        page.wait_for_function("window.drawn > 0", timeout=60_000)
        page.get_by_test_id("stStatusWidget").wait_for(state="detached", timeout=60_000)
        page.wait_for_timeout(500)
        found.append(page.evaluate("(window.drawn - window.pressed) / 1000"))
    return found


def switches(page: Page) -> list[float]:
    """Seconds from a click on the other page's link until its heading is there, for several clicks."""
    found = []
    for i in range(MOVES):
        (link, shown), start = (
            (("Why", "Where the time goes"), ("Answer", "Change this design"))[i % 2],
            time.perf_counter(),
        )
        page.get_by_role("link", name=link).first.click()
        page.locator("[data-testid=stMain]").get_by_text(shown, exact=True).first.wait_for()
        found.append(time.perf_counter() - start)
        page.get_by_test_id("stStatusWidget").wait_for(state="detached", timeout=60_000)
        page.wait_for_timeout(300)
    return found


def say(what: str, found: list[float]) -> None:
    """One line: best and median."""
    print(f"{what:<44} best {min(found):6.3f} s   median {statistics.median(found):6.3f} s")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tabs", type=int, default=0, help="also open so many tabs at once and see that none mix")
    parser.add_argument("--against", type=Path, help="another checkout, measured in the same run")
    parser.add_argument("--page", default="answer?batch=64", help="its page")
    parser.add_argument("--field", default=FIELD, help="its field that is moved")
    parser.add_argument("--number", default=CARD, help="where its numbers stand (CSS)")
    parser.add_argument("--figure", default="speeds", help="one of its figures (the key of its place)")
    given = parser.parse_args()
    tabs = given.tabs
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"])
        floor_script = Path(folder) / "floor.py"
        floor_script.write_text(FLOOR)
        floor, floor_address = serve("streamlit", "run", str(floor_script), "--browser.gatherUsageStats", "false")
        try:
            page = browser.new_page()
            least_open = drawn(page, floor_address)
            page.locator(".js-plotly-plot .main-svg").first.wait_for(state="attached")
            least = moves(page, OF_FIGURE % "speeds")
            page = browser.new_page()
            drawn(page, floor_address)
            least_number = moves(page, OF_TEXT % CARD)
        finally:
            floor.terminate()
        starts, opens = [], []
        labs: dict[str, list[tuple[float, float]]] = {"by its link": [], "by its address, in a new tab": []}
        for i in range(5):
            start = time.perf_counter()
            server, address = serve("dse", "app", "--")
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            opens.append(drawn(page, address))
            starts.append(time.perf_counter() - start)
            if i < 4:
                by = tuple(labs)[i % 2]
                if i % 2:
                    page = browser.new_page(viewport={"width": 1280, "height": 800})
                    labs[by].append(lab(page, partial(page.goto, f"{address}/lab?lab_view=maps")))
                else:
                    labs[by].append(lab(page, partial(click_through, page)))
                server.terminate()
                server.wait()
        try:
            say("a page of one field and one figure: number", least_number)
            say("  its figure", least)
            say("  its first page, the browser's part", [least_open])
            say("explorer: from `dse app` to the first page", starts)
            say("  of it the browser's part", opens)
            for by, found in labs.items():
                say(f"lab, the first visit of a server, {by}: its first map", [first for first, _ in found])
                say("  all of it", [whole for _, whole in found])
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            drawn(page, f"{address}/?batch=64")
            before = cpu_s(server)
            numbers = moves(page, OF_TEXT % CARD)
            say("answer: field to the opened row's numbers", numbers)
            ours = (cpu_s(server) - before) / MOVES
            print(f"{'':<44} {ours:.3f} s of the server's processor a move")
            figures: dict[str, list[float]] = {}
            say("page switch: link to heading", switches(page))
            for path, name in FIGURES:
                page = browser.new_page(viewport={"width": 1280, "height": 800})
                drawn(page, f"{address}/{path}")
                page.locator(f".st-key-{name} .js-plotly-plot .main-svg").first.wait_for(state="attached")
                figures[name] = moves(page, OF_FIGURE % name)
                say(f"{path}: field to the new {name}", figures[name])
            if given.against:
                beside(browser, given, numbers, figures["speeds"], ours)
            if tabs:
                together(browser, address, tabs)
        finally:
            server.terminate()
            browser.close()


def beside(browser: Browser, given: argparse.Namespace, numbers: list[float], figure: list[float], cpu: float) -> None:
    """The same moves on a page of another checkout."""
    server, address = serve("dse", "app", "--", root=given.against.resolve())
    try:
        for what, ours, read in (
            ("numbers", numbers, OF_TEXT % given.number),
            ("figure", figure, OF_FIGURE % given.figure),
        ):
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            opened, before = drawn(page, f"{address}/{given.page}"), cpu_s(server)
            other = moves(page, read, given.field)
            theirs = (cpu_s(server) - before) / MOVES
            say(f"{given.against.name}/{given.page}: field to new {what}", other)
            ratio = statistics.median(ours) / statistics.median(other)
            print(f"{'':<44} ours takes {ratio:.2f} of it in the median; it opens in {opened:.2f} s")
            print(f"{'':<44} {theirs:.3f} s of its processor a move, of which ours takes {cpu / theirs:.2f}")
    finally:
        server.terminate()


def together(browser: Browser, address: str, n_tabs: int) -> None:
    """Many tabs at once, each with its own batch: each must show its own, whatever the others ask."""
    context = browser.new_context()
    start = time.perf_counter()
    opened = []
    for batch in range(2, 2 + n_tabs):
        tab = context.new_page()
        tab.goto(f"{address}/?batch={batch}", wait_until="commit")
        opened.append((batch, tab))
    for batch, tab in opened:
        tab.get_by_text(f"Fits: all {batch} requests").first.wait_for(timeout=300_000)
    print(f"{n_tabs} tabs at once, none mixed: all drawn after {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
