"""Twelve tasks of new users in a real browser, by the keyboard alone, each with the actions that it takes: controls
pressed, and fields filled in.

Before the tray they took 8 to 17; each bar is at most half of that. That Tab reaches the controls in their order is
tested in test_explorer_browser_pages.py.
"""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from browser import (
    ROOT,
    STILL,
    choose,
    dump_bytes,
    idle,
    needs_browser,
    new_page,
    opened_as,
    sync_api,
    uploader,
    wait_for_figure,
)

pytestmark = [needs_browser, pytest.mark.browser]


#: the control that an element is a part of
_CONTROL = """e => e.closest("a, button, summary, input, label")?.querySelector("input") ??
    e.closest("a, button, summary, input")"""


class Hand:
    """Does what a user does, and counts it."""

    def __init__(self, page):
        self.page, self.n_actions = page, 0

    def open(self, address):
        self.page.goto(address)
        self.page.get_by_role("heading", level=1).wait_for()
        idle(self.page)

    def press(self, target):
        """Press a control, which Tab can reach, with the key that it takes."""
        self.n_actions += 1
        control = target.first.evaluate_handle(_CONTROL).as_element()
        control.focus()
        assert control.evaluate("e => e === document.activeElement && e.tabIndex >= 0"), target
        self.page.keyboard.press("Space" if control.get_attribute("type") == "checkbox" else "Enter")
        idle(self.page)

    def button(self, name, exact=False):
        self.press(self.page.get_by_role("button", name=name, exact=exact))

    def link(self, name):
        self.press(self.page.get_by_role("link", name=name))
        self.page.get_by_role("heading", level=1).wait_for()
        idle(self.page)

    def fill(self, label, text, role="textbox"):
        self.n_actions += 1
        field = self.page.get_by_role(role, name=label).first
        field.fill(text)
        field.press("Enter")
        idle(self.page)

    def choose(self, label, option, place="stSidebar"):
        self.n_actions += 2  # open, choose
        choose(self.page.get_by_test_id(place), label, option, by_keys=True)

    def give(self, field, name, content):
        self.n_actions += 1
        sync_api.expect(field).to_have_count(1)  # one that was used gives way to a new one
        field.set_input_files({"name": name, "mimeType": "application/octet-stream", "buffer": content})
        idle(self.page)

    def card(self, place=1):
        return self.page.locator(f".st-key-card-{place}")


@pytest.fixture
def hand(page, server):
    found = Hand(page)
    found.open(server)
    return found


def test_a_does_it_fit(hand):
    """70B with FP8 keys and values, 32 requests of 32K tokens, on one H200: no, by its memory; on two, yes."""
    hand.button("Does it fit?")
    sync_api.expect(hand.card(1)).to_contain_text("llama3.1-70b, KV fp8")
    sync_api.expect(hand.card(1)).to_contain_text("Exceeds memory: at most")
    sync_api.expect(hand.card(2)).to_contain_text("2 x h200")
    assert hand.n_actions <= 1


def test_b_three_formats_on_an_h100(hand):
    hand.link("Compare")
    hand.press(hand.page.get_by_text("Change all designs"))
    hand.choose("Device", "h100")
    for place, name in ((1, "KV fp16"), (2, "KV fp8"), (3, "KV int4_per_token_head")):
        sync_api.expect(hand.card(place)).to_contain_text(f"h100, qwen3-32b, {name}")
    assert hand.n_actions <= 4


CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 2048,
    "vocab_size": 1000,
}


def test_c_a_model_and_a_device_of_ones_own(hand):
    hand.link("Compare")
    hand.press(hand.page.get_by_text("Load a device, model, plan or measurement"))
    field = uploader(hand.page, "stSidebar")
    hand.give(field, "config.json", json.dumps(CONFIG).encode())
    hand.page.get_by_text("model config").wait_for()
    hand.give(field, "own.toml", (ROOT / "hwspecs" / "devices" / "h100.toml").read_bytes())
    sync_api.expect(hand.card(1)).to_contain_text("own.toml, config.json, KV fp16")
    assert hand.n_actions <= 4


