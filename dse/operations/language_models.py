"""Run a language model that one has: dump."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dse.core.field import TOKENS, WHOLE
from dse.operations.declare import SILENT, Console, operation, option
from dse.operations.shared import Printed, json_option

if TYPE_CHECKING:
    from dse.transformer.dump import WrittenDump

#: tokens of a text that are read
N_TOKENS = 2048


@operation("dump", "Keys, values and queries of a language model on a text.", indent=None)
class DumpModel(Printed):
    """Run a text through a language model and write the keys, values and queries of every layer as a KV dump.

    The model is a GGUF file, or a directory with config.json, *.safetensors and tokenizer.json as Hugging Face has
    them; nothing in it is executed. Llama, Mistral, Qwen 2 and 3, Gemma 2 and 3 and Phi-3 are run, in numpy. The
    dump is FP16, and `dse measure`, `dse lab` and `dse quantize` read it.
    """

    model: str = option(help="The model: a .gguf file or a Hugging Face directory.", metavar="FILE|DIR")
    text_file: str = option(help="The text, UTF-8; its first tokens are taken.", name="text", metavar="FILE")
    out: str = option(help="The dump.", metavar="FILE.safetensors")
    tokens: int = option(N_TOKENS, "Tokens of the text.", TOKENS)
    rope: str = option("after", "Keys and queries after RoPE, as caches hold them, or before.", metavar="after|before")
    queries: int | None = option(None, "Queries of the last tokens; default: of all.", WHOLE)
    as_json: bool = json_option("Print what was written as JSON.")

    def run(self, console: Console = SILENT) -> WrittenDump:
        """The dump that was written."""
        from dse.transformer import dump, load, tokenizer

        model = load.load(self.model)
        context = model.architecture.context_tokens
        tokens = tokenizer.tokens_of(self.text_file, model.encode, self.tokens, context, model.name)
        return dump.write(model, tokens, self.out, self.rope, self.queries, Path(self.text_file).name, console.bar)
