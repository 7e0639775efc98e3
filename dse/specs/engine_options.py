"""Options of engines that no command here takes: whose they are, and why each changes nothing."""

from collections.abc import Iterable
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
    "--swap-space": f"it is not modeled {_NOT_MODELED}",
    "--flash-attn": "flash attention is counted, as auto and on mean it: leave it out",
    "--batch-size": "it takes no memory of its own: give -ub (--ubatch-size), whose activations do",
    "--split-mode": "layers over devices are --pp, one for each, rows or tensors --tp; none is one device",
    "--tensor-split": "--pp divides layers evenly: leave it out",
    "--no-kv-offload": "give --kv-offload 100%, keys and values in host memory",
    "--fit": "it lowers -ngl and -c to what fits: give these",
    "--model-draft": (
        'give --speculative-config \'{"method": "draft_model", "model": NAME, "num_speculative_tokens": 4}\''
    ),
    "--threads": "of the host, which is counted as measured: leave it out",
    "--n-predict": "give --output, the tokens of an answer",
    "--n-prompt": "give --input, the tokens of a prompt",
    "--n-depth": "give --input, the tokens before the answer",
    "--kv-unified": "slots share all cells where no -np is given: leave it out",
    "--kv-bits": "of mlx-lm: give --quantizer mlx:bits=4, or 8",
    "--kv-group-size": "of mlx-lm: give --quantizer mlx:bits=8,group=64",
    "--quantized-kv-start": "of mlx-lm: not modeled, all tokens of --quantizer mlx are quantized: leave it out",
    "--max-kv-size": "of mlx-lm: give --tokens streamingllm, which keeps the first and last ones",
    "--mla-use": "of ik_llama.cpp: latents alone are counted, as -mla 1 to 3 keep them: leave it out",
    "--fused-moe": "of ik_llama.cpp: its experts are counted as measured: leave it out",
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
    "-fa": "--flash-attn",
    "-b": "--batch-size",
    "-sm": "--split-mode",
    "-ts": "--tensor-split",
    "-nkvo": "--no-kv-offload",
    "-fit": "--fit",
    "-md": "--model-draft",
    "-t": "--threads",
    "-tb": "--threads",
    "--threads-batch": "--threads",
    "-n": "--n-predict",
    "--predict": "--n-predict",
    "-p": "--n-prompt",
    "-d": "--n-depth",
    "-kvu": "--kv-unified",
    "--no-kv-unified": "--kv-unified",
    "-mla": "--mla-use",
    "-fmoe": "--fused-moe",
    "-rtr": "--run-time-repack",
    "-amb": "--attention-max-batch",
}


#: options of one letter that commands take, and other options of engines begin with; of these, what commands take too
_LETTERS, _TAKEN = ("c", "m"), ("-ctk", "-ctv")
#: options of engines without a value -> the option and value that they stand for
_STAND_FOR = {
    "--cpu-moe": ("--n-cpu-moe", "all"),
    "-cmoe": ("--n-cpu-moe", "all"),
    "--swa-full": ("--swa-full-tokens-ratio", "1"),
    "--disable-hybrid-swa-memory": ("--swa-full-tokens-ratio", "1"),
}


def spelled_out(words: Iterable[str]) -> list[str]:
    """A command's words, options of engines that stand for a value written out."""
    return [word for typed in words for word in _STAND_FOR.get(typed.replace("_", "-"), (typed,))]


def is_cut(word: str) -> bool:
    """True for an option such as -cram, which a parser takes for -c with a value."""
    return word[:1] == "-" and word[1:2] in _LETTERS and len(word) > 2 and word not in _TAKEN and bool(answer(word))


@cache
def _known() -> dict[str, tuple[str, str]]:
    """Engine and group by option; the first engine that has it."""
    known: dict[str, tuple[str, str]] = {}
    for engine, groups in specfile.read(_FILE).data.items():
        for group, names in groups.items():
            if group in _REASONS:
                known |= {name: (engine, group) for name in names.split() if name not in known}
    return known


def answer(option: str) -> str:
    """The line for an option of an engine, with its dashes; "" for one that no engine has."""
    name = _SPELLINGS.get(option, option)
    if instead := _INSTEAD.get(name):
        return f"is an engine's: {instead}"
    engine, group = _known().get(name) or _known().get(name.replace("--no-", "--", 1), ("", ""))
    return f"of {engine} {_REASONS[group]}" if engine else ""
