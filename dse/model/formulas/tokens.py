"""Tokens that a layer stores and that a decode step reads, under a window, an eviction policy or sparse reading.

Four numbers describe every policy (dse/specs/tokens.py): of a prompt all but `prompt_kept_tokens` are dropped once
it has been computed, `dropped_tokens` in all; `window_tokens` are stored at most, `read_limit_tokens` of them read.
"""

from dse.core.compiling import formula
from dse.model.formulas.kv_cache import padding_tokens, sum_of_kept_tokens, sum_of_pages

_WHERE = "docs/explanation/model.md, Tokens"


@formula("token", "max(min(s, kept of the prompt), s - dropped)", _WHERE)
def entered_tokens(n_tokens: int, prompt_kept_tokens: int, dropped_tokens: int) -> int:
    """Tokens that have come into a layer's cache at length `n_tokens`, whether or not a window still keeps them.

    A prompt shorter than `prompt_kept_tokens` is kept whole. A negative `dropped_tokens` with nothing kept of the
    prompt is a state that is there from the start.
    """
    return max(min(n_tokens, prompt_kept_tokens), n_tokens - dropped_tokens)


@formula("token", "shortest s with entered(s) >= n", _WHERE)
def length_of_entered(entered: int, prompt_kept_tokens: int, dropped_tokens: int) -> int:
    """Length at which `entered` tokens have come into the cache: the inverse of `entered_tokens`."""
    return entered if entered <= prompt_kept_tokens else entered + dropped_tokens


@formula("token", "min(entered(s), W)", _WHERE)
def stored_tokens(n_tokens: int, prompt_kept_tokens: int, dropped_tokens: int, window_tokens: int) -> int:
    """Tokens that a layer stores at length `n_tokens`."""
    return min(entered_tokens(n_tokens, prompt_kept_tokens, dropped_tokens), window_tokens)


@formula("token", "min(stored(s), k)", _WHERE)
def read_tokens(
    n_tokens: int, prompt_kept_tokens: int, dropped_tokens: int, window_tokens: int, read_limit_tokens: int
) -> int:
    """Tokens whose keys and values a decode step reads at length `n_tokens`."""
    return min(stored_tokens(n_tokens, prompt_kept_tokens, dropped_tokens, window_tokens), read_limit_tokens)


@formula("token", "sum over n = 1..entered of page_tokens * ceil(min(n, W) / page_tokens) - min(n, W)", _WHERE)
def sum_of_grown_padding_tokens(entered: int, window_tokens: int, page_tokens: int) -> int:
    """Unused slots of a layer's last page, summed while `entered` tokens come in one by one; exact in integers."""
    inside = min(entered, window_tokens)
    slots = page_tokens * (
        sum_of_pages(inside, page_tokens) + (entered - inside) * ((inside + page_tokens - 1) // page_tokens)
    )
    return slots - sum_of_kept_tokens(entered, window_tokens)


@formula("token", "sum over s = 1..n of the unused slots at stored(s) tokens", _WHERE)
def sum_of_padding_tokens(
    n_tokens: int, prompt_kept_tokens: int, dropped_tokens: int, window_tokens: int, page_tokens: int
) -> int:
    """Unused slots of a layer's last page summed over the lengths 1..n_tokens; exact in integers."""
    entered = entered_tokens(n_tokens, prompt_kept_tokens, dropped_tokens)
    before = entered_tokens(0, prompt_kept_tokens, dropped_tokens)
    grown = sum_of_grown_padding_tokens(entered, window_tokens, page_tokens)
    grown = grown - sum_of_grown_padding_tokens(before, window_tokens, page_tokens)
    still = min(max(n_tokens - prompt_kept_tokens, 0), max(dropped_tokens, 0))
    return grown + still * padding_tokens(min(prompt_kept_tokens, window_tokens), page_tokens)


@formula("bit", "16 * n_q_heads * head_dim^2 * trained", "test-time training (arXiv:2407.04620) 2.7")
def trained_bits(n_q_heads: int, head_dim: int, trained: int) -> int:
    """Bits of what test-time training trains in a layer: in each query head `trained` times head_dim x head_dim."""
    return 16 * n_q_heads * head_dim * head_dim * trained


@formula("token", "ceil(state_bits / token_bits)", "from one token more on the cache takes more bytes than the state")
def worth_tokens(state_bits: int, token_bits: int) -> int:
    """Tokens of a cache that take the bytes of a state."""
    return -(-state_bits // token_bits)
