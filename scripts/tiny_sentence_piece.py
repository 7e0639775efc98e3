"""Write tests/data/sentence_piece.json: pieces and scores of a small SentencePiece model, and texts as its tokens.

Needs sentencepiece, which the project does not: ref/bin/pip install sentencepiece (0.2.3); ref/bin/python
scripts/tiny_sentence_piece.py. Trained on this repository's LICENSE; settings as Llama 2's: BPE, byte fallback.
"""

import json
import tempfile
from pathlib import Path

import sentencepiece

ROOT = Path(__file__).parents[1]
OUT = ROOT / "tests" / "data" / "sentence_piece.json"
TEXTS = ("You may reproduce and distribute copies.", "  two  spaces, a\nline", "déjà vu 1234 \u4f60", "x")


def main() -> None:
    """Train, encode, write."""
    with tempfile.TemporaryDirectory() as folder:
        sentencepiece.SentencePieceTrainer.train(
            input=str(ROOT / "LICENSE"),
            model_prefix=f"{folder}/m",
            vocab_size=500,
            model_type="bpe",
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            split_digits=True,
        )
        model = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/m.model")
    n = model.get_piece_size()
    found = {
        "pieces": [model.id_to_piece(i) for i in range(n)],
        "scores": [model.get_score(i) for i in range(n)],
        "texts": {text: model.encode(text) for text in TEXTS},
    }
    OUT.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
