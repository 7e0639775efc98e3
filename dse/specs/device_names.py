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
        "tesla",
        "jetson",
        "agx",
    }
)
#: makers and series that people write without a space before a number: rtx4090
_GLUED = re.compile(r"(?:nvidia|geforce|rtx|radeon|tesla|instinct)(?=a?[0-9])")
#: devices and a name: 8xh100, 8x H200, 4 * A100-80GB
_COUNTED = re.compile(r"([1-9][0-9]{0,3})\s*[xX*]\s*(?=[A-Za-z])(.+)")
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
    "h200-sxm5": "h200",
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
    "rtx-pro-6000-96gb": "rtx-pro-6000",
    "rtx-3090-24gb": "rtx-3090",
    "rtx-4090-24gb": "rtx-4090",
    "rtx-5090-32gb": "rtx-5090",
    "l4-24gb": "l4",
    "l20-48gb": "l20",
    "l40s-48gb": "l40s",
    "t4-16gb": "t4",
    "v100": "v100-32gb",
    "v100-sxm2": "v100-32gb",
    "v100-sxm2-32gb": "v100-32gb",
    "v100-sxm2-16gb": "v100-16gb",
    "thor": "jetson-thor",
    "jetson-agx-thor-t5000": "jetson-thor",
    "mi300x-oam": "mi300x",
    "mi325x-oam": "mi325x",
    "mi355x-oam": "mi355x",
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
    words = [_GLUED.sub("", word) for word in re.split(r"[\s._/-]+", name.strip().lower()) if word]
    return "".join(word for word in words if word not in IGNORED)


def meant(name: str, shipped: tuple[str, ...]) -> str | None:
    """The one of the shipped devices that a name means, or None."""
    return _by_plain_name(shipped).get(plain(name))


def counted(name: str) -> tuple[int, str] | None:
    """The number of devices and the name of one, where a name says both: 8xh100 -> 8, h100."""
    found = _COUNTED.fullmatch(name.strip())
    return (int(found[1]), found[2]) if found else None


def others(name: str, shipped: tuple[str, ...]) -> list[str]:
    """The shipped devices that a name might mean as well as the one that it is taken for; none of an own name."""
    asked = plain(name)
    if not asked or asked in {plain(one) for one in shipped} or meant(name, shipped) is None:
        return []
    return [one for one in shipped if plain(one).startswith(asked) and one != meant(name, shipped)]


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
