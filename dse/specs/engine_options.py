"""Options of engines that no command here takes: whose they are, and why each changes nothing."""

from functools import cache
from pathlib import Path

import hwspecs
from dse.core import specfile

_FILE = Path(hwspecs.__file__).parent / "options.toml"
_NOT_MODELED = "(docs/explanation/not-modeled.md)"
#: by group of hwspecs/options.toml: what to say of an option
_REASONS = {
    "quiet": "changes no memory and no time of a step: leave it out",
    "towers": "is not modeled: towers take memory alone; leave it out, or give --no-tower where none is loaded",
    "lora": f"is not modeled: adapters take no memory and no time here {_NOT_MODELED}: leave it out",
    "pools": f"is not modeled: each server computes prompts and answers {_NOT_MODELED}: leave it out",
    "drafts": "is not modeled: give drafts by --speculative-config, as vLLM takes it, or leave it out",
    "host": (
        "is not modeled: --kv-offload keeps keys and values in host memory, --cpu-offload-gb weights; give one of "
        "these, or leave it out"
    ),
    "replicas": "is not modeled: each replica is a design of its own; give --dp-attention for attention alone",
    "other": f"is not modeled {_NOT_MODELED}: leave it out, or take its effect from a measurement",
}
#: options with a next step of their own
_INSTEAD = {
    "--quantization": "give the format by --weights, or name the checkpoint",
    "--dtype": "give the format by --weights, such as bf16",
    "--data-parallel-size": "each replica is a design of its own; for attention alone --tp with --dp-attention",
    "--enable-expert-parallel": "give --ep, as many as --tp",
    "--limit-mm-per-prompt": "--no-tower leaves the image tower out",
    "--kv-cache-dtype": "give --quantizer, such as fp8",
    "--cache-type-k": "give --key-quantizer, such as q8_0",
    "--cache-type-v": "give --value-quantizer, such as q8_0",
    "--speculative-algorithm": 'give --speculative-config \'{"method": "eagle", "num_speculative_tokens": 3}\'',
    "--override-tensor": "give --n-cpu-moe, the layers whose experts stay in host memory",
    "--cpu-moe": "give --n-cpu-moe, as many as the model has layers",
    "--swap-space": f"it is not modeled {_NOT_MODELED}",
    "--ctx-size": (
        "give the context of a slot, -c over -np, by --input and --output, slots by --batch with --admission reserve"
    ),
    "--enable-dp-attention": "give --dp-attention",
    "--enable-attention-dp": "give --dp-attention",
}
#: short or other spellings of these
_SPELLINGS = {
    "-q": "--quantization",
    "-dp": "--data-parallel-size",
    "--dp-size": "--data-parallel-size",
    "--dp": "--data-parallel-size",
    "-ep": "--enable-expert-parallel",
    "-ctk": "--cache-type-k",
    "-ctv": "--cache-type-v",
    "--speculative-algo": "--speculative-algorithm",
    "-c": "--ctx-size",
    "-ot": "--override-tensor",
    "-cmoe": "--cpu-moe",
}


@cache
def _known() -> dict[str, tuple[str, str]]:
    """Engine and group by option; the first engine that has it."""
    found: dict[str, tuple[str, str]] = {}
    for engine, groups in specfile.read(_FILE).data.items():
        for group, names in groups.items():
            if group in _REASONS:
                found |= {name: (engine, group) for name in names.split() if name not in found}
    return found


def answer(option: str) -> str:
    """The line for an option of an engine, with its dashes; "" for one that no engine has."""
    name = _SPELLINGS.get(option, option)
    if instead := _INSTEAD.get(name):
        return f"is an engine's: {instead}"
    engine, group = _known().get(name) or _known().get(name.replace("--no-", "--", 1), ("", ""))
    return f"of {engine} {_REASONS[group]}" if engine else ""
