"""F-Greedy: from the driving input, always probe next what is expected to match least.

Raghavan et al., section 3. Only inputs connected to those already joined are candidates, so no stage is a cross product unless the
graph leaves nothing else.
"""

from __future__ import annotations

from dovetail.optimizer.graph import JoinGraph


def f_greedy(graph: JoinGraph, driver: str) -> tuple[str, ...]:
    """Order the probes of `driver`'s tuples.

    >>> edges = {frozenset("AB"): 0.5, frozenset("AC"): 0.1, frozenset("BC"): 0.5}
    >>> f_greedy(JoinGraph(dict.fromkeys("ABC", 10.0), dict.fromkeys("ABC", 1.0), edges), "A")
    ('C', 'B')
    """
    order = [driver]
    left = [alias for alias in graph.rates if alias != driver]
    while left:
        connected = [alias for alias in left if graph.connected(order, alias)]
        chosen = min(connected or left, key=lambda alias: graph.extension(order, alias))
        order.append(chosen)
        left.remove(chosen)
    return tuple(order[1:])
