"""Conditions on the columns of an index, as `year >= 2020 and source = "faq"`.

They have Python's grammar, of which only what is named here is read, and nothing is evaluated:
``= != < <= > >=``, ``in ("a", "b")``, ``like "docs/%"``, ``is null``, ``and``, ``or``, ``not`` and
parentheses. As in SQL, a row without a value satisfies no comparison with it.
"""

import ast
import json
import operator
import re
from functools import reduce
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from contrasent.errors import ConfigError

_TOKEN = re.compile(
    r"""("[^"]*"|'[^']*')|(`[^`]+`|[^\W\d]\w*(?:\.\w+)*)|<>|(?<![<>=!])=(?!=)""", re.UNICODE
)
_SAME = ("and", "or", "not", "in", "is")
_WORDS = {
    **dict(zip(_SAME, _SAME, strict=True)),
    "true": "True",
    "false": "False",
    "null": "None",
    "like": "@",
}
_COMPARED = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def read_filter(text: str, in_milvus: bool = False) -> tuple[Any, list[str]]:
    """A condition for pyarrow or Milvus, and the columns that it names; else ConfigError."""
    import pyarrow.compute as pc

    condition = _Condition(_MILVUS if in_milvus else pc)
    try:
        tree = ast.parse(_TOKEN.sub(condition.replaced, text).strip(), mode="eval")
        return condition.expression(tree.body), condition.columns
    except (SyntaxError, ValueError, LookupError, RecursionError, MemoryError) as error:
        raise ConfigError(
            f"the filter {text!r} cannot be read; write it as: "
            'year >= 2020 and (source = "faq" or not source in ("a", "b"))'
        ) from error


def _term(form: str) -> Any:
    return lambda *parts: _MilvusTerm(form.format(*parts))


class _MilvusTerm:
    """A part of a condition as Milvus writes it, with the operators of pyarrow's expressions."""

    def __init__(self, written: str) -> None:
        self.written = written

    def __str__(self) -> str:
        return self.written

    __invert__, is_null = _term("(not {})"), _term("({} is null)")
    __and__, __or__ = _term("({} and {})"), _term("({} or {})")
    __eq__, __ne__ = _term("({} == {})"), _term("({} != {})")
    __lt__, __le__ = _term("({} < {})"), _term("({} <= {})")
    __gt__, __ge__ = _term("({} > {})"), _term("({} >= {})")


_MILVUS: Any = SimpleNamespace(
    field=lambda name: _MilvusTerm(name if name in ("id", "text") else f'metadata["{name}"]'),
    scalar=lambda value: _MilvusTerm(json.dumps(value, ensure_ascii=False)),
    match_like=lambda text, like: _MilvusTerm(f"({text} like {_MILVUS.scalar(like)})"),
)


class _Condition:
    """The texts and columns of a condition, which its tree knows by number."""

    def __init__(self, terms: Any) -> None:
        self._terms, self.columns = terms, list[str]()
        self._leaves, self._texts = dict[str, Any](), dict[str, str]()

    def replaced(self, token: re.Match[str]) -> str:
        """A token as Python spells it, and in place of a text or column a name."""
        text, name = token[1], token[2]
        if text is None and name is None:
            return "!=" if token[0] == "<>" else "=="
        if name is not None and name.lower() in _WORDS:
            return f" {_WORDS[name.lower()]} "
        if name is not None:
            self.columns.append(name.strip("`"))
        leaf = f"leaf{len(self._leaves)}"
        if text is not None:
            self._texts[leaf] = text[1:-1]
        read = self._terms.field if text is None else self._terms.scalar
        self._leaves[leaf] = read(self.columns[-1] if text is None else text[1:-1])
        return f" {leaf} "

    def expression(self, node: ast.expr) -> Any:
        """The expression of a part of the tree; ValueError if it is of another kind."""
        match node:
            case ast.BoolOp(op=joint, values=parts):
                joined = operator.and_ if isinstance(joint, ast.And) else operator.or_
                return reduce(joined, map(self.expression, parts))
            case ast.UnaryOp(op=ast.Not(), operand=part):
                return ~self.expression(part)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return self._terms.scalar(-number)
            case ast.BinOp(op=ast.MatMult(), left=left, right=ast.Name(id=pattern)):
                return self._terms.match_like(self.expression(left), self._texts[pattern])
            case ast.Compare(left=left, ops=signs, comparators=others):
                pairs = zip(signs, pairwise([left, *others]), strict=True)
                return reduce(operator.and_, [self._compared(sign, *pair) for sign, pair in pairs])
            case ast.Name(id=leaf):
                return self._leaves[leaf]
            case ast.Constant(value=bool() | int() | float() as value):
                return self._terms.scalar(value)
        raise ValueError(ast.dump(node))

    def _compared(self, sign: ast.cmpop, left: ast.expr, right: ast.expr) -> Any:
        first = self.expression(left)
        match sign, right:
            case ast.Is() | ast.IsNot(), ast.Constant(value=None):
                matched = first.is_null()
            case ast.In() | ast.NotIn(), _:
                values = right.elts if isinstance(right, ast.Tuple | ast.List) else [right]
                matched = reduce(operator.or_, [first == self.expression(it) for it in values])
            case _:
                return _COMPARED[type(sign)](first, self.expression(right))
        return ~matched if isinstance(sign, ast.IsNot | ast.NotIn) else matched
