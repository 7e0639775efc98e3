"""The explorer in a real browser: it loads, it answers, its URL carries the state, and it talks to nobody else."""

import asyncio
import http.client
import io
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlencode

import pytest
from PIL import Image
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from browser import (
    ASKED,
    ROOT,
    STILL,
    STUCK_S,
    choose,
    idle,
    nameless,
    needs_browser,
    new_page,
    open_beside,
    open_page,
    opened_as,
    started,
    status_of,
    sync_api,
)

pytestmark = [needs_browser, pytest.mark.browser]


def command_line(page):
    place = open_beside(page)
    text = place.get_by_test_id("stCode").first.inner_text()
    page.keyboard.press("Escape")
    return text


#: the design of the first generation, whose numbers tests know, as an address
BASE = "device=a100-80gb&model=llama2-7b&quantizer=oaken&admission=reserve&input=1024"


def throughput(page):
    """What the opened row says of it."""
    return page.locator(".st-key-opened li").filter(has_text="Throughput").inner_text()


def batch_field(page):
    return page.get_by_role("spinbutton", name="Requests at once", exact=True)


def set_batch(page, value):
    idle(page)  # a run that ends would take back what is being typed
    field = batch_field(page)
    field.fill(str(value))
    field.press("Enter")
    page.wait_for_url(f"**batch={value}**")
    idle(page)


def test_a_field_changes_the_figure_and_the_url_restores_it(page, server, profile):
    open_page(page, f"{server}/compare?{BASE}&batch=32")  # a former page
    idle(page)
    first = throughput(page)
    assert "tok/s" in first
    before = drawn_numbers(page, "speeds")
    set_batch(page, 64)
    page.wait_for_function(
        "before => JSON.stringify(document.querySelector('.st-key-speeds .js-plotly-plot').data"
        ".map(trace => [trace.x, trace.y])) !== before",
        arg=before,
    )
    idle(page)
    second = throughput(page)
    assert second != first
    again = new_page(profile.browser, **STILL)  # of another profile: the address is all that it has
    try:
        open_page(again, page.url)
        idle(again)
        assert throughput(again) == second
        assert command_line(again) == command_line(page)
    finally:
        again.close()
    page.go_back()
    sync_api.expect(batch_field(page)).to_have_value("32")


