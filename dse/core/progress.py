"""A progress bar around items, for work that takes seconds."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

#: progress(items, label=..., length=...) -> a context manager that gives the items one by one
Progress = Callable[..., AbstractContextManager[Any]]


def each(items: Sequence[Any], progress: Progress | None, label: str) -> Iterator[Any]:
    """The items one by one, behind a progress bar where one is wanted."""
    if progress is None:
        yield from items
        return
    with progress(items, label=label, length=len(items)) as shown:
        yield from shown
