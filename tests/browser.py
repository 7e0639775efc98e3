"""The explorer in Debian's Chromium: a server of its own, a browser, and pages that tell what went wrong in them."""

import io
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakKeyDictionary
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from playwright import sync_api
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from kernels_ref.code_cache import cache_root

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no browser: apt-get install chromium")

#: until something counts as stuck: no measure of speed, since the first run of a quantizer compiles for minutes
STUCK_S = 900
STUCK_MS = 1000 * STUCK_S
#: options of every page: no animations, each of whose pictures the processor would draw while a page is waited for
STILL = {"reduced_motion": "reduce"}
ROOT = Path(__file__).parents[1]
#: file in a server's folder with the addresses that it looked up or sent to, other than this machine's
ASKED = "asked"
#: run by Python at its start, where the folder is on its path
_SPY = """
import sys
def note(event, args):
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo"):
        address = args[0] if event == "socket.getaddrinfo" else args[1]
        host = address[0] if isinstance(address, tuple) else address
        if isinstance(address, tuple | str) and str(host) not in ("127.0.0.1", "localhost", "::1", "None"):
            with open({path!r}, "a") as log:
                print(event, host, file=log)
sys.addaudithook(note)
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def status_of(address, **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=STUCK_S) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code


@contextmanager
def explorer(folder):
    """`dse app` as `started` starts it; gives its address."""
    with started(folder) as (_, address):
        yield address


@contextmanager
def started(folder):
    """`dse app` started in `folder` outside the repository, so that only its own settings hold; process and address."""
    port = free_port()
    log = folder / "server.log"
    (folder / ASKED).touch()
    (folder / "sitecustomize.py").write_text(_SPY.format(path=str(folder / ASKED)))
    path = os.pathsep.join(filter(None, [str(folder), str(ROOT), os.environ.get("PYTHONPATH")]))
    # a home of its own, but the compiled code of the other tests
    homes = {"PYTHONPATH": path, "HOME": str(folder), "NUMBA_CACHE_DIR": str(cache_root())}
    command = [sys.executable, "-m", "dse", "app", "--", "--server.port", str(port), "--server.headless", "true"]
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, env={**os.environ, **homes})
    try:
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + STUCK_S
        while True:
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"the explorer did not start:\n{log.read_text()}")
            try:
                if status_of(f"{address}/_stcore/health") == 200:
                    break
            except OSError:
                time.sleep(0.1)
        yield process, address
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(15)


@contextmanager
def chromium():
    """Debian's Chromium; it takes this thread's event loop until it is closed."""
    sync_api.expect.set_options(timeout=STUCK_MS)
    with sync_api.sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=flags, timeout=STUCK_MS)
        try:
            yield found
        finally:
            found.close()


def is_complaint(message):
    """True for an error of ours: below a page's path, Streamlit first looks for its own files at the wrong place."""
    own_404 = "/_stcore/" in message.location.get("url", "") and "404" in message.text
    return message.type == "error" and not own_404


def new_profile(browser, **options):
    """A profile, whose pages share what was once loaded: a page in a profile of its own costs a quarter more."""
    found = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **STILL, **options})
    found.set_default_timeout(STUCK_MS)
    return found


@contextmanager
def watched(profile, address):
    """A fresh page; fails when it logs an error, raises one, opens a dialog, or asks another host for anything."""
    opened = new_page(profile)
    complaints = []
    opened.on("console", lambda message: complaints.extend([message.text] * is_complaint(message)))
    opened.on("pageerror", lambda error: complaints.append(str(error)))

    def note_dialog(dialog):
        complaints.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def note_request(request):
        if not request.url.startswith((address, address.replace("http", "ws"), "data:", "blob:")):
            complaints.append(f"request to {request.url}")

    opened.on("dialog", note_dialog)
    opened.on("request", note_request)
    opened.on("websocket", note_request)
    try:
        yield opened
        if complaints:
            pytest.fail("the page complained:\n" + "\n".join(complaints))
    finally:
        opened.close()


def open_page(page, address):
    """Open the page and wait until it is drawn: its parts are loaded one by one."""
    page.goto(address)
    page.locator(".js-plotly-plot .main-svg").last.wait_for(state="attached")


def wait_for_figure(page, name):
    """Wait until a figure is drawn."""
    page.locator(f".st-key-{name} .js-plotly-plot .main-svg").first.wait_for(state="attached")


def open_beside(page, name="speeds"):
    """Open what stands beside a figure; returns its place."""
    page.locator(f".st-key-{name}-beside").get_by_role("button").click()
    place = page.get_by_test_id("stPopoverBody")
    place.get_by_test_id("stCode").first.wait_for()
    idle(page)
    return place


