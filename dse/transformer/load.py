"""A model by its path: a GGUF file or a Hugging Face directory."""

from pathlib import Path

from dse.core.errors import InputError, show
from dse.transformer import gguf_file, hugging_face
from dse.transformer.checkpoint import Checkpoint


def load(path: str) -> Checkpoint:
    """A .gguf file or a Hugging Face directory. Raises InputError for others and for models that cannot be run."""
    if "\0" not in path and Path(path).is_dir():
        return hugging_face.load(path)
    if path.lower().endswith(".gguf"):
        return gguf_file.load(path)
    raise InputError(f"model = {show(path)}: must be a .gguf file, or a directory with config.json and .safetensors")
