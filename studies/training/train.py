"""Train one of the shipped language models: python studies/training/train.py mha --out runs/mha (see README.md).

Stopping at any moment (kill -9 too) loses at most the minutes since the last checkpoint; the same command goes on.
Several processes share the windows of a step (--processes 2, each with its --rank): the same steps, faster.
"""

import argparse
import csv
import os
import sys
import time
from pathlib import Path

import numpy as np
import text
import torch
from torch import distributed
from torch.nn import functional

import model

WINDOWS, LENGTH = 8, 512  # windows of a step and their tokens, BOS first
DECAY_LENGTH = 1024  # tokens of a window while the rate decays, as many tokens a step: the model learns to look further
PEAK_RATE, WARMUP_STEPS = 2e-3, 300
WEIGHT_DECAY = 0.1  # on matrices; norms and the embedding have none
BETAS, CLIP_NORM = (0.9, 0.98), 1.0
LOG_STEPS, CHECKPOINT_S = 50, 180
HELD_OUT_WINDOWS = 16


def rate(step: int, steps: int, decay_steps: int) -> float:
    """Learning rate: linear warm-up, then constant, then to zero as 1 - sqrt over the last decay_steps."""
    left = max(0, step - (steps - decay_steps)) / decay_steps
    return PEAK_RATE * min(1.0, (step + 1) / WARMUP_STEPS) * (1.0 - left**0.5)


def windows(content: np.ndarray, count: int, length: int, generator: np.random.Generator) -> torch.Tensor:
    """[count, length + 1] tokens: BOS, then bytes from anywhere in the text."""
    starts = generator.integers(0, len(content) - length, count)
    tokens = np.stack([content[start : start + length] for start in starts]).astype(np.int64)
    return torch.from_numpy(np.concatenate((np.full((count, 1), model.BOS), tokens), axis=1))


def loss_of(network: model.Transformer, tokens: torch.Tensor) -> torch.Tensor:
    """Mean nats per byte."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = network(tokens[:, :-1])
    return functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


def save(content: object, path: Path) -> None:
    """Write beside and rename, so that path is always a whole checkpoint."""
    beside = path.with_suffix(".writing")
    torch.save(content, beside)
    os.replace(beside, path)


def keep_rows(path: Path, step: int) -> None:
    """Forget the curve's rows after the checkpoint that training resumes from."""
    if path.is_file():
        with path.open(newline="") as handle:
            rows = list(csv.reader(handle))
        rows = rows[:1] + [row for row in rows[1:] if len(row) == len(rows[0]) and int(row[0]) <= step]
        with path.open("w", newline="") as handle:
            csv.writer(handle, lineterminator="\n").writerows(rows)


def shared(loss: torch.Tensor, network: model.Transformer, processes: int) -> float:
    """The loss; with several processes, gradients and loss become the means over all of them."""
    if processes == 1:
        return loss.item()
    gradients = [weight.grad for weight in network.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients] + [loss.detach().reshape(1)])
    distributed.all_reduce(flat)
    flat /= processes
    parts = flat.split([gradient.numel() for gradient in gradients] + [1])
    for gradient, part in zip(gradients, parts, strict=False):
        gradient.copy_(part.view_as(gradient))
    return flat[-1].item()


