"""Names of devices as people, shops and servers write them, `NVIDIA H100-SXM5-80GB`, and the shipped one meant.

Makers, series and words that every device of a series has are left out; all else of a name must agree. A mistyped name
is never guessed: it is answered by the names that are one letter away.
"""

import re
from functools import cache

from dse.core.errors import MIN_START, did_you_mean, is_one_slip

#: makers, series, and what all devices of a series are called
IGNORED = frozenset(
    {
        "nvidia",
        "amd",
        "google",
        "intel",
        "habana",
        "aws",
        "amazon",
        "apple",
        "geforce",
        "rtx",
        "instinct",
        "radeon",
        "tensor",
        "core",
        "gpu",
        "cloud",
        "hgx",
    }
)
#: other names of shipped devices; 80 GB of an H100 are the SXM5 board's unless the name says PCIe
ALSO = {
    "h100-sxm": "h100",
    "h100-sxm5": "h100",
    "h100-80gb": "h100",
    "h100-sxm-80gb": "h100",
    "h100-sxm5-80gb": "h100",
    "h100-80gb-hbm3": "h100",
    "h100-pcie-80gb": "h100-pcie",
    "h100-nvl-94gb": "h100-nvl",
    "h200-sxm": "h200",
    "h200-sxm-141gb": "h200",
    "h200-141gb": "h200",
    "h20-96gb": "h20",
    "a100-sxm4-80gb": "a100-80gb",
    "a100-sxm-80gb": "a100-80gb",
    "a100-80gb-sxm": "a100-80gb",
    "a100-sxm4-40gb": "a100-40gb",
    "a100-sxm-40gb": "a100-40gb",
    "a100-40gb-sxm": "a100-40gb",
    "a100-80gb-pcie": "a100-pcie-80gb",
    "a100-40gb-pcie": "a100-pcie-40gb",
    "a800": "a800-80gb",
    "a800-sxm4-80gb": "a800-80gb",
    "gh200": "gh200-96gb",
    "gh200-hbm3e": "gh200-144gb",
    "rtx-6000-ada-generation": "rtx-6000-ada",
    "rtx-pro-6000-blackwell": "rtx-pro-6000",
    "rtx-pro-6000-blackwell-server-edition": "rtx-pro-6000",
    "gb10": "dgx-spark",
    "trillium": "tpu-v6e",
    "ironwood": "tpu-v7",
    "tpu7x": "tpu-v7",
    "trn2": "trainium2",
    "lpu": "lpu-hbm",
    "oaken": "oaken-hbm",
    "tender": "tender-a100",
}


def plain(name: str) -> str:
    """A name without makers and series, in one way of writing: nvidia/RTX 4090 -> 4090."""
    words = [word for word in re.split(r"[\s._/-]+", name.strip().lower()) if word]
    return "".join(word for word in words if word not in IGNORED)


def meant(name: str, shipped: tuple[str, ...]) -> str | None:
    """The one of the shipped devices that a name means, or None."""
    return _by_plain_name(shipped).get(plain(name))


@cache
def _by_plain_name(shipped: tuple[str, ...]) -> dict[str, str]:
    return {plain(also): to for also, to in ALSO.items() if to in shipped} | {plain(name): name for name in shipped}


def near(name: str, shipped: tuple[str, ...]) -> str:
    """A hint for an unknown name: all devices that continue it or are one letter away, else those of `did_you_mean`."""
    by_plain, asked = _by_plain_name(shipped), (name.strip().lower(), plain(name))
    longer = [one for one in shipped if len(asked[1]) >= MIN_START and plain(one).startswith(asked[1])]
    whole = {one: one for one in shipped} | by_plain
    near = (to for known, to in whole.items() if any(is_one_slip(one, known) for one in asked))
    hits = list(dict.fromkeys([*longer, *near]))
    if hits:
        return f"did you mean {', '.join(hits)}?"
    other = did_you_mean(name, shipped)
    return "see `dse list devices`" if other.startswith("known") else other
