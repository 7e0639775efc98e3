"""The answer in a real browser: its verdict, the command that says the same, and words that can be read."""

import re
from pathlib import Path

import pytest

from browser import idle, needs_browser, open_beside, open_page, sync_api, wait_for_figure

pytestmark = [needs_browser, pytest.mark.browser]


def test_the_verdict_stands_first_and_its_figure_says_by_which_command(page, server):
    open_page(page, f"{server}/?tpot_limit=40")
    wait_for_figure(page, "speeds")
    sync_api.expect(page.get_by_text(re.compile(r"^Take fp8\."))).to_be_visible()
    place = open_beside(page, "speeds")
    sync_api.expect(place.get_by_text("dse ask interactivity").first).to_be_visible()
    link = page.get_by_text(re.compile(rf"^{re.escape(server)}/\S*tpot_limit=40"))
    sync_api.expect(link.first).to_be_visible()


#: the contrast of captions and of the words of figures
CONTRAST = Path(__file__).with_name("contrast.js").read_text()


def test_captions_and_the_words_of_figures_can_be_read(page, server):
    """WCAG 2, AA: 4.5 to 1, in both themes."""
    open_page(page, server)
    wait_for_figure(page, "speeds")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        there = "scheme => getComputedStyle(document.querySelector('.stApp')).colorScheme === scheme"
        page.wait_for_function(there, arg=scheme)
        idle(page)
        found = page.evaluate(CONTRAST)
        assert all(ratio >= 4.5 for ratio in found.values()), (scheme, found)