def start_from(network: model.Transformer, path: Path) -> None:
    """Take another shape's weights: where heads of keys and values are fewer, each is the mean of those it stands for.

    So GQA is made from MHA and trained on (arXiv:2305.13245, section 2.1).
    """
    stored = torch.load(path, weights_only=True)
    head = network.shape["head_dim"]
    weights = stored["weights"]
    for name, own in network.state_dict().items():
        if weights[name].shape != own.shape:
            n_heads = own.shape[0] // head
            weights[name] = weights[name].view(n_heads, -1, head, own.shape[1]).mean(1).reshape(own.shape)
    network.load_state_dict(weights)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=model.SHAPES)
    parser.add_argument("--out", type=Path, required=True, help="folder of checkpoint.pt and curve.csv")
    parser.add_argument("--library", type=Path, default=Path(os.__file__).parent, help=f"Lib of CPython {text.CPYTHON}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--decay-steps", type=int, default=2000, help="last steps, in which the rate falls to zero")
    parser.add_argument("--start", type=Path, help="another shape's checkpoint to begin with")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1, choices=(1, 2, 4))
    parser.add_argument("--rank", type=int, default=0, help="of this process, from 0")
    parser.add_argument("--port", type=int, default=29511, help="on this machine, where the processes meet")
    chosen = parser.parse_args()
    if chosen.processes > 1:
        distributed.init_process_group(
            "gloo", f"tcp://127.0.0.1:{chosen.port}", rank=chosen.rank, world_size=chosen.processes
        )
    torch.set_num_threads(chosen.threads)
    chosen.out.mkdir(parents=True, exist_ok=True)
    checkpoint, curve = chosen.out / "checkpoint.pt", chosen.out / "curve.csv"
    train, held_out = text.read(chosen.library, "train"), text.read(chosen.library, "held_out")
    probe = windows(held_out, HELD_OUT_WINDOWS, LENGTH, np.random.default_rng(0))
    network = model.Transformer(model.SHAPES[chosen.shape])
    network.initialise(chosen.seed)
    if chosen.start:
        start_from(network, chosen.start)
    matrices = [weight for name, weight in network.named_parameters() if weight.ndim == 2 and name != "embedding"]
    others = [weight for name, weight in network.named_parameters() if weight.ndim == 1 or name == "embedding"]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_RATE, betas=BETAS, fused=True)
    first, seconds = 0, 0.0
    if checkpoint.is_file():
        stored = torch.load(checkpoint, weights_only=True)
        network.load_state_dict(stored["weights"])
        optimizer.load_state_dict(stored["optimizer"])
        first, seconds = stored["step"], stored["seconds"]
        decayed = stored["decay_from"]
        if first > chosen.steps - chosen.decay_steps and decayed != chosen.steps - chosen.decay_steps:
            sys.exit(
                f"{checkpoint}: at step {first}, the decay would have begun: give --steps of at least "
                f"{first + chosen.decay_steps}"
            )
    if chosen.rank == 0:
        keep_rows(curve, first)
    decay_from = chosen.steps - chosen.decay_steps

    def write_checkpoint(step: int) -> None:
        state = {
            "weights": network.state_dict(),
            "optimizer": optimizer.state_dict(),
            "step": step,
            "seconds": seconds,
            "decay_from": decay_from,
            "shape": chosen.shape,
            "seed": chosen.seed,
        }
        save(state, checkpoint)

    begun, saved, losses = time.monotonic() - seconds, time.monotonic(), []
    with (curve if chosen.rank == 0 else Path(os.devnull)).open("a", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        if chosen.rank == 0 and curve.stat().st_size == 0:
            writer.writerow(("step", "tokens", "rate", "train_nats_per_byte", "held_out_nats_per_byte", "seconds"))
        for step in range(first, chosen.steps):
            length = LENGTH if step < decay_from else DECAY_LENGTH
            generator = np.random.default_rng((chosen.seed, step))
            tokens = windows(train, WINDOWS * LENGTH // length, length, generator)
            loss = loss_of(network, tokens[chosen.rank :: chosen.processes])
            loss.backward()
            losses.append(shared(loss, network, chosen.processes))
            torch.nn.utils.clip_grad_norm_(network.parameters(), CLIP_NORM)
            for group in optimizer.param_groups:
                group["lr"] = rate(step, chosen.steps, chosen.decay_steps)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            seconds = time.monotonic() - begun
            done = step + 1
            if chosen.rank:
                continue
            if done % LOG_STEPS == 0 or done == chosen.steps:
                probed = ""
                if done % (5 * LOG_STEPS) == 0 or done == chosen.steps:
                    with torch.no_grad():
                        probed = f"{loss_of(network, probe).item():.4f}"
                shown = f"{rate(step, chosen.steps, chosen.decay_steps):.3e}"
                writer.writerow(
                    (done, done * WINDOWS * LENGTH, shown, f"{np.mean(losses):.4f}", probed, f"{seconds:.0f}")
                )
                handle.flush()
                losses = []
            if time.monotonic() - saved > CHECKPOINT_S or done in (decay_from, chosen.steps):
                write_checkpoint(done)
                saved = time.monotonic()


if __name__ == "__main__":
    main()
