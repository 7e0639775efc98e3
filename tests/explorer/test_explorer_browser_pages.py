"""Clicks and dumps in a real browser, and what a reader's own files may hold."""

import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest

from browser import (
    ROOT,
    dump_bytes,
    idle,
    needs_browser,
    open_beside,
    open_page,
    opened_as,
    sync_api,
    uploader,
    wait_for_figure,
)
from dse.explorer import common_fields

pytestmark = [needs_browser, pytest.mark.browser]


def downloaded(page, button):
    with page.expect_download() as caught:
        button.click()
    return Path(caught.value.path())


def test_the_title_of_an_axis_stands_clear_of_its_numbers(page, server):
    page.goto(f"{server}/size?size_tab=rate&load=rate&rate=1")
    for figure in ("designs-tpot_s", "designs-ttft_s"):
        wait_for_figure(page, figure)
        gap_px = page.evaluate(
            """name => { const find = what => [...document.querySelectorAll(`.st-key-${name} ${what}`)]
                .map(e => e.getBoundingClientRect());
            return Math.min(...find('.ytick text').map(e => e.left)) - find('.ytitle')[0].right; }""",
            figure,
        )
        assert gap_px > 5


def test_lists_take_names_as_people_write_them(page, server):
    """One that nothing means leaves the list as it was, a path of the server's machine too."""
    open_page(page, f"{server}/compare")
    model, device = (page.get_by_role("combobox", name=name, exact=True) for name in ("Language model", "Device"))
    for field, typed, means in (
        (model, "gemma 4 31b", ("gemma-4-31b", "h200")),
        (device, "2x H100 SXM", ("gemma-4-31b", "h100")),
        (model, str(ROOT / "hwspecs/models/qwen3-8b.toml"), ("gemma-4-31b", "h100")),
    ):
        field.click()
        field.fill(typed)
        field.press("Enter")
        idle(page)
        assert (model.input_value(), device.input_value()) == means
    sync_api.expect(page.get_by_text("no model or device that is known")).to_be_visible()
    assert "devices=2" in page.url


def test_it_takes_good_dumps_and_says_what_is_wrong_with_others(page, server, tmp_path):
    page.goto(f"{server}/lab?lab_compared=nqkv&lab_view=maps")
    wait_for_figure(page, "map-error")
    page.get_by_role("button", name="Own dump").click()
    bad = tmp_path / "bad.npz"
    bad.write_bytes(b"PK\x03\x04 no archive")
    uploader(page, "stPopoverBody").set_input_files(bad)
    page.get_by_text("bad.npz: ").wait_for()
    sync_api.expect(page.locator(".js-plotly-plot").first).to_be_visible()
    idle(page)  # until then what gave way to something new still stands beside it
    good = tmp_path / "own.npz"
    good.write_bytes(dump_bytes())
    sync_api.expect(uploader(page, "stPopoverBody")).to_have_count(1)
    uploader(page, "stPopoverBody").set_input_files(good)
    page.get_by_text("(own.npz, 1 layers)").first.wait_for()
    page.keyboard.press("Escape")
    idle(page)
    sync_api.expect(page.get_by_text("layers, not your model")).to_have_count(0)
    for tab, names in {
        "Values before and after": ("map-before", "map-after", "map-error"),
        "Bits by part": ("bits",),
        "Error by layer and head": ("errors",),
        "Histogram": ("histogram",),
    }.items():
        page.get_by_role("radio", name=tab).click()
        for name in names:
            wait_for_figure(page, name)
        idle(page)
    assert "lab_data=own.npz+%28loaded%29" in page.url
    place = open_beside(page, "histogram")
    assert "own.npz" in place.get_by_test_id("stCode").first.inner_text()
    opened_as("PNG", downloaded(page, place.get_by_role("button", name="PNG", exact=True)))
    page.reload()
    page.get_by_text("own.npz was loaded in another session: load it again").wait_for()
    page.get_by_text("layers, not your model").first.wait_for()


#: what would be markup or a link where text is not shown as text
HOSTILE = "<img src=x onerror=alert(1)>**bold** $x$ [a](http://e.example) :red[x] `c` &lt;b&gt; www.f.example"
FILE = HOSTILE.replace("/", "")  # a name of a file holds none
#: the same as a name in a device file, of which letters, digits and .+_- are all that is allowed
NAME = "www.g.example"
_MARKUP = """() => [...document.querySelectorAll('[data-testid=stApp] *')].filter(e => {
    const text = e.textContent || '';
    return (e.tagName === 'IMG' && e.getAttribute('src') === 'x') || e.classList.contains('katex')
        || (e.tagName.toLowerCase() === 'a' && /example/.test(e.outerHTML))
        || (e.tagName === 'STRONG' && text === 'bold')
        || (e.tagName === 'EM' && text === 'bold') || (e.tagName === 'CODE' && text === 'c')
        || (/^x$/.test(text) && e.tagName === 'SPAN' && e.style.color) || (e.tagName === 'B' && text.includes('&'));
}).map(e => e.outerHTML.slice(0, 200))"""


