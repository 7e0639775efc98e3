"""The .safetensors format: an 8-byte length, a JSON header, then the values without a hole.

Format: huggingface/safetensors, README "Format". The library is not used: `safe_open` maps the file into memory, where
one that is cut short while it is read ends the process (SIGBUS), and `deserialize` takes the whole file as bytes and
copies it, whatever it asks for.
"""

import re
from typing import Any

from dse.core import specfile
from dse.core.errors import show
from dse.measure.dumps.source import DumpSource
from dse.measure.dumps.stored import DumpLimits, DumpTensor, StoredTensor, check_name, check_shape, check_total

MAX_HEADER = 4 * 2**20
MAX_TENSORS = 100_000
MAX_DEPTH = 4
_DTYPES = {"F16": "fp16", "BF16": "bf16", "F32": "fp32"}
_KEYS = {"dtype", "shape", "data_offsets"}
_AGAIN = "copy the file or write it again"


def stored(source: DumpSource, limits: DumpLimits) -> list[StoredTensor]:
    """The tensors of a .safetensors file in the order of its header. Raises InputError and LimitError."""
    header, start = _header(source)
    source.metadata = _metadata(source, header.pop("__metadata__", {}))
    if len(header) > MAX_TENSORS:
        raise source.limit(f"has {len(header):,} tensors: at most {MAX_TENSORS:,} are read: split it")
    entries = [(_tensor(source, name, entry), entry["data_offsets"]) for name, entry in header.items()]
    _check_extents(source, entries, source.size - start)
    check_total(source, sum(tensor.stored_bytes for tensor, _ in entries), limits)
    return [_stored(source, tensor, start + offsets[0]) for tensor, offsets in entries]


def _stored(source: DumpSource, tensor: DumpTensor, start: int) -> StoredTensor:
    return StoredTensor(tensor, lambda: source.blocks(start, tensor.stored_bytes))


def parse_json(text: str) -> Any:
    """JSON of little depth without repeated names, NaN or Infinity. Raises ValueError and RecursionError."""
    depth = 0
    for bracket in re.finditer(r"[\[\]{}]", re.sub(r'"(?:\\.|[^"\\])*"?', "", text)):
        depth += 1 if bracket.group() in "[{" else -1
        if depth > MAX_DEPTH:
            raise ValueError(f"it nests more than {MAX_DEPTH} deep")
    return specfile.load_json(text)


def _header(source: DumpSource) -> tuple[dict[str, Any], int]:
    """The header as plain data, and the byte at which the values start."""
    if source.size < 8:
        raise source.error(f"has {source.size:,} bytes, too few for a .safetensors file: {_AGAIN}")
    length = int.from_bytes(source.read(0, 8), "little")
    if length > MAX_HEADER:
        text = f"header length = {length:,} bytes: at most {MAX_HEADER:,} are read: is it a .safetensors file?"
        raise source.error(text)
    if 8 + length > source.size:
        raise source.error(f"has {source.size:,} bytes, its header alone takes {8 + length:,}: {_AGAIN}")
    try:
        header = parse_json(source.read(8, length).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise source.error(f"its header is not valid JSON: {show(str(error))}: {_AGAIN}") from error
    if not isinstance(header, dict):
        raise source.error(f"its header is a {type(header).__name__}: must be a JSON object: {_AGAIN}")
    return header, 8 + length


def _metadata(source: DumpSource, metadata: Any) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise source.error(f"__metadata__ = {show(metadata)}: must map names to text: {_AGAIN}")
    return metadata


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _tensor(source: DumpSource, name: str, entry: Any) -> DumpTensor:
    check_name(source, name)
    if not isinstance(entry, dict) or set(entry) != _KEYS:
        raise source.error(f"its entry {show(entry)} must have {', '.join(sorted(_KEYS))}: {_AGAIN}", name)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise source.error(f"dtype {show(dtype)}: must be F16, BF16 or F32: save it as one of these", name)
    if not isinstance(shape, list) or not all(_is_count(n) for n in shape):
        raise source.error(f"shape = {show(shape)}: must be whole numbers below 2^63: {_AGAIN}", name)
    check_shape(source, name, tuple(shape))
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_count(n) for n in offsets):
        raise source.error(f"data_offsets = {show(offsets)}: must be two whole numbers below 2^63: {_AGAIN}", name)
    tensor = DumpTensor(name, _DTYPES[dtype], tuple(shape))
    if offsets[1] - offsets[0] != tensor.stored_bytes:
        text = f"data_offsets = {show(offsets)}: shape {show(shape)} of {dtype} takes {tensor.stored_bytes:,} bytes"
        raise source.error(f"{text}: {_AGAIN}", name)
    return tensor


def _check_extents(source: DumpSource, entries: list[tuple[DumpTensor, list[int]]], n_bytes: int) -> None:
    """The values of one tensor follow those of the one before, and the last one ends the file."""
    end = 0
    for tensor, (first, last) in sorted(entries, key=lambda entry: entry[1]):
        if first != end:
            kind = "overlap" if first < end else "leave a hole behind"
            text = f"data_offsets = [{first}, {last}] {kind} the values before: must start at {end}"
            raise source.error(f"{text}: {_AGAIN}", tensor.name)
        end = last
    if end != n_bytes:
        raise source.error(f"has {n_bytes:,} bytes of values, its header describes {end:,}: {_AGAIN}")
