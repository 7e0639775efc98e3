"""The error types a user can meet; each shows as one line (or one line per problem of a file)."""

import difflib
import unicodedata
from collections.abc import Iterable

MAX_LINE = 300
MAX_VALUE = 80
#: letters from which on a word may be the start of a name
MIN_START = 3
#: problems of one file that are listed; more are counted
MAX_PROBLEMS = 100


class DseError(Exception):
    """Something the user can act on. `exit_status` is what the command line returns."""

    exit_status = 1

    def lines(self) -> list[str]:
        """The message, cleaned and cut, one entry per problem."""
        return [clean(str(self), MAX_LINE)]


class InputError(DseError):
    """A value, name or file that cannot be used."""

    exit_status = 2


class SpecError(InputError):
    """All problems of one spec file, each a line of its own."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(self.problems))

    def lines(self) -> list[str]:
        return [clean(problem, MAX_LINE) for problem in self.problems]


class BusyError(DseError):
    """Something that another process is using."""

    exit_status = 3


class OutputError(DseError):
    """A file or directory that cannot be written."""

    exit_status = 4


class ClusterError(DseError):
    """Work that a cluster did not do, a line for each thing; what is finished stays, the same command goes on."""

    exit_status = 4

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(self.problems))

    def lines(self) -> list[str]:
        return [clean(problem, MAX_LINE) for problem in self.problems]


class LimitError(DseError):
    """A request beyond a stated limit."""

    exit_status = 5


def clean(text: str, limit: int) -> str:
    """One printable line: control and direction-changing characters escaped, cut at `limit`."""
    head = text[: limit + 1]  # no character becomes less than one
    text = "".join(c if c.isprintable() and unicodedata.category(c) != "Cf" else ascii(c)[1:-1] for c in head)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def told(error: Exception) -> tuple[list[str], int]:
    """The lines and the exit status of any error; one that nobody foresaw asks to be reported."""
    if isinstance(error, DseError):
        return error.lines(), error.exit_status
    if isinstance(error, MemoryError):
        what = f" ({error})" if str(error) else ""
        line, status = f"out of memory{what}: ask for fewer designs, tokens or layers at once", LimitError.exit_status
    elif isinstance(error, OSError):
        line, status = str(error), OutputError.exit_status
    else:
        line, status = f"unexpected {type(error).__name__}: {error}: please report it; --debug shows where", 1
    return [clean(line, MAX_LINE)], status


def show(value: object) -> str:
    """A value as it appears in a message: its repr, cleaned and cut at 80 characters."""
    try:
        text = repr(value)
    except ValueError:  # an int of more digits than Python is willing to print
        text = "a number of more than 4,300 digits"
    return clean(text, MAX_VALUE)


def install(extra: str) -> str:
    """The command that installs an extra of pyproject.toml, from a copy of the files or a wheel alike."""
    return f"pip install 'kv-dse[{extra}]'"


#: names that were -> what they are called now
RENAMED = {
    "steady_tpot_s": "tpot_s",
    "steady_ttft_s": "ttft_s",
    "--chunk": "--prompt-budget",
    "--prompt-batch": "--prompt-budget",
}


def did_you_mean(word: str, known: Iterable[str], n: int = 3) -> str:
    """'did you mean a, b?' for the nearest known names, else the list of all of them.

    Names that go on as the word does come first, the shortest of them before others; then those of one slip.
    """
    names, typed = {name.lower(): name for name in sorted(known)}, word[:MAX_LINE].lower()
    if (now := RENAMED.get(typed)) in names:
        return f"it is now {now}"
    goes_on = [lower for lower in names if len(typed) >= MIN_START and lower.startswith(typed)]
    longer = [names[lower] for lower in sorted(goes_on, key=len)[:n]]
    slips = [name for lower, name in names.items() if is_one_slip(typed, lower)]
    near = [names[match] for match in difflib.get_close_matches(typed, names, n=n, cutoff=0.6)]
    hits = list(dict.fromkeys([*longer, *slips, *near]))[: max(n, len(slips))]
    return f"did you mean {', '.join(hits)}?" if hits else f"known: {', '.join(names.values())}"


def is_one_slip(typed: str, name: str) -> bool:
    """True if one letter is missing, too many or another one, or if two neighbours changed places."""
    if len(typed) == len(name):
        at = [place for place, pair in enumerate(zip(typed, name, strict=True)) if pair[0] != pair[1]]
        swapped = len(at) == 2 and at[1] == at[0] + 1 and typed[at[0]] + typed[at[1]] == name[at[1]] + name[at[0]]
        return len(at) == 1 or swapped
    short, long = sorted((typed, name), key=len)
    return len(long) == len(short) + 1 and any(long[:place] + long[place + 1 :] == short for place in range(len(long)))
