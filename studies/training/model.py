"""The decoder-only transformer in torch: RoPE, RMSNorm, gated MLP, no QK normalisation, tied embedding.

``studies/forward.py`` is the same network in numpy; tests hold the two together.
"""

import math

import torch
from torch import nn
from torch.nn import functional

BOS = 256
N_TOKENS = 257  # the 256 bytes and BOS
SHAPES = {
    "mha": {"d_model": 256, "n_layers": 6, "n_q_heads": 4, "n_kv_heads": 4, "head_dim": 64, "d_ff": 832},
    "gqa": {"d_model": 256, "n_layers": 6, "n_q_heads": 4, "n_kv_heads": 2, "head_dim": 64, "d_ff": 832},
}
ROPE_BASE = 10_000.0
NORM_EPSILON = 1e-5
BLOCK = 128  # queries attended at a time


def rope_tables(n_positions: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [n_positions, head_dim / 2] of RoPE, which turns channel i with channel i + head_dim / 2."""
    rates = ROPE_BASE ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.arange(n_positions, dtype=torch.float64)[:, None] * rates
    return angles.cos().float(), angles.sin().float()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """RoPE of [batch, heads, positions, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Causal attention of scaled queries [batch, n_q, positions, head_dim] over n_kv heads; mask [BLOCK, BLOCK].

    By blocks of queries, so that the half that causality hides is mostly not computed; the query heads of one KV head
    are stacked as rows, so that keys and values are not copied for each.
    """
    batch, n_q, length, head = q.shape
    n_kv = k.shape[1]
    rows = q.reshape(batch * n_kv, n_q // n_kv, length, head)
    keys = k.reshape(batch * n_kv, length, head).transpose(1, 2)
    values = v.reshape(batch * n_kv, length, head)
    mixed = []
    for start in range(0, length, BLOCK):
        stop = min(start + BLOCK, length)
        block = rows[:, :, start:stop].reshape(batch * n_kv, -1, head)
        scores = torch.bmm(block, keys[:, :, :stop]).view(-1, n_q // n_kv, stop - start, stop)
        hidden = functional.pad(mask[: stop - start, : stop - start], (start, 0)).to(scores.dtype)
        weights = torch.softmax(scores + hidden, dim=-1).to(values.dtype).view(batch * n_kv, -1, stop)
        mixed.append(torch.bmm(weights, values[:, :stop]).view(batch, n_q, stop - start, head))
    return torch.cat(mixed, dim=2)


class Layer(nn.Module):
    def __init__(self, shape: dict[str, int]):
        super().__init__()
        d, head = shape["d_model"], shape["head_dim"]
        self.n_q, self.n_kv, self.head = shape["n_q_heads"], shape["n_kv_heads"], head
        self.attention_norm = nn.Parameter(torch.ones(d))
        self.mlp_norm = nn.Parameter(torch.ones(d))
        self.q = nn.Linear(d, self.n_q * head, bias=False)
        self.k = nn.Linear(d, self.n_kv * head, bias=False)
        self.v = nn.Linear(d, self.n_kv * head, bias=False)
        self.o = nn.Linear(self.n_q * head, d, bias=False)
        self.gate = nn.Linear(d, shape["d_ff"], bias=False)
        self.up = nn.Linear(d, shape["d_ff"], bias=False)
        self.down = nn.Linear(shape["d_ff"], d, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        h = functional.rms_norm(x, x.shape[-1:], self.attention_norm, NORM_EPSILON)
        q = self.q(h).view(batch, length, self.n_q, self.head).transpose(1, 2)
        k = self.k(h).view(batch, length, self.n_kv, self.head).transpose(1, 2)
        v = self.v(h).view(batch, length, self.n_kv, self.head).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = attend(q * (1 / math.sqrt(self.head)), k, v, mask)
        x = x + self.o(mixed.transpose(1, 2).reshape(batch, length, -1))
        h = functional.rms_norm(x, x.shape[-1:], self.mlp_norm, NORM_EPSILON)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class Transformer(nn.Module):
    def __init__(self, shape: dict[str, int]):
        super().__init__()
        self.shape = shape
        self.embedding = nn.Parameter(torch.empty(N_TOKENS, shape["d_model"]))
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape["n_layers"]))
        self.final_norm = nn.Parameter(torch.ones(shape["d_model"]))

    def initialise(self, seed: int) -> None:
        """Normal weights, 0.02 wide; what writes to the residual stream narrower by sqrt(2 n_layers), as in GPT-2."""
        generator = torch.Generator().manual_seed(seed)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                narrow = math.sqrt(2 * len(self.layers)) if ".o." in name or ".down." in name else 1.0
                nn.init.normal_(weight, std=0.02 / narrow, generator=generator)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits [batch, positions, N_TOKENS] of tokens [batch, positions]."""
        length = tokens.shape[1]
        cos, sin = rope_tables(length, self.shape["head_dim"])
        mask = torch.full((BLOCK, BLOCK), -torch.inf).triu(1)
        x = functional.embedding(tokens, self.embedding)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        x = functional.rms_norm(x, x.shape[-1:], self.final_norm, NORM_EPSILON)
        return functional.linear(x, self.embedding)
