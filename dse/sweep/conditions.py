"""Conditions that drop points of a sweep: comparisons over axis names, read by `ast` and never executed.

Allowed: names of axes, numbers, quoted names, + - * / // %, comparisons, `in` a list, and, or, not. Numbers are
compared as float64. A condition that names an axis which a point does not have (`oaken.outer <= 0.05` where the
quantizer is not Oaken) says nothing about that point: it stays.
"""

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse import quantizers
from dse.core.errors import InputError, did_you_mean, show
from dse.sweep.axes import QUANTIZER_AXES, SweepAxis

MAX_TEXT = 500
Mask = NDArray[np.bool_]
#: by axis: place of the point's value among the axis's values, -1 where the point has none
Digits = Mapping[str, NDArray[np.int32]]
_Term = Callable[[Digits], Any]

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: np.divide,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod,
}
_COMPARE = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_ALLOWED = "comparisons, and, or, not, in, + - * / // %, axis names, numbers and quoted names are allowed"


@dataclass(frozen=True)
class Condition:
    """One condition, ready to be applied to many points."""

    text: str
    #: axes that it names
    names: frozenset[str]
    _term: _Term

    def keep(self, digits: Digits) -> Mask:
        """Mask of the points that stay."""
        n = len(next(iter(digits.values())))
        with np.errstate(all="ignore"):  # x / 0 is inf or nan, which no comparison needs
            mask = np.broadcast_to(np.asarray(self._term(digits), dtype=bool), n)
        applies = np.ones(n, dtype=bool)
        for name in self.names:
            applies &= digits[name] >= 0
        return mask | ~applies


def parse(text: str, axes: Sequence[SweepAxis]) -> Condition:
    """Read a condition over these axes. Raises InputError that says what is not understood."""
    where = f"where = {show(text)}"
    if len(text) > MAX_TEXT:
        raise InputError(f"{where}: is longer than {MAX_TEXT} characters: split it, all conditions must hold")
    try:
        tree = ast.parse(text.strip(), mode="eval")
        reader = _ConditionReader({axis.name: axis for axis in axes})
        term = reader.condition(tree.body)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except SyntaxError as error:
        raise InputError(f"{where}: is not a condition: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError, OverflowError):
        raise InputError(f"{where}: is not a condition: simplify it") from None
    if not reader.names:
        raise InputError(f"{where}: names no axis: {did_you_mean('', reader.axes)}")
    return Condition(text, frozenset(reader.names), term)


class _ConditionReader:
    """Turns a syntax tree into functions of the points, refusing all that is not on the list."""

    def __init__(self, axes: dict[str, SweepAxis]) -> None:
        self.axes = axes
        self.names: set[str] = set()

    def condition(self, node: ast.expr) -> _Term:
        """Something that is true or false."""
        if isinstance(node, ast.BoolOp):
            terms = [self.condition(value) for value in node.values]
            join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
            return lambda digits: _joined(join, [term(digits) for term in terms])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            term = self.condition(node.operand)
            return lambda digits: np.logical_not(term(digits))
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            terms = [self.comparison(sides[i], op, sides[i + 1]) for i, op in enumerate(node.ops)]
            return lambda digits: _joined(np.logical_and, [term(digits) for term in terms])
        raise InputError(f"{show(ast.unparse(node))} is not true or false: {_ALLOWED}")

    def comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> _Term:
        """One comparison of two sides."""
        if isinstance(op, ast.In | ast.NotIn):
            if not isinstance(right, ast.List | ast.Tuple) or not right.elts:
                raise InputError(f"{show(ast.unparse(right))}: must be a list, such as [1, 2]")
            terms = [self.comparison(left, ast.Eq(), item) for item in right.elts]
            is_in = isinstance(op, ast.In)
            return lambda digits: _joined(np.logical_or, [term(digits) for term in terms]) == is_in
        text_axis = self.text_axis(left) or self.text_axis(right)
        if text_axis is not None:
            return self.names_equal(text_axis, left, op, right)
        if type(op) not in _COMPARE:
            raise InputError(f"{type(op).__name__}: {_ALLOWED}")
        compare, a, b = _COMPARE[type(op)], self.number(left), self.number(right)
        return lambda digits: compare(a(digits), b(digits))

    def names_equal(self, axis: SweepAxis, left: ast.expr, op: ast.cmpop, right: ast.expr) -> _Term:
        """An axis of names against a quoted name."""
        other = right if self.text_axis(left) else left
        if not isinstance(op, ast.Eq | ast.NotEq):
            raise InputError(f"{axis.name} holds names: compare it by ==, != or in")
        if not isinstance(other, ast.Constant) or not isinstance(other.value, str):
            raise InputError(f"{axis.name} holds names: compare it with one in quotes")
        code, equal, name = _code(axis, other.value), isinstance(op, ast.Eq), axis.name
        return lambda digits: (digits[name] == code) == equal

    def text_axis(self, node: ast.expr) -> SweepAxis | None:
        """The axis of names that a node is, if it is one."""
        if isinstance(node, ast.Name | ast.Attribute) and (axis := self.axis(node)).kind == "text":
            return axis
        return None

    def axis(self, node: ast.expr) -> SweepAxis:
        """The axis that a name (`batch`) or dotted name (`oaken.outer`) means."""
        name = ast.unparse(node)
        if name not in self.axes:
            raise InputError(f"{show(name)} is not an axis of this sweep: {did_you_mean(name, self.axes)}")
        self.names.add(name)
        return self.axes[name]

    def number(self, node: ast.expr) -> _Term:
        """Something that is a number."""
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
            value = np.float64(node.value)
            return lambda digits: value
        if isinstance(node, ast.Name | ast.Attribute):
            axis = self.axis(node)
            if axis.kind == "text":
                raise InputError(f"{axis.name} holds names: it is no number")
            name, values = axis.name, np.array([*axis.values, np.nan], dtype=np.float64)
            return lambda digits: values[digits[name]]  # -1, no value, is the last: nan
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            operand, sign = self.number(node.operand), -1.0 if isinstance(node.op, ast.USub) else 1.0
            return lambda digits: sign * operand(digits)
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            combine, a, b = _ARITHMETIC[type(node.op)], self.number(node.left), self.number(node.right)
            return lambda digits: combine(a(digits), b(digits))
        raise InputError(f"{show(ast.unparse(node))} is not understood: {_ALLOWED}")


def _joined(join: Any, masks: list[Any]) -> Any:
    joined = masks[0]
    for mask in masks[1:]:
        joined = join(joined, mask)
    return joined


def _code(axis: SweepAxis, text: str) -> int:
    """Place of a name among the values of an axis, in any case; quantizers in any spelling."""
    wanted = quantizers.parse(text).name if axis.name in QUANTIZER_AXES else text
    for code, value in enumerate(axis.values):
        if value.lower() == wanted.strip().lower():
            return code
    raise InputError(f"{show(text)} is not a value of {axis.name}: {did_you_mean(text, axis.values)}")
