"""From queries and statistics to a plan; pure functions over frozen data."""

from dovetail.optimizer import golab

__all__ = ["golab"]
