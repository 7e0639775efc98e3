"""Releases of serving software as numbers that can be ordered, and the days on which they came out.

Days are those of hwspecs/releases.toml: of PyPI's first file of a release.
"""

import datetime
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path

import hwspecs
from dse.core import specfile

_DATES = Path(hwspecs.__file__).parent / "releases.toml"
#: no release, or one without numbers: the newest
NEWEST = (99,)
#: days
WEEK = 7


@lru_cache(maxsize=1024)
def release_of(text: str) -> tuple[int, ...]:
    """A release as numbers: 0.20.2rc1 is (0, 20, 2); the newest where it names none."""
    match = re.match(r"[vb]?(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in match[1].split(".")) if match else NEWEST


@cache
def dates(stack: str) -> Mapping[str, datetime.date]:
    """The day of each listed release of a stack; none of one that is not listed."""
    days: dict[str, datetime.date] = specfile.read(_DATES).data.get(stack, {})
    return days


@cache
def listed(stack: str, release: str) -> str:
    """The release itself where its day is known; else the last of those that are not newer by their numbers, or the
    oldest; "" for a stack without days. Without a release, or one without numbers, it is the newest."""
    days = dates(stack)
    if release in days or not days:
        return release if days else ""
    older = [name for name in days if release_of(name) <= release_of(release)]
    return max(older, key=lambda name: (release_of(name), days[name])) if older else min(days, key=days.__getitem__)


def weeks_between(stack: str, first: str, second: str) -> float:
    """Weeks from the day of one release to that of another, below 0 where the other is older; 0 where the stack's days
    are not known."""
    names = [listed(stack, release) for release in (first, second)]
    if not all(names):
        return 0.0
    days = dates(stack)
    return (days[names[1]] - days[names[0]]).days / WEEK