def copies_its_picture(page, place):
    """The button of what stands beside a figure puts it on the clipboard."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    place.get_by_role("button", name="Copy picture").click()
    page.get_by_text("Copied.").wait_for()
    read = """async () => {
        const picture = await (await navigator.clipboard.read())[0].getType("image/png");
        return Array.from(new Uint8Array(await picture.arrayBuffer()));
    }"""
    with Image.open(io.BytesIO(bytes(page.evaluate(read)))) as copied:
        assert copied.width > 1000
    page.context.clear_permissions()


def where_it_stands(page):
    """Which page is shown, with what batch."""
    idle(page)
    page.get_by_role("heading", level=1).first.wait_for()
    batch_field(page).first.wait_for()
    page.wait_for_timeout(500)
    idle(page)
    heading = page.get_by_role("heading", level=1).first.inner_text()
    return heading, batch_field(page).first.input_value()


def test_back_and_forward_across_pages_show_what_was_there(page, server):
    """Streamlit leaves an address of its own between two pages by chance: a step more, but no state but those seen."""

    def follow(link):
        page.get_by_role("link", name=link).first.click()
        page.wait_for_function("link => document.querySelector('h1')?.innerText.includes(link)", arg=link.split()[-1])
        page.wait_for_url("**batch=**")

    def set_to(batch):
        idle(page)
        batch_field(page).fill(str(batch))
        batch_field(page).press("Enter")
        page.wait_for_url(f"**batch={batch}")
        idle(page)

    open_page(page, f"{server}/?batch=64")
    seen = [("Answer", "64"), ("Answer", "48"), ("Why", "48"), ("Why", "96"), ("Answer", "96")]
    set_to(48)
    follow("Why")
    set_to(96)
    follow("Answer")
    assert where_it_stands(page) == seen[-1]
    for step, wanted in ((page.go_back, seen[::-1]), (page.go_forward, seen)):
        stops = [wanted[0]]
        while stops[-1] != wanted[-1]:
            step()
            stops.append(where_it_stands(page))
            assert len(stops) <= 2 * len(seen), stops
        assert [stop for i, stop in enumerate(stops) if i == 0 or stop != stops[i - 1]] == wanted


def drawn_numbers(page, name):
    """The numbers of a figure as the browser has them."""
    return page.evaluate(f"""JSON.stringify(
        document.querySelector('.st-key-{name} .js-plotly-plot').data.map(trace => [trace.x, trace.y]))""")


#: page -> figure, field and option that change it, what of the address says so, and the kind of file that is
#: downloaded: all kinds of one figure are downloaded from the page Front (test_explorer_browser_pages.py)
PAGES = {
    "?batch=32": ("speeds", "Device", "h100", "device=h100", "PNG"),
    "size?load=rate&rate=2": ("load-tpot_s", "Language model", "llama2-13b", "model=llama2-13b", "SVG"),
    "why?batch=32": ("step", "Language model", "llama2-13b", "model=llama2-13b", "PDF"),
    "trust?batch=32": ("servers", "Device", "l40s", "device=l40s", "Parquet"),
}


@pytest.mark.parametrize("address", list(PAGES))
def test_each_page_opens_by_its_address_follows_a_field_and_gives_its_figure(page, server, address):
    name, label, option, said, kind = PAGES[address]
    page.goto(f"{server}/{address}")
    figure = page.locator(f".st-key-{name} .js-plotly-plot .main-svg")
    figure.first.wait_for(state="attached")
    idle(page)  # a run that ends would take back what is being typed
    before = drawn_numbers(page, name)
    choose(page.get_by_test_id("stMain"), label, option)
    page.wait_for_url(f"**{said}**")
    assert address.partition("?")[2] in page.url
    page.wait_for_function(
        f"""before => {{ const figure = document.querySelector('.st-key-{name} .js-plotly-plot');
        return figure && JSON.stringify(figure.data.map(trace => [trace.x, trace.y])) !== before; }}""",
        arg=before,
    )
    (ROOT / "screenshots").mkdir(exist_ok=True)  # to be looked at; git ignores them
    page.screenshot(path=ROOT / "screenshots" / f"{address.partition('?')[0] or 'answer'}.png")
    if page.get_by_test_id("stExpandSidebarButton").count():  # a test before may have left the sidebar open
        page.get_by_test_id("stExpandSidebarButton").click()
    page.get_by_test_id("stSidebar").get_by_label("KV format", exact=True).first.wait_for()
    bare, n_named = nameless(page)
    assert bare == []
    assert n_named > 70
    page.get_by_test_id("stSidebarCollapseButton").get_by_role("button").click(force=True)
    place = open_beside(page, name)
    buttons = [place.get_by_role("button", name=each, exact=True) for each in ("PNG", "SVG", "PDF", "CSV", "Parquet")]
    assert all(button.is_enabled() for button in buttons)
    if name == "speeds":
        copies_its_picture(page, place)
    with page.expect_download() as caught:
        place.get_by_role("button", name=kind, exact=True).click()
    opened_as(kind, Path(caught.value.path()))


def rerun(query, page=""):
    """What a browser sends to open a page."""
    question = BackMsg()
    question.rerun_script.query_string = query
    question.rerun_script.page_name = page
    return question.SerializeToString()


async def deltas_of_a_session(address, query, page=""):
    """What a session of its own is told to show: a tab without its browser, which is what costs."""
    from websockets.asyncio.client import connect

    found = []
    async with connect(
        address.replace("http", "ws") + "/_stcore/stream",
        origin=address,
        subprotocols=["streamlit"],
        max_size=None,
        open_timeout=STUCK_S,
        proxy=None,
    ) as socket:
        await socket.send(rerun(query, page))
        async for content in socket:
            message = ForwardMsg.FromString(content)
            if message.WhichOneof("type") == "delta":
                found.append((list(message.metadata.delta_path), message.delta))
            if message.WhichOneof("type") == "script_finished":
                return found


def asked_at_once(*sessions):
    async def ask_all():
        return await asyncio.wait_for(asyncio.gather(*sessions), STUCK_S)

    with ThreadPoolExecutor(1) as apart:  # the browser has the loop of this thread
        return apart.submit(lambda: asyncio.run(ask_all())).result()


def test_what_stands_on_a_page_itself_belongs_to_no_part_that_runs_alone(server):
    """Such a part, run anew, takes back what of it was not yet sent: the page must not have a gap then."""
    pages = ("", "size", "why", "trust")
    query = "batch=16"
    answers = asked_at_once(*(deltas_of_a_session(server, query, page) for page in pages))
    for name, deltas in zip(pages, answers, strict=True):
        assert len([path for path, _ in deltas if len(path) == 2]) > 3, name
        assert [path for path, delta in deltas if len(path) == 2 and delta.fragment_id] == [], name
    found = [path.name for path in (ROOT / "dse" / "explorer").glob("*.py") if "@st.fragment\n" in path.read_text()]
    assert found == []


def test_twenty_sessions_at_once_do_not_mix(server):
    answers = asked_at_once(*(deltas_of_a_session(server, f"quantizer=fp16&batch={batch}") for batch in range(2, 22)))
    for batch, deltas in enumerate(answers, 2):
        texts = [delta.new_element.markdown.body for _, delta in deltas]
        (fits,) = [text for text in texts if text.startswith("Fits")]
        assert fits.startswith(f"Fits\\: all {batch} requests at once; room for ")


def test_hostile_url_gives_a_notice_bad_parameters_a_message_and_nothing_is_fetched(page, server):
    open_page(page, f"{server}/?batch=1e400&model=%3Cimg%20src%3Dhttps%3A%2F%2Fexample.org%2Fx.png%3E&x=![y](//a.b/c)")
    page.get_by_text("must be a whole number from 1 to 16,777,216").wait_for()
    sync_api.expect(page.get_by_test_id("stException")).to_have_count(0)
    sync_api.expect(page.locator("img")).to_have_count(0)
    page.wait_for_function("!location.search.includes('batch')")
    set_batch(page, 48)
    page.go_back()
    sync_api.expect(batch_field(page)).not_to_have_value("48")
    sync_api.expect(page.get_by_test_id("stException")).to_have_count(0)
    idle(page)
    page.get_by_role("button", name="Change this design").click()
    field = page.get_by_role("textbox", name="Parameters of the format")
    field.wait_for()
    field.fill("bits=99")
    field.press("Enter")
    page.get_by_text("unknown parameter 'bits'").first.wait_for()
    sync_api.expect(page.get_by_test_id("stException")).to_have_count(0)
    page.get_by_test_id("stMain").get_by_text("unknown parameter 'bits'").wait_for()  # below the table too


@pytest.mark.parametrize(("width", "schemes"), [(390, ("light", "dark")), (1280, ("dark", "light"))])
def test_nothing_is_cut_at_phone_or_desktop_width(page, server, width, schemes):
    """Opened in either scheme, and in the other once the reader's system turns to it."""
    page.emulate_media(color_scheme=schemes[0])
    page.set_viewport_size({"width": width, "height": 844})
    open_page(page, server)
    for scheme in schemes:
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function(
            """light => { const { backgroundColor } = getComputedStyle(document.querySelector('[data-testid=stApp]'));
            const [red, green, blue] = backgroundColor.slice(4, -1).split(',').map(Number);
            return (red + green + blue > 3 * 128) === light; }""",
            arg=scheme == "light",
        )
        main = "document.querySelector('[data-testid=stMain]').scrollWidth"
        assert page.evaluate(f"Math.max(document.documentElement.scrollWidth, {main})") <= width
        cut = page.evaluate(
            """[...document.querySelectorAll('[class*=st-key-opened] *, [class*=st-key-question] label *')]
            .filter(e => e.innerText && e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflow === 'hidden')
            .map(e => e.innerText)"""
        )
        assert cut == []


