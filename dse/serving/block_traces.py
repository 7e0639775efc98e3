"""Traces that say what prompts share: files with a JSON object a line, as Mooncake published its own.

Each line has `timestamp` (ms), `input_length`, `output_length` (tokens) and `hash_ids`: one number for each block of
the prompt, equal where the block and all before it are (https://github.com/kvcache-ai/Mooncake, FAST25-release/traces).
"""

from array import array
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from dse.core import files, specfile
from dse.core.errors import InputError, LimitError, show
from dse.core.field import check_whole
from dse.core.progress import Progress
from dse.serving.requests import MAX_TOKENS, Ints, PromptBlocks, Requests

ENDING = ".jsonl"
FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")
MAX_LINE_BYTES = 2**24
MAX_MILLISECONDS = 1e13


def read(path: str, progress: Progress | None = None, max_requests: int = 20_000_000) -> Requests:
    """The requests in order of arrival, with their blocks. Raises InputError naming the line, LimitError."""
    file, _ = files.open_regular(path, "the path of a .jsonl file")
    times: list[float] = []
    inputs: list[int] = []
    outputs: list[int] = []
    ids, counts = array("q"), array("q")  # of a long trace, lists would take five times the memory
    own_lines = iter(partial(file.readline, MAX_LINE_BYTES + 1), b"")  # a longer line is not read whole
    with file, progress(own_lines, label="trace", length=None) if progress else nullcontext(own_lines) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            time, n_in, n_out, prompt_ids = _row(f"{path}:{number}", line)
            times.append(time)
            inputs.append(n_in)
            outputs.append(n_out)
            ids.extend(prompt_ids)
            counts.append(len(prompt_ids))
            if len(times) > max_requests:
                raise LimitError(f"{path}: more than {max_requests:,} requests: give a shorter trace")
    if not times:
        raise InputError(f"{path}: is empty: give a line for each request")
    lengths, n_blocks = np.array(inputs, np.int64), np.array(counts, np.int64)
    block_tokens = _block_tokens(path, lengths, n_blocks)
    order = np.argsort(np.array(times), kind="stable")
    first = np.concatenate(([0], np.cumsum(n_blocks)))
    place = np.arange(first[-1]) - np.repeat(first[:-1], n_blocks) + 1
    ends = np.minimum(place * block_tokens, np.repeat(lengths, n_blocks))
    blocks = PromptBlocks(first, np.array(ids, np.int64), ends)
    arrival_s = (np.array(times)[order] - min(times)) / 1e3
    return Requests(arrival_s, lengths[order], np.array(outputs, np.int64)[order], blocks.take(order))


def _row(where: str, line: bytes) -> tuple[float, int, int, list[int]]:
    """Milliseconds, tokens of prompt and answer, and blocks of one line. Raises InputError."""
    if len(line) > MAX_LINE_BYTES:
        raise InputError(f"{where}: has more than {MAX_LINE_BYTES:,} bytes: give a JSON object a line")
    try:
        row: Any = specfile.load_json(line.decode())
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise InputError(f"{where}: must be a JSON object with {', '.join(FIELDS)}")
    for name in FIELDS:
        if name not in row:
            csv = ": without blocks give a .csv file (`dse simulate --help`)" if name == "hash_ids" else ""
            raise InputError(f"{where}: {name} is missing: each line has {', '.join(FIELDS)}{csv}")
    time, n_in, n_out, ids = (row[name] for name in FIELDS)
    if isinstance(time, bool) or not isinstance(time, int | float) or not 0 <= time <= MAX_MILLISECONDS:
        raise InputError(f"{where}: timestamp = {show(time)}: must be milliseconds from 0 to {MAX_MILLISECONDS:g}")
    for name, tokens in (("input_length", n_in), ("output_length", n_out)):
        check_whole(f"{where}: {name}", tokens, 1, MAX_TOKENS)
    is_list = isinstance(ids, list) and bool(ids)
    if not is_list or not all(type(block) is int and -(2**63) <= block < 2**63 for block in ids):
        raise InputError(f"{where}: hash_ids = {show(ids)}: must be whole numbers, one for each block of the prompt")
    return float(time), n_in, n_out, ids


def _block_tokens(path: str, inputs: Ints, counts: Ints) -> int:
    """The tokens of a block: the one power of two by which every prompt has as many blocks as it names."""
    for power in range(23):
        size = 2**power
        if (-(-inputs // size) == counts).all():
            return size
    longest = int(inputs.argmax())
    n, n_blocks = int(inputs[longest]), int(counts[longest])
    raise InputError(
        f"{path}: hash_ids: {n_blocks:,} for a prompt of {n:,} tokens: no block of 1, 2, 4, ... tokens gives every "
        "prompt as many blocks as it names; name one for each block, the last, shorter one too"
    )
