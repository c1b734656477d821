"""Evaluates the part of PromQL that the broker's alerts use, on samples that a test has scraped or made up. If
`promtool` is installed, it checks the same cases: `tests/cli/test_monitoring.py`.
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from promql_parser import (
    AggregateExpr,
    BinaryExpr,
    Call,
    Matcher,
    MatchOp,
    MatrixSelector,
    NumberLiteral,
    ParenExpr,
    VectorSelector,
    parse,
)

from tests.support.metrics import Samples

Labels = frozenset[tuple[str, str]]
Vector = Mapping[Labels, float]
History = Sequence[tuple[float, Samples]]
"""Scrapes with their times in seconds, oldest first."""

LOOK_BACK_SECONDS = 300

_ARITHMETIC: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
}
_AGGREGATIONS: Mapping[str, Callable[[Sequence[float]], float]] = {"sum": sum, "max": max, "min": min}


def evaluate(expression: str, history: History) -> Vector:
    """The values of an expression at the time of the last scrape, by labels; empty if an alert would not fire."""
    found = _Evaluation(history).evaluate(parse(expression))
    assert not isinstance(found, float), f"{expression} is a number and no vector"
    return found


def selected_names(expression: str) -> Mapping[str, set[str]]:
    """The names of the samples that an expression reads, each with the labels that the samples need."""
    found: dict[str, set[str]] = defaultdict(set)
    for selector, labels in _selectors(parse(expression), frozenset()):
        assert selector.name is not None
        found[selector.name] |= labels | {each.name for each in selector.matchers.matchers}
    return found


def _selectors(expression: Any, by: frozenset[str]) -> Iterator[tuple[VectorSelector, frozenset[str]]]:
    """Each selector, with the labels by which the aggregations around it group."""
    match expression:
        case VectorSelector():
            yield expression, by
        case MatrixSelector():
            yield expression.vector_selector, by
        case AggregateExpr(modifier=modifier):
            yield from _selectors(expression.expr, by.union(modifier.labels if modifier else ()))
        case ParenExpr():
            yield from _selectors(expression.expr, by)
        case BinaryExpr():
            yield from _selectors(expression.lhs, by)
            yield from _selectors(expression.rhs, by)
        case Call():
            for each in expression.args:
                yield from _selectors(each, by)


class _Evaluation:
    def __init__(self, history: History) -> None:
        self._history = history
        self._now = history[-1][0]

    def evaluate(self, expression: Any) -> Vector | float:
        match expression:
            case NumberLiteral():
                return float(expression.val)
            case ParenExpr():
                return self.evaluate(expression.expr)
            case VectorSelector():
                recent = self._series(expression, LOOK_BACK_SECONDS)
                return {labels: samples[-1][1] for labels, samples in recent.items()}
            case AggregateExpr():
                return self._aggregate(expression)
            case Call():
                return self._call(expression.func.name, expression.args)
            case BinaryExpr():
                return self._combine(str(expression.op), self.evaluate(expression.lhs), self.evaluate(expression.rhs))
        raise ValueError(f"no alert has used such an expression so far: {expression}")

    def _series(self, selector: VectorSelector, seconds: float) -> Mapping[Labels, list[tuple[float, float]]]:
        found: dict[Labels, list[tuple[float, float]]] = defaultdict(list)
        for at, samples in self._history:
            for (name, labels), value in samples.items():
                if name == selector.name and at >= self._now - seconds and _matches_selector(dict(labels), selector):
                    found[labels].append((at, value))
        return found

    def _aggregate(self, expression: AggregateExpr) -> Vector:
        by = set(expression.modifier.labels) if expression.modifier else set()
        groups: dict[Labels, list[float]] = defaultdict(list)
        for labels, value in self._vector(expression.expr).items():
            groups[frozenset(each for each in labels if each[0] in by)].append(value)
        return {labels: _AGGREGATIONS[str(expression.op)](values) for labels, values in groups.items()}

    def _call(self, name: str, arguments: Sequence[Any]) -> Vector | float:
        match name, arguments:
            case "time", []:
                return self._now
            case "rate" | "increase", [MatrixSelector() as selector]:
                seconds = selector.range.total_seconds()
                series = self._series(selector.vector_selector, seconds)
                grown = {labels: _growth(samples) for labels, samples in series.items() if len(samples) > 1}
                return {labels: each * seconds if name == "increase" else each for labels, each in grown.items()}
            case "histogram_quantile", [NumberLiteral() as quantile, buckets]:
                return _quantiles(quantile.val, self._vector(buckets))
        raise ValueError(f"no alert has used such a call so far: {name}")

    def _combine(self, op: str, left: Vector | float, right: Vector | float) -> Vector | float:
        if op in ("and", "or"):
            assert not isinstance(left, float)
            assert not isinstance(right, float)
            if op == "and":
                return {labels: value for labels, value in left.items() if labels in right}
            return {**right, **left}
        if isinstance(left, float) and isinstance(right, float):
            return _ARITHMETIC[op](left, right)
        return dict(_apply_operator(op, left, right))

    def _vector(self, expression: Any) -> Vector:
        found = self.evaluate(expression)
        assert not isinstance(found, float)
        return found


def _apply_operator(op: str, left: Vector | float, right: Vector | float) -> Iterator[tuple[Labels, float]]:
    labelled = left if isinstance(right, float) else right
    assert not isinstance(labelled, float)
    for labels in labelled:
        one = left if isinstance(left, float) else left.get(labels)
        other = right if isinstance(right, float) else right.get(labels)
        if one is None or other is None:
            continue
        if op in _ARITHMETIC:
            yield labels, _ARITHMETIC[op](one, other)
        elif _COMPARISONS[op](one, other):
            yield labels, one


def _matches_selector(labels: Mapping[str, str], selector: VectorSelector) -> bool:
    return all(_matches(labels.get(each.name, ""), each) for each in selector.matchers.matchers)


def _matches(value: str, matcher: Matcher) -> bool:
    if matcher.op in (MatchOp.Equal, MatchOp.NotEqual):
        return (value == matcher.value) == (matcher.op == MatchOp.Equal)
    return (re.fullmatch(matcher.value, value) is not None) == (matcher.op == MatchOp.Re)


def _growth(samples: Sequence[tuple[float, float]]) -> float:
    """By how much a counter grows per second. If it falls, its process has restarted."""
    values = [value for _, value in samples]
    grown = sum(after - before if after >= before else after for before, after in pairwise(values))
    return grown / (samples[-1][0] - samples[0][0])


def _quantiles(quantile: float, buckets: Vector) -> Vector:
    groups: dict[Labels, list[tuple[float, float]]] = defaultdict(list)
    for labels, value in buckets.items():
        bound = float(dict(labels)["le"])
        groups[frozenset(each for each in labels if each[0] != "le")].append((bound, value))
    return {labels: _quantile(quantile, sorted(group)) for labels, group in groups.items()}


def _quantile(quantile: float, buckets: Sequence[tuple[float, float]]) -> float:
    rank = quantile * buckets[-1][1]
    if not rank:
        return float("nan")
    below, count = 0.0, 0.0
    for bound, total in buckets[:-1]:
        if total >= rank:
            return below + (bound - below) * (rank - count) / (total - count)
        below, count = bound, total
    return below