def load(page, name, text, said):
    """Give the uploader a file of that very name, and wait for what the page says of it."""
    idle(page)
    sync_api.expect(uploader(page, "stPopoverBody")).to_have_count(1)
    uploader(page, "stPopoverBody").set_input_files({"name": name, "mimeType": "text/plain", "buffer": text.encode()})
    page.get_by_text(said).first.wait_for()
    idle(page)


def hostile_files():
    """Name, content and what the page says of it, of files whose every free text is hostile."""
    shipped = (ROOT / "hwspecs" / "devices" / "h100.toml").read_text()
    device = shipped.replace('name = "H100"', f'name = "{NAME}"')
    device = re.sub(r'^title = ".*"', f"title = {json.dumps(HOSTILE)}", device, flags=re.M)
    device = re.sub(r'source = "[^"]*"', f"source = {json.dumps(HOSTILE)}", device)
    model = {
        "model_type": "llama",
        "architectures": [HOSTILE],
        "_name_or_path": HOSTILE,
        "hidden_size": 1024,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "intermediate_size": 2048,
        "vocab_size": 1000,
    }
    plan = f"source = {json.dumps(HOSTILE)}\nmodel = {json.dumps(HOSTILE)}\n"
    plan += "".join(f'[[layers]]\nlayer = {i}\nkey = "kivi"\nvalue = "oaken"\n' for i in range(2))
    return [
        (f"{FILE}.toml", device, f"device {NAME}: no problem"),
        (f"{FILE}.json", json.dumps(model), "model img-src-x"),
        (f"{FILE}.toml", plan, "plan of 2 layers"),
    ]


def test_text_of_the_reader_is_never_markup(page, server):
    open_page(page, f"{server}/compare?model={quote(HOSTILE)}&{quote(HOSTILE)}={quote(HOSTILE)}")
    page.get_by_test_id("stCode").filter(has_text="onerror=alert").first.wait_for()
    assert page.evaluate(_MARKUP) == []
    page.get_by_role("button", name="Files").click()
    for name, content, said in hostile_files():
        load(page, name, content, said)
        assert page.evaluate(_MARKUP) == []
    bad = f"memory_capacity = {json.dumps(HOSTILE)}\nmemory_bandwidth = {json.dumps(HOSTILE)}\n"
    load(page, f"bad{FILE}.toml", bad, "memory_capacity")
    assert page.evaluate(_MARKUP) == []
    page.get_by_test_id("stPopoverBody").get_by_text("onerror=alert(1)").first.wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Change this design").click()
    page.get_by_text("Numbers of the device").click()
    page.get_by_test_id("stSidebar").get_by_test_id("stDataFrame").wait_for()
    assert page.evaluate(_MARKUP) == []
    for link in ("Why", "Size", "Answer"):
        page.get_by_role("link", name=link).first.click()
        page.wait_for_function("link => document.querySelector('h1')?.innerText === link", arg=link)
        idle(page)
        assert page.evaluate(_MARKUP) == [], link


def test_a_dump_says_nothing_as_markup(page, server):
    page.goto(f"{server}/lab?lab_compared={quote(HOSTILE)}&lab_view=maps")
    page.get_by_text("The address held values").wait_for()
    wait_for_figure(page, "map-error")
    page.get_by_role("button", name="Own dump").click()
    idle(page)
    sync_api.expect(uploader(page, "stPopoverBody")).to_have_count(1)
    file = {"name": f"{FILE}.npz", "mimeType": "application/zip", "buffer": dump_bytes(HOSTILE)}
    uploader(page, "stPopoverBody").set_input_files(file)
    page.get_by_text("onerror=alert").first.wait_for()
    wait_for_figure(page, "map-error")
    idle(page)
    assert page.evaluate(_MARKUP) == []


def test_tab_reaches_every_control_in_order_and_shows_where_it_is(page, server):
    page.goto(f"{server}/why")
    wait_for_figure(page, "operations")
    idle(page)
    reached = []
    for _ in range(90):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("() => document.activeElement.getAttribute('aria-label') || ''"))
        closed = "document.activeElement.closest('[data-testid=stSidebar][data-collapsed=true]')"
        assert not page.evaluate(f"() => !!{closed}")
        if page.evaluate("() => document.activeElement.dataset.testid === 'stTopNavLink'"):
            seen = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
            assert seen == "solid"
        if page.evaluate("() => document.activeElement.innerText.startsWith('Copy link')"):
            break
    else:
        pytest.fail(f"the figure's button was not reached: {reached}")
    places = [reached.index(field.label) for field in common_fields.QUESTION if field.label in reached]
    assert places == sorted(places)
    assert len(places) >= 8


def test_a_design_is_opened_to_be_changed_each_time(page, server):
    """Also once the reader has closed the sidebar by hand, on a phone too; a test before may have left it open."""
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 844})
        open_page(page, server)
        idle(page)
        name = page.get_by_role("textbox", name="Name", exact=True)
        for _ in range(3):
            page.get_by_role("button", name="Change this design").click()
            sync_api.expect(name).to_be_focused()
            sync_api.expect(name).to_be_in_viewport()
            page.get_by_test_id("stSidebar").hover()
            page.get_by_test_id("stSidebarCollapseButton").get_by_role("button").click()
            sync_api.expect(name).not_to_be_visible()
