"""Fifteen tasks of new users in a real browser, by the keyboard alone, in at most three actions each: controls pressed,
and fields filled in; each ends in the number that `dse` gives.

That Tab reaches the controls in their order is tested in test_explorer_browser_pages.py.
"""

import json
import re
from pathlib import Path

import pytest

import dse
from browser import ROOT, STILL, choose, idle, needs_browser, new_page, opened_as, sync_api, uploader, wait_for_figure
from dse.core.units import plain

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

    def choose(self, label, option):
        self.n_actions += 2  # open, choose
        choose(self.page.get_by_test_id("stMain"), label, option, by_keys=True)

    def name(self, label, text):
        """Type a name that a list may not have."""
        self.n_actions += 1
        field = self.page.get_by_role("combobox", name=label).first
        field.focus()
        field.fill(text)
        field.press("Enter")
        idle(self.page)

    def ask(self, text):
        self.fill("Ask", text)
        self.page.get_by_text(re.compile("^Set: ")).wait_for()

    def says(self, text):
        """The verdict, the table's lines or the opened row hold a text."""
        sync_api.expect(self.page.get_by_test_id("stMain").get_by_text(text).first).to_be_visible()

    def give(self, field, name, content):
        self.n_actions += 1
        sync_api.expect(field).to_have_count(1)  # one that was used gives way to a new one
        field.set_input_files({"name": name, "mimeType": "application/octet-stream", "buffer": content})
        idle(self.page)

    def rows(self):
        """The table of designs, as who cannot see its canvas has it."""
        table = self.page.locator(".st-key-designs table").first
        table.wait_for(state="attached")
        return [row.inner_text() for row in table.locator("tr").all()]


@pytest.fixture
def hand(page, server):
    found = Hand(page)
    found.open(server)
    yield found
    assert found.n_actions <= 3


def device_rate(**asked):
    """Tokens a second of a device, as a page says it."""
    result = dse.evaluate(**asked)
    return plain(result["throughput_tokens_per_s"] / result["n_devices"], digits=3)


def best(device, quantizer, tpot_ms=50, ttft_s=2, model="qwen3-32b", n_devices=1):
    """Tokens a second of a device within limits, as `dse ask interactivity` finds them."""
    answer = dse.interactivity(
        device, model, quantizers=[quantizer], splits=[n_devices], max_tpot=f"{tpot_ms} ms", max_ttft=f"{ttft_s} s"
    )
    return plain(answer.best["throughput_tokens_per_s"] / answer.best["n_devices"], digits=3)


def test_a_does_it_fit(hand):
    """70B in 16 bits on one H200: no, by its memory; what would make it fit stands below."""
    hand.ask("Llama 3.1 70B on H200, 32k in, 1k out, 32 at once")
    hand.says("No design runs here.")
    hand.says("Weights in fp8")


def test_b_which_format(hand):
    hand.says("Take fp8.")
    hand.says(f"{best('h200', 'fp8')} tok/s a device")


def test_c_three_designs_on_another_gpu(hand):
    hand.choose("Device", "h100")
    rows = hand.rows()
    for name in ("fp16", "fp8", "int4_per_token_head"):
        assert any(name in row and best("h100", name) in row for row in rows), name


def test_d_sixteen_bits_against_eight_bits_of_weights(hand):
    hand.name("Add a model", "Qwen/Qwen3-32B-FP8")
    hand.page.get_by_text("1 more in the designs.").wait_for()
    assert len(hand.rows()) == 1 + 4
    hand.says("sure to be more")


def test_e_two_gpus(hand):
    hand.choose("Add a GPU", "b200")
    assert any("b200" in row and best("b200", "fp16") in row for row in hand.rows())


def test_f_best_within_limits(hand):
    hand.fill("TPOT ≤ (ms)", "30", role="spinbutton")
    hand.says(f"{best('h200', 'fp8', tpot_ms=30)} tok/s a device")


def test_g_a_rate(hand):
    hand.ask("20 requests/s on h100")
    hand.link("Size")
    hand.says(re.compile("^Run .* USD an hour; .* sure to keep TPOT 50 ms and TTFT 2 s"))


def test_h_sessions_of_agents(hand):
    hand.ask("100 agents within 40 ms")
    hand.says("sure to keep TPOT 40 ms")


def test_i_a_trace(hand):
    hand.link("Size")
    hand.press(hand.page.get_by_role("radio", name="Trace"))
    hand.give(uploader(hand.page), "own.csv", b"TIMESTAMP,ContextTokens,GeneratedTokens\n" + _TRACE)
    wait_for_figure(hand.page, "recommend")


LOG = (ROOT / "tests/validate/logs/vllm-0.19-llama-3.1-8b.log").read_bytes()
_TRACE = b"".join(b"2023-11-16 18:%02d:%02d.0,1024,128\n" % divmod(i, 60) for i in range(300))

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


def test_j_a_model_of_ones_own(hand):
    hand.button("Files")
    hand.give(uploader(hand.page, "stPopoverBody"), "config.json", json.dumps(CONFIG).encode())
    hand.page.get_by_text("model config: no problem").wait_for()
    hand.page.keyboard.press("Escape")
    hand.says("config.json")


def test_k_a_log_of_ones_own(hand):
    hand.link("Trust")
    hand.press(hand.page.get_by_role("radio", name="Your own"))
    hand.give(uploader(hand.page).first, "server.log", LOG)
    hand.says("of the log")


def test_l_what_if_a_number_of_the_device_were_another(hand):
    hand.button("Change this design")
    hand.press(hand.page.get_by_text("Numbers of the device"))
    hand.fill("Changed numbers of the device", "memory_bandwidth=9.6 TB/s")
    hand.says("what-if")


def test_m_the_error_of_a_quantizer(hand):
    hand.link("Why")
    hand.press(hand.page.get_by_role("radio", name="Quantization error"))
    wait_for_figure(hand.page, "bits")


def test_n_export(hand):
    wait_for_figure(hand.page, "speeds")
    hand.press(hand.page.locator(".st-key-speeds-beside").get_by_role("button"))
    with hand.page.expect_download() as caught:
        hand.button("PDF", exact=True)
    opened_as("PDF", Path(caught.value.path()))


def test_o_share(hand, profile):
    hand.fill("Requests at once", "8", role="spinbutton")
    hand.page.wait_for_url("**batch=8**")
    other = new_page(profile.browser, **STILL)  # of another profile: the address is all that it has
    try:
        other.goto(hand.page.url)
        sync_api.expect(other.locator(".st-key-opened")).to_contain_text("Fits: all 8 requests at once")
    finally:
        other.close()
