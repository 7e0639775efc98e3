"""Compare in a real browser: the plot of speeds with its verdict, and words that can be read."""

import re
from pathlib import Path

import pytest

from browser import idle, needs_browser, open_beside, open_page, sync_api, wait_for_figure

pytestmark = [needs_browser, pytest.mark.browser]


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