def test_d_from_which_batch_on(hand):
    hand.link("Formats")
    hand.page.get_by_text("it is ahead ").first.wait_for()  # in a sentence, unasked
    assert hand.n_actions <= 1
    hand.press(hand.page.get_by_text("From which batch and prompt on"))
    wait_for_figure(hand.page, "cross-0")
    assert hand.n_actions <= 2


def test_e_a_number_changed_with_the_old_one_beside(hand):
    hand.link("Compare")
    hand.button("Duplicate")
    sync_api.expect(hand.page.get_by_test_id("stSidebar").get_by_role("radio")).to_have_count(4)  # the copy is chosen
    hand.fill("Tensor parallel", "2", role="spinbutton")
    sync_api.expect(hand.card(1)).to_contain_text("h200, qwen3-32b, KV fp16")
    sync_api.expect(hand.card(2)).to_contain_text("2 x h200, qwen3-32b, KV fp16, tp 2")
    sync_api.expect(hand.card(2)).to_contain_text("%")
    assert hand.n_actions <= 3


def test_f_a_front_under_an_error_limit_as_a_file(hand):
    hand.link("Front")
    hand.fill("Error of the attention output, at most (%)", "10", role="spinbutton")
    hand.page.get_by_text("beyond the limits").wait_for()
    wait_for_figure(hand.page, "front")
    hand.press(hand.page.locator(".st-key-front-beside").get_by_role("button"))
    with hand.page.expect_download() as caught:
        hand.button("CSV", exact=True)
    found = pd.read_csv(Path(caught.value.path()))
    assert found["measured_error"].max() <= 0.1
    assert found["tpot_s"].max() <= 0.1
    assert hand.n_actions <= 4


def test_g_a_figure_for_a_paper(hand):
    hand.link("Compare")
    wait_for_figure(hand.page, "throughput")
    idle(hand.page)
    hand.press(hand.page.locator(".st-key-throughput-beside").get_by_role("button"))
    with hand.page.expect_download() as caught:
        hand.button("PDF", exact=True)
    opened_as("PDF", Path(caught.value.path()))
    assert hand.n_actions <= 5


def test_h_share(hand, profile):
    hand.link("Compare")
    hand.fill("Batch (requests)", "8", role="spinbutton")
    hand.page.wait_for_url("**batch=8")
    other = new_page(profile.browser, **STILL)  # of another profile: the address is all that it has
    try:
        other.goto(hand.page.url)
        sync_api.expect(other.locator(".st-key-card-1")).to_contain_text("Fits: all 8 requests at once")
    finally:
        other.close()
    assert hand.page.url.endswith("/compare?batch=8")  # short: the default costs nothing
    assert hand.n_actions <= 2


def test_i_undo(hand):
    hand.link("Compare")
    hand.button("Delete")
    sync_api.expect(hand.page.locator("[class*=st-key-card]")).to_have_count(2)
    hand.link("Formats")
    hand.button("Undo")
    assert hand.n_actions <= 4
    sync_api.expect(hand.page.get_by_test_id("stSidebar").get_by_role("radio")).to_have_count(3)


def test_j_how_sure(hand):
    hand.page.get_by_text("kernels timed").first.wait_for()  # on the first screen
    hand.link("Compare")
    sync_api.expect(hand.card(2)).to_contain_text("with a chance of 99 %")
    assert hand.n_actions <= 1


def test_k_a_formula(hand):
    hand.link("Compare")
    hand.press(hand.page.get_by_text("Every number, and where it comes from"))
    step = hand.page.get_by_role("button", name=re.compile(r"^1: [\d.]+ ms")).first
    step.wait_for()
    hand.press(step)
    hand.page.get_by_test_id("stPopoverBody").get_by_text("decode_step_s = ").first.wait_for()
    assert hand.n_actions <= 3


def test_l_a_dump_of_ones_own(hand):
    hand.link("Lab")
    hand.press(hand.page.get_by_text("Load a KV dump"))
    hand.give(uploader(hand.page), "own.npz", dump_bytes())
    hand.page.get_by_text("own.npz, 1 layers").wait_for()
    assert hand.n_actions <= 3
