"""Results of one design as `dse.evaluate` returns them: a dict, with attributes, units, a table, and a text."""

import html
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dse.core.answer import Answer
from dse.core.errors import MIN_START, did_you_mean, show
from dse.model import uncertainty
from dse.model.results import RESULT_UNITS, RESULTS
from dse.questions.serve_command import ServeCommand

if TYPE_CHECKING:
    import pandas as pd

#: a line of a section of a point's text: words, and their value in a column of its own
_LINE = re.compile(r" {2,}(\S.*?) {2,}(\S.*)")
#: between two sections
_BETWEEN = "\n\n"
#: of results that nothing but a dict stands behind
_NO_COMMAND = ServeCommand("")
_STYLE = "text-align:left;padding:1px 12px"


def as_said(results: Mapping[str, Any]) -> dict[str, Any]:
    """Results as they are printed: an answer of one token has no time between tokens."""
    return {**results, **({"tpot_s": None} if results["output_tokens"] == 1 else {})}


class DesignResults(Answer, dict[str, Any]):
    """Results of one design, in SI base units (times in s, sizes in B): a dict whose entries are attributes too.

    `found.decode_step_s` is `found["decode_step_s"]`, None for what does not apply: times where nothing fits.
    `found.unit(name)` is its unit, `found.table` all of them with units, intervals and words, `found.to_dict()` a plain
    dict, `found.command` the command line that starts the design. Printed, it is the text of `dse point`; a notebook
    shows that as a table.
    """

    def __init__(
        self,
        results: Mapping[str, Any],
        text: str | Callable[[], str] = "",
        command: ServeCommand | Callable[[], ServeCommand] = _NO_COMMAND,
    ) -> None:
        """`text` is what `dse point` prints of them, or gives it once it is asked for; so is `command`."""
        super().__init__(results)
        self._text, self._command = text, command

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles take text and command along, not the design that they are made from."""
        return type(self), (dict(self), self.text(), self.command)

    @property
    def command(self) -> ServeCommand:
        """The command line that starts the design on its engine, and what it leaves out."""
        if not isinstance(self._command, ServeCommand):
            self._command = self._command()
        return self._command

    def __missing__(self, name: str) -> Any:
        raise KeyError(_unknown(name))

    if not TYPE_CHECKING:  # the attributes that there are stand in dse/__init__.pyi, so that editors see a wrong one

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):  # notebooks and copies try names of their own
                raise AttributeError(name)
            if name not in self:
                raise AttributeError(_unknown(name))
            return self[name]

    def __dir__(self) -> list[str]:
        """Names that editors complete: the results, and what a dict has."""
        return sorted({*super().__dir__(), *self})

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def unit(self, name: str) -> str:
        """The base unit of a result; "" for names and yes/no. Raises KeyError with the nearest names."""
        if name not in RESULT_UNITS:
            raise KeyError(_unknown(name))
        return RESULT_UNITS[name]

    def to_dict(self) -> dict[str, Any]:
        """Return the results as a plain dict of their own."""
        return dict(self)

    @cached_property
    def table(self) -> "pd.DataFrame":
        """A row a result: name, value, unit, the ends of its interval (8 of 10 measurements lie inside), words."""
        import pandas as pd

        ends = uncertainty.as_numbers(self)
        rows = [
            (name, value, RESULT_UNITS[name], *ends.get(name, (None, None)), RESULTS[name].title)
            for name, value in self.items()
        ]
        return pd.DataFrame(rows, columns=["result", "value", "unit", "low", "high", "title"])

    def text(self) -> str:
        """Return the text of `dse point`."""
        if not isinstance(self._text, str):
            self._text = self._text()
        return self._text

    def _repr_html_(self) -> str:
        """The text as a table, each of its sections under a head."""
        return f"<table>{''.join(row for part in self.text().split(_BETWEEN) for row in _section_html(part))}</table>"


def _section_html(part: str) -> Iterator[str]:
    """The rows of a section of a text: its head, and lines of words and a value."""
    head, *lines = map(html.escape, part.splitlines())
    tag = "th" if lines else "td"
    yield f'<tr><{tag} colspan="2" style="{_STYLE}">{head.strip()}</{tag}></tr>'
    for line in lines:
        indent = f"{_STYLE};padding-left:{6 * (len(line) - len(line.lstrip()))}px"
        if match := _LINE.fullmatch(line):
            yield f'<tr><td style="{indent}">{match[1]}</td><td style="{_STYLE}">{match[2]}</td></tr>'
        else:
            yield f'<tr><td colspan="2" style="{indent}">{line.strip()}</td></tr>'


def _unknown(name: Any) -> str:
    """Message on a name that is no result's, with the nearest names."""
    near = did_you_mean(str(name), RESULT_UNITS)
    if near.startswith("known: "):
        words = [word for word in str(name).lower().split("_") if len(word) >= MIN_START]
        like = [
            res.name for res in RESULTS.values() if any(word in f"{res.name} {res.title}".lower() for word in words)
        ]
        near = f"did you mean {', '.join(like[:4])}?" if like else "dse.results has them all"
    return f"unknown result {show(name)}: {near}"
