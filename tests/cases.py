"""Many small cases as one test, which lists all that are wrong."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def each(
    names: str | tuple[str, ...], cases: Iterable[Any], ids: Callable[[Any], str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """`pytest.mark.parametrize` as one test, for cases that say as little singly as together; two of them multiply.

    Fixtures are shared by all cases, but each has a `tmp_path` of its own. Fails after the last case, with a line for
    each that is wrong.
    """
    given, cases = (names,) if isinstance(names, str) else names, list(cases)

    def as_one(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            wrong, first, folder = [], None, fixtures.get("tmp_path")
            for number, case in enumerate(cases):
                if folder:
                    fixtures["tmp_path"] = folder / str(number)
                    fixtures["tmp_path"].mkdir()
                values = (case,) if isinstance(names, str) else case
                try:
                    test(**dict(zip(given, values, strict=True)), **fixtures)
                except (Exception, pytest.fail.Exception) as error:
                    first = first or error
                    label = ", ".join(ids(value) if ids else f"{value!r:.60}" for value in values)
                    wrong.append(f"{label}: {type(error).__name__}: {error}")
            if wrong:
                raise AssertionError(f"{len(wrong)} of {len(cases)}:\n" + "\n".join(wrong)) from first

        signature = inspect.signature(test)
        assert cases
        assert set(given) <= set(signature.parameters)
        left = [parameter for name, parameter in signature.parameters.items() if name not in given]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        del run.__wrapped__  # type: ignore[attr-defined]
        return run

    return as_one


def quick_first(n: int, names: str, cases: Iterable[Any], ids: Callable[[Any], str] | None = None) -> Any:
    """`pytest.mark.parametrize` with the first `n` cases in the quick tier and the others in the slow one."""
    is_one = "," not in names
    slow = [pytest.param(*((case,) if is_one else case), marks=pytest.mark.slow) for case in cases]
    return pytest.mark.parametrize(names, [*list(cases)[:n], *slow[n:]], ids=ids)
