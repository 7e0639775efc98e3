"""The Pareto page and the quantizer lab in a real browser, and what a reader's own files may hold."""

import io
from pathlib import Path

import numpy as np

from browser import idle, needs_browser, open_beside, opened_as, sync_api, wait_for_figure

pytestmark = needs_browser

#: the first sweep of a process, and the first run of a quantizer, may compile what they need
FIRST_MS = 240_000
SMALL = "pareto_batches=16,64&pareto_inputs=1024&pareto_outputs=512,2048&pareto_quantizers=fp16;oaken"


def downloaded(page, button):
    with page.expect_download() as caught:
        button.click()
    return Path(caught.value.path())


def test_a_front_is_swept_filtered_restored_and_downloaded(page, server, browser):
    page.goto(f"{server}/pareto?{SMALL}")
    wait_for_figure(page, "front", FIRST_MS)
    page.get_by_text("of 24 designs are on the front").wait_for()
    field = page.get_by_role("textbox", name="Of the front show only")
    field.fill('device == "H100"')
    field.press("Enter")
    page.wait_for_url("**pareto_filter=**")
    page.wait_for_function(
        "document.querySelector('.st-key-front .js-plotly-plot').data.every(t => !String(t.name).includes('A100'))"
    )
    limit = page.get_by_role("textbox", name="At most")
    limit.fill("Decode step = 20 ms")
    limit.press("Enter")
    page.get_by_text("beyond the limits").wait_for()
    place = open_beside(page, "front")
    assert "--at-most decode_step_s=0.02" in place.get_by_test_id("stCode").first.inner_text()
    for kind in ("PNG", "SVG", "PDF", "CSV", "Parquet"):
        opened_as(kind, downloaded(page, place.get_by_role("button", name=kind, exact=True)))
    page.keyboard.press("Escape")
    page.get_by_text("As a sweep file, for any number of designs").click()
    text = downloaded(page, page.get_by_role("button", name="Download sweep.toml")).read_text()
    assert "batch = [16, 64]" in text
    again = browser.new_page()
    try:
        again.goto(page.url)
        again.get_by_text("beyond the limits").wait_for(timeout=FIRST_MS)
        wait_for_figure(again, "front", FIRST_MS)
        assert again.get_by_role("textbox", name="At most").input_value() == "Decode step = 20 ms"
        assert again.get_by_role("textbox", name="Of the front show only").input_value() == 'device == "H100"'
    finally:
        again.close()


def test_a_long_sweep_shows_how_far_it_is_and_ends_when_told(page, server):
    page.goto(f"{server}/pareto?pareto_batches=1+to+1000+step+1")
    page.get_by_role("button", name="Sweep", exact=True).click()
    page.get_by_role("progressbar").wait_for()
    page.get_by_text("of 648,000 designs").wait_for()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("The sweep was stopped.").wait_for()
    page.get_by_role("button", name="Sweep again").wait_for()


def dump_bytes():
    buffer = io.BytesIO()
    draw = np.random.default_rng(1).standard_normal
    np.savez(
        buffer,
        **{f"layer0.{side}": draw((1, 2, 64, 64)).astype(np.float16) for side in ("key", "value")},
    )
    return buffer.getvalue()


def test_the_lab_takes_good_dumps_and_says_what_is_wrong_with_others(page, server, tmp_path):
    page.goto(f"{server}/lab?lab_quantizer=nqkv")
    wait_for_figure(page, "map-error", FIRST_MS)
    page.get_by_text("Load a KV dump").click()
    bad = tmp_path / "bad.npz"
    bad.write_bytes(b"PK\x03\x04 no archive")
    page.locator("input[type=file]").set_input_files(bad)
    page.get_by_text("bad.npz: ").wait_for()
    sync_api.expect(page.locator(".js-plotly-plot").first).to_be_visible()
    good = tmp_path / "own.npz"
    good.write_bytes(dump_bytes())
    sync_api.expect(page.locator("input[type=file]")).to_have_count(1)
    page.locator("input[type=file]").set_input_files(good)
    page.get_by_test_id("stText").filter(has_text="own.npz, 1 layers").wait_for()
    sync_api.expect(page.get_by_text("Synthetic data")).to_have_count(0)
    for name in ("bits", "errors", "histogram", "map-before", "map-after", "map-error"):
        wait_for_figure(page, name, FIRST_MS)
    idle(page)
    assert "lab_data" not in page.url
    place = open_beside(page, "histogram")
    assert "own.npz" in place.get_by_test_id("stCode").first.inner_text()
    opened_as("PNG", downloaded(page, place.get_by_role("button", name="PNG", exact=True)))
