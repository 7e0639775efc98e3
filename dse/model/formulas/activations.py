"""Memory of activations: how many tokens of a request are worked on at once, and how wide they are."""

from dse.core.compiling import formula


@formula("token", "min(chunk, max(min(s, I), s - O)); s without a KV cache", "docs/explanation/model.md, Capacity")
def activation_tokens(n_tokens: int, input_tokens: int, output_tokens: int, chunk_tokens: int) -> int:
    """Tokens of one request whose activations are live at a context of `n_tokens`: a chunk of its prompt.

    Beyond I + O (as when the longest context is sought) the prompt is what the O generated tokens leave.
    """
    return min(chunk_tokens, max(min(n_tokens, input_tokens), n_tokens - output_tokens))


@formula(
    "B",
    "max(max(2 * prompt_budget * layer_elements, logit_bytes * sequences * vocab) + 2 * prompt_budget * (kept_elements)"
    ", image_bytes)",
    "docs/explanation/model.md, Memory of a server: 16-bit values of a layer, or logits and their copies, which come "
    "after it; copies of the hidden states and the buffers of fused experts stay; or the largest image",
)
def prompt_bytes(
    prompt_budget_tokens: int,
    layer_elements: int,
    n_sequences: int,
    vocab_size: int,
    logit_bytes: int,
    kept_elements: int,
    image_bytes: int,
) -> int:
    """Bytes of the largest step that a server measures before it lays out its memory: prompts fill the budget, and
    logits are those of the sequences that run, one row each; `kept_elements` of a token stay beside both. The tower is
    measured before, with the largest image."""
    widest = max(2 * prompt_budget_tokens * layer_elements, logit_bytes * n_sequences * vocab_size)
    return max(widest + 2 * prompt_budget_tokens * kept_elements, image_bytes)


@formula(
    "B",
    "2 * image_elements * (tower_copies + split_tower_copies / tp)",
    "docs/explanation/model.md, Memory of a server: 16-bit values of a tower for the largest image, of which devices "
    "share those inside attention and feed-forwards",
)
def image_bytes(image_elements: int, tower_copies: float, split_tower_copies: float, tp: int) -> int:
    """Bytes of the values that the tower of images holds at once on each of `tp` devices."""
    return int(2 * image_elements * (tower_copies + split_tower_copies / tp))


@formula(
    "element",
    "n_active_experts * (max(2 * width / tp, hidden) + width / tp)",
    "buffers of fused experts (vllm/model_executor/layers/fused_moe): products of gate and up or of down, and what "
    "lies between; within 8 % of the logs of five mixtures",
)
def expert_elements(n_active_experts: int, width: int, hidden_size: int) -> int:
    """Elements of a token in the buffers of fused experts, each of them `width` wide on a device."""
    return n_active_experts * (max(2 * width, hidden_size) + width)


@formula(
    "B",
    "max(ceil(n_tokens * activation_elements * activation_bits / 8), 2 * n_tokens * logits_elements)",
    "docs/explanation/model.md, Capacity: logits and the residual beside them stay FP16",
)
def activation_bytes(n_tokens: int, activation_elements: int, logits_elements: int, activation_bits: int) -> int:
    """Bytes of the widest operation of a layer, or the output head, over `n_tokens` tokens; exact in integers."""
    return max(-((-n_tokens * activation_elements * activation_bits) // 8), 2 * n_tokens * logits_elements)