@pytest.mark.parametrize("path", ["", "size?load=rate&rate=2", "why", "trust"])
def test_the_verdict_is_in_the_first_700_pixels(page, server, path):
    """Of a screen of 1440 x 900, on every page; a page takes at most two screens."""
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{server}/{path}")
    said = page.locator("[data-testid=stMain] .stMarkdown strong").first
    said.wait_for()
    page.locator(".js-plotly-plot .main-svg").first.wait_for(state="attached")
    idle(page)
    place = said.bounding_box()
    assert place["y"] + place["height"] <= 700
    figure = page.locator(".js-plotly-plot").first.bounding_box()
    assert figure["y"] < 700
    height = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
    assert height <= 1800, height


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_while_it_works(tmp_path, sign):
    """A page is open and quantizers run, for longer than the server may take to end: it does not wait for the run."""
    with started(tmp_path) as (process, address):
        asked_at_once(deltas_of_a_session(address, "batch=2"))
        with connect(
            address.replace("http", "ws") + "/_stcore/stream",
            origin=address,
            subprotocols=["streamlit"],
            open_timeout=STUCK_S,
            max_size=None,
            proxy=None,
        ) as socket:
            compared = ";".join(f"kivi:bits={bits},group={group}" for bits in (2, 4) for group in (16, 32, 64, 128))
            socket.send(rerun(urlencode({"why": "error", "lab_compared": compared}), "why"))
            socket.recv(STUCK_S)
            process.send_signal(sign)
            seen = []
            with suppress(ConnectionClosed):
                for content in socket:
                    seen.append(ForwardMsg.FromString(content).WhichOneof("type"))
            assert process.wait(STUCK_S) == 0
            assert "script_finished" not in seen


def handshake(address, **headers):
    """Status of asking for the page's WebSocket, over which all its contents come."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=STUCK_S)
    wanted = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
        **headers,
    }
    try:
        connection.request("GET", "/_stcore/stream", headers=wanted)
        return connection.getresponse().status
    finally:
        connection.close()


def test_other_hosts_and_origins_get_no_contents_and_make_the_server_ask_nobody(server, server_folder):
    assert handshake(server, Origin=server) == 101
    assert handshake(server, Origin=server.replace("127.0.0.1", "localhost")) == 101
    assert handshake(server, Host="evil.example", Origin="http://evil.example") == 403
    assert handshake(server, Origin="http://evil.example") == 403
    assert handshake(server, Origin="null") == 403
    assert status_of(server) == 200
    assert status_of(server, Host="evil.example") == 403
    assert status_of(f"{server}/_stcore/health", Origin="http://evil.example") == 403
    assert (server_folder / ASKED).read_text() == ""
