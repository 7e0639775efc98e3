"""Names of devices as people, shops and servers write them, `NVIDIA H100-SXM5-80GB`, and the shipped one meant.

Makers, series and words that every device of a series has are left out; all else of a name must agree. A mistyped name
is never guessed: it is answered by the names that are one letter away.
"""

import difflib
import re
from functools import cache

from dse.core.errors import MIN_START, is_one_slip

#: every name of what ships, with the name of its file: names in `aliases` of the files, then the files' own
Names = tuple[tuple[str, str], ...]
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
        "huawei",
        "blackwell",
        "edition",
        "generation",
        "graphics",
        "oam",
        "vf",  # of a virtual machine, as ROCm prints it
    }
)
#: words that follow the name of a card for servers in the names of its other editions
EDITIONS = ("workstation", "maxq")
#: devices that a hint names at most
NEAREST = 5
#: remarks of drivers and people in brackets, (TM) and (GB10), but not a memory: (80GB)
_REMARK = re.compile(r"\((?![^)]*\d\s*gi?b)[^)]*\)", re.IGNORECASE)
#: makers and series that people write without a space before a number: rtx4090
_GLUED = re.compile(r"(?:nvidia|geforce|rtx|radeon|tesla|instinct)(?=a?[0-9])")
#: devices and a name, or the other way around: 8xh100, 8x H200, 4 * A100-80GB, 2 x 5090, H200 x8
_COUNTED = re.compile(r"([1-9][0-9]{0,3})\s*[xX*]\s*(?=[A-Za-z]|(?<=\s)[0-9])(.+)")
_COUNTED_BEHIND = re.compile(r"(.+?)\s+[xX*]\s*([1-9][0-9]{0,3})")


def plain(name: str) -> str:
    """A name without makers and series, in one way of writing: nvidia/RTX 4090 -> 4090."""
    bare = _REMARK.sub(" ", name).strip().lower()
    words = [_GLUED.sub("", word) for word in re.split(r"[\s._/()-]+", bare) if word]
    return "".join(word for word in words if word not in IGNORED)


def meant(name: str, names: Names) -> str | None:
    """The one of the shipped devices that a name means, or None."""
    return _by_plain_name(names).get(plain(name))


def counted(name: str) -> tuple[int, str] | None:
    """The number of devices and the name of one, where a name says both: 8xh100 -> 8, h100."""
    if match := _COUNTED.fullmatch(name.strip()):
        return int(match[1]), match[2]
    match = _COUNTED_BEHIND.fullmatch(name.strip())
    return (int(match[2]), match[1]) if match else None


def others(name: str, names: Names) -> list[str]:
    """The shipped devices that a name might mean as well as the one that it is taken for; none of an own name, but for
    editions where the name says none."""
    wanted, taken, shipped = plain(name), meant(name, names), _shipped(names)
    if taken is None:
        return []
    if editions := [device for device in shipped if plain(device) in {plain(taken) + edition for edition in EDITIONS}]:
        return [] if "server" in wanted else editions
    if wanted in {plain(device) for device in shipped}:
        return []
    return [device for device in shipped if plain(device).startswith(wanted) and device != taken]


@cache
def _by_plain_name(names: Names) -> dict[str, str]:
    return {plain(name): device for name, device in names}


def _shipped(names: Names) -> list[str]:
    return [name for name, device in names if name == device]


def near(name: str, names: Names) -> str:
    """A hint for an unknown name: devices with more words, one letter away, that continue it; else the most like it."""
    by_plain, spellings, shipped = _by_plain_name(names), (name.strip().lower(), plain(name)), _shipped(names)
    whole = {device: device for device in shipped} | by_plain
    worded = [device for device in shipped if device.startswith(f"{spellings[0]}-")]
    slips = [to for known, to in whole.items() if any(is_one_slip(spelling, known) for spelling in spellings)]
    longer = [device for device in shipped if len(spellings[1]) >= MIN_START and plain(device).startswith(spellings[1])]
    like = [*worded, *slips, *longer]
    if not like:
        like = [whole[known] for known in difflib.get_close_matches(spellings[1], whole, n=NEAREST)]
    hits = list(dict.fromkeys(like))[:NEAREST]
    return f"did you mean {', '.join(hits)}?" if hits else "see `dse list devices`"
