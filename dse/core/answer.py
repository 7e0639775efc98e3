"""Answers that print as their text: of the questions, and the results of a design, a run, scores."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import pandas as pd


class Answer(ABC):
    """An answer of a Python function; printed, or shown by a notebook, it is its text."""

    #: its figure, with what `dse.plot` takes, which stands above answers and is set by it (dse/api.py)
    plot: ClassVar[Callable[..., Any]]

    @property
    @abstractmethod
    def table(self) -> "pd.DataFrame":
        """The rows of the answer, in SI base units."""

    @abstractmethod
    def text(self) -> str:
        """The answer as people read it."""

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.text()


class Rows(Answer, list[dict[str, Any]]):
    """A list of rows that prints as a text of them."""

    def __init__(self, rows: Iterable[dict[str, Any]], text: str) -> None:
        super().__init__(rows)
        self._text = text

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (list(self), self._text)

    @property
    def table(self) -> "pd.DataFrame":
        """The rows as a table."""
        import pandas as pd

        return pd.DataFrame(list(self))

    def text(self) -> str:
        """The rows as people read them."""
        return self._text
