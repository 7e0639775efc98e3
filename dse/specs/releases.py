"""Releases of serving software as numbers that can be ordered."""

import re

#: no release, or one without numbers: the newest
NEWEST = (99,)


def release_of(text: str) -> tuple[int, ...]:
    """A release as numbers: 0.20.2rc1 is (0, 20, 2); the newest where it names none."""
    match = re.match(r"[vb]?(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in match[1].split(".")) if match else NEWEST
