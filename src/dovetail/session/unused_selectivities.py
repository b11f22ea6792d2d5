"""Selectivities of the user that have no effect.

The module loads no engine, so that a Spark driver can check them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dovetail.errors import listed
from dovetail.optimizer.graph.hints import hints_for
from dovetail.session.job import Job


def unused_selectivities(job: Job, checked: Mapping[frozenset[str], float] | None = None) -> Iterator[str]:
    """Yield a warning for each selectivity of the user that no query uses, except those in `checked`."""
    for pair, value in job.hints.items():
        if checked is not None and checked.get(pair) == value:
            continue
        names = " and ".join(repr(name) for name in sorted(pair))
        joined, used = [], False
        for name, query in job.registered.items():
            refs = query.plan.query.refs
            expected, own = hints_for(job.hints, refs), hints_for({pair: value}, refs)
            joined += [name] if own else []
            used |= any(expected[key] != value or query.options.hints.get(key) == value for key in own)
        if joined and not used:
            yield (
                f"the selectivity {value:g} between {names} has no effect: it was stated after {listed(joined)}, which it is for\n"
                "Hint: call selectivity() before query()"
            )
        elif not joined:
            aliases = sorted({ref.alias for query in job.queries.values() for ref in query.refs})
            yield (
                f"the selectivity {value:g} between {names} has no effect: no query joins them\n"
                f"Hint: name aliases of a query, or streams; aliases: {listed(aliases)}"
            )
