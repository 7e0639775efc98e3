"""Oaken's memory management unit: pages of bytes per head, and writes rounded up to a burst (Oaken 5.2).

Bits are numerators over the plan's denominator, as in `kv_cache`; integers throughout. A row is one page (or one
burst) of every head at once: all heads hold as many bits, so one row stands for all of them.
"""

from dse.core.compiling import formula


@formula("bit", "ceil(n_tokens * token_bits / row_bits) * row_bits - n_tokens * token_bits", "Oaken 5.2")
def page_tail_bits(n_tokens: int, token_bits: int, row_bits: int) -> int:
    """Bits of last pages that `n_tokens` leave unused, `token_bits` of each in all heads. Valid for row_bits >= 1."""
    return (-n_tokens * token_bits) % row_bits


@formula("bit", "floor(n_tokens * token_bits / row_bits) * row_bits", "Oaken 5.2; textbook section 5 (prefix caching)")
def whole_page_bits(n_tokens: int, token_bits: int, row_bits: int) -> int:
    """Bits of the pages that `n_tokens` fill: what sequences with these tokens in common can share."""
    return n_tokens * token_bits // row_bits * row_bits


@formula("bit", "ceil(token_bits / row_bits) * row_bits", "Oaken 5.2: one token's slice a head, written in bursts")
def written_bits(token_bits: int, row_bits: int) -> int:
    """Bits that the memory takes to write one token. Valid for row_bits >= 1."""
    return -(-token_bits // row_bits) * row_bits


@formula("1", "sum over s = 1..n of ceil(s * token_bits / row_bits)", "lattice points under a line, by Euclid's steps")
def sum_of_rows(n_tokens: int, token_bits: int, row_bits: int) -> int:
    """Rows in use, summed over the lengths 1..n_tokens; exact in integers, in as few steps as a greatest divisor.

    Counts floor((slope * i + first) / unit) over i = 0 .. count - 1: whole parts of slope and first are taken out as
    triangles and rectangles, then the axes are exchanged, so that the line gets steeper and the count smaller.
    """
    count, slope, first, unit = n_tokens, token_bits, token_bits + row_bits - 1, row_bits
    total = 0
    while count > 0:
        total = total + (slope // unit) * (count * (count - 1) // 2) + (first // unit) * count
        slope, first = slope % unit, first % unit
        highest = slope * count + first
        count, first = highest // unit, highest % unit
        slope, unit = unit, slope
    return total


@formula("bit", "row_bits * sum of rows - token_bits * n * (n + 1) / 2", "Oaken 5.2")
def sum_of_page_tail_bits(n_tokens: int, token_bits: int, row_bits: int) -> int:
    """Unused bits of last pages, summed over the lengths 1..n_tokens; exact in integers."""
    used = token_bits * (n_tokens * (n_tokens + 1) // 2)
    return row_bits * sum_of_rows(n_tokens, token_bits, row_bits) - used


@formula("1", "bytes the memory takes / bytes packed, of one token", "Oaken 5.2")
def write_amplification(written: int, packed: int) -> float:
    """Ratio of the bytes written for one token, rounded up to bursts, to its packed bytes; 1 without rounding."""
    return written / packed


@formula(
    "bit", "ceil(log2(pages of the memory)) + ceil(log2(page_bytes + 1))", "Oaken 5.2: a mapping and a transfer size"
)
def table_entry_bits(capacity_bytes: int, page_bytes: int) -> int:
    """Bits of an entry of the management tables, one a page: where it lies, and how many of its bytes are filled.

    Oaken prints no width: these are the fewest that tell all pages of the memory, and 0 to all bytes of one, apart.
    """
    bits = 0
    while 2**bits * page_bytes < capacity_bytes:
        bits += 1
    filled = 0
    while 2**filled < page_bytes + 1:
        filled += 1
    return bits + filled