def choose(place, label, option, by_keys=False):
    """Choose an option of a field by typing it, again where a run that ends takes back what was typed; with the mouse,
    or by the keyboard alone."""
    field = place.get_by_role("combobox", name=label).first
    found = place.page.get_by_role("option", name=option, exact=True).first
    for wait_ms in (3000, 9000, STUCK_MS):
        idle(place.page)
        field.focus() if by_keys else field.click()  # in sight first: a list closes when its field is scrolled
        field.fill(option)
        try:
            found.wait_for(timeout=wait_ms)
            break
        except sync_api.TimeoutError:
            if wait_ms == STUCK_MS:
                raise
    if by_keys:
        while field.get_attribute("aria-activedescendant") != found.get_attribute("id"):
            field.press("ArrowDown")
        field.press("Enter")
    else:
        found.click()
    idle(place.page)


class Runs:
    """The runs of a page's script, from what its web socket carries: asked for, begun, ended."""

    def __init__(self, page):
        self.has_ended = False
        page.on("websocket", self._follow)

    def _follow(self, socket):
        self.has_ended = False
        socket.on("framesent", self._sent)
        socket.on("framereceived", self._received)

    def _sent(self, content):
        if BackMsg.FromString(content).WhichOneof("type") == "rerun_script":
            self.has_ended = False

    def _received(self, content):
        message = ForwardMsg.FromString(content)
        kind = message.WhichOneof("type")
        if kind == "new_session":
            self.has_ended = False
        elif kind == "script_finished":
            self.has_ended = message.script_finished != ForwardMsg.FINISHED_EARLY_FOR_RERUN


_RUNS = WeakKeyDictionary()
#: true once the page has shown a run's results for 100 ms
_STILL = """asked => {
    const runs = document.querySelector('[data-testid=stApp]')?.dataset.testScriptState !== 'notRunning';
    if (runs || window.still?.asked !== asked) window.still = {asked, since: performance.now()};
    return !runs && performance.now() - window.still.since > 100;
}"""


def new_page(profile, **options):
    """A page of a profile or of a browser, whose runs `idle` waits for."""
    opened = profile.new_page(**options)
    opened.set_default_timeout(STUCK_MS)
    _RUNS[opened] = Runs(opened)
    return opened


def idle(page):
    """Wait until every run that the page has asked for has ended, and its results are drawn."""
    while True:
        page.wait_for_function(_STILL, arg=time.monotonic(), polling=25)
        if _RUNS[page].has_ended:
            return


#: what a reader's software says by its name
_NAMED = {
    "button",
    "link",
    "textbox",
    "combobox",
    "checkbox",
    "radio",
    "slider",
    "spinbutton",
    "image",
    "DisclosureTriangle",
}


def nameless(page):
    """Controls and pictures without a name for software that reads the page aloud; a number of the named ones."""
    session = page.context.new_cdp_session(page)
    nodes = [one for one in session.send("Accessibility.getFullAXTree")["nodes"] if not one["ignored"]]
    found = [one for one in nodes if one["role"]["value"] in _NAMED]
    bare = []
    for one in found:
        if not one.get("name", {}).get("value", "").strip():
            node = session.send("DOM.describeNode", {"backendNodeId": one["backendDOMNodeId"]})["node"]
            if "js-plotly-tester" not in node.get("attributes", []):  # off the screen: plotly measures letters there
                bare.append((one["role"]["value"], node["nodeName"], node.get("attributes")))
    return bare, len(found) - len(bare)


def opened_as(kind, path):
    """Open a download as its readers would; fails where they would."""
    content = path.read_bytes()
    if kind == "SVG":
        assert ElementTree.fromstring(content).tag.endswith("svg")
    elif kind == "CSV":
        assert "dse " in pd.read_csv(path)["made_by"][0]
    elif kind == "Parquet":
        assert b"dse " in pq.read_table(path).schema.metadata[b"made_by"]
    else:
        start, end = {"PNG": (b"\x89PNG", b"IEND\xaeB`\x82"), "PDF": (b"%PDF", b"%%EOF\n")}[kind]
        assert content.startswith(start)
        assert content.endswith(end)


def uploader(page, test_id="stMain"):
    """Where a dump is given; in the sidebar, a device, a model, a plan or measurements."""
    return page.get_by_test_id(test_id).locator("input[type=file]")


def dump_bytes(model=""):
    buffer = io.BytesIO()
    draw = np.random.default_rng(1).standard_normal
    np.savez(
        buffer,
        **({"meta": np.frombuffer(json.dumps({"model": model, "note": model}).encode(), "u1")} if model else {}),
        **{f"layer0.{side}": draw((1, 2, 64, 64)).astype(np.float16) for side in ("key", "value")},
    )
    return buffer.getvalue()
