"""What pages say of one design agrees, in a real browser: whether it fits, its times, its limits, how sure it is."""

import re
from pathlib import Path

import pytest

import dse
from browser import idle, needs_browser, open_beside, open_page, sync_api, wait_for_figure

pytestmark = [needs_browser, pytest.mark.browser]

#: a batch of which some run at once, on a device with memory for fewer
PARTS = "device=h200&model=llama3.1-70b&quantizer=fp8&weights=fp8&batch=64&input=8192"


def card(page, place=1):
    return page.locator(f".st-key-card-{place}")


def test_a_batch_that_runs_in_parts_is_called_so_on_the_card_and_among_the_numbers(page, server):
    open_page(page, f"{server}/compare?{PARTS}")
    sync_api.expect(card(page)).to_contain_text("Exceeds memory: at most")
    most = re.search(r"at most (\d+) of 64", card(page).inner_text())[1]
    page.get_by_text("Every number, and where it comes from").click()
    idle(page)
    sync_api.expect(page.get_by_role("button", name=f"Fits: {most} of 64")).to_be_visible()


def test_the_plot_of_speeds_stands_first_and_says_the_best_within_limits(page, server):
    """The card's time per token is that of the plot's sentence where the design on the card is the best."""
    open_page(page, f"{server}/compare?designs=batch.8&tpot_limit=40")
    wait_for_figure(page, "interactivity")
    headings = page.get_by_role("heading", level=3).all_inner_texts()
    assert headings[0].startswith("Throughput a device against the speed of each user")
    sync_api.expect(page.get_by_text(re.compile(r"Best within TPOT 40 ms: "))).to_be_visible()
    open_beside(page, "interactivity")
    link = page.get_by_text(re.compile(rf"^{re.escape(server)}/compare\?\S*tpot_limit=40"))
    sync_api.expect(link.first).to_be_visible()


def test_serving_says_the_most_requests_within_the_limits_and_which_one_is_missed(page, server):
    open_page(page, f"{server}/serving?{PARTS}&tpot_limit=40&rate=0.5")
    wait_for_figure(page, "load-tpot_s")
    said = page.get_by_text(re.compile(r"Within TPOT 40 ms: up to [0-9.]+ requests/s"))
    sync_api.expect(said).to_be_visible()
    open_page(page, f"{server}/serving?{PARTS}&tpot_limit=1&rate=0.1")
    sync_api.expect(page.get_by_text(re.compile("Nothing keeps TPOT 1 ms"))).to_be_visible()


def test_one_time_per_token_on_the_card_and_among_the_formats(page, server):
    address = "device=h200&model=qwen3-32b&quantizer=fp16&batch=16&input=8192"
    open_page(page, f"{server}/compare?{address}")
    on_card = re.search(r"TPOT\s+([0-9.]+) ms", card(page).inner_text())[1]
    answer = dse.formats("h200", "qwen3-32b", ["fp16", "fp8"], batch=16, input_tokens=8192)
    one = next(each for each in answer.formats if each.name == "fp16")
    assert float(on_card) == pytest.approx(1e3 * one.result["tpot_s"], rel=5e-3)


def test_a_device_with_changed_numbers_is_assumed_and_a_weak_gain_undecided(page, server):
    open_page(page, f"{server}/compare?device=h200&edits=memory_bandwidth%3D9.6+TB/s")
    sync_api.expect(card(page)).to_contain_text("assumed, within")
    sync_api.expect(card(page)).to_contain_text("memory_bandwidth=9.6 TB/s")
    page.goto(f"{server}/compare")
    idle(page)
    sync_api.expect(card(page, 3)).to_contain_text("Undecided against fp16")


def test_weights_of_a_step_are_those_that_servers_have(page, server):
    """DeepSeek-V3 in 16 bits fits no H200: the first step takes eight, with FP8 in blocks, in one click."""
    open_page(page, f"{server}/compare?device=h200&model=deepseek-v3&quantizer=fp8&weights=bf16&batch=32")
    sync_api.expect(card(page)).to_contain_text("Does not fit")
    page.get_by_role("button", name=re.compile(r"Weights in fp8-block on 8 devices: fits")).click()
    idle(page)
    sync_api.expect(card(page)).to_contain_text("8 x h200")
    sync_api.expect(card(page)).to_contain_text("weights as released: fp8-block")


def test_what_people_type_finds_models_and_devices(page, server):
    open_page(page, f"{server}/compare")
    box = page.get_by_role("textbox", name="Find")
    box.fill("Llama 3.1 70B on 8x H200")
    box.press("Enter")
    idle(page)
    sync_api.expect(card(page)).to_contain_text("8 x h200, llama3.1-70b")
    sync_api.expect(page.get_by_test_id("stSidebar")).to_contain_text("Set: model llama3.1-70b, device h200, tp 8.")


#: the contrast of captions and of the words of figures
CONTRAST = Path(__file__).with_name("contrast.js").read_text()


def test_captions_and_the_words_of_figures_can_be_read(page, server):
    """WCAG 2, AA: 4.5 to 1, in both themes."""
    open_page(page, f"{server}/compare")
    wait_for_figure(page, "interactivity")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        there = "scheme => getComputedStyle(document.querySelector('.stApp')).colorScheme === scheme"
        page.wait_for_function(there, arg=scheme)
        idle(page)
        found = page.evaluate(CONTRAST)
        assert all(ratio >= 4.5 for ratio in found.values()), (scheme, found)
