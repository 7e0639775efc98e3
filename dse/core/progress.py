"""A progress bar around items, for work that takes seconds."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from dse.core.errors import LimitError

#: progress(items, label=..., length=...) -> a context manager that gives the items one by one
Progress = Callable[..., AbstractContextManager[Any]]
#: steps of one piece of work, each of which takes milliseconds or more
MAX_STEPS = 1_000_000


def each(items: Sequence[Any], progress: Progress | None, label: str) -> Iterator[Any]:
    """The items one by one, behind a progress bar where one is wanted. Raises LimitError before more than MAX_STEPS."""
    if len(items) > MAX_STEPS:
        raise LimitError(f"{label}: {len(items):,} at once: at most {MAX_STEPS:,}: ask for fewer")
    if progress is None:
        yield from items
        return
    with progress(items, label=label, length=len(items)) as shown:
        yield from shown
