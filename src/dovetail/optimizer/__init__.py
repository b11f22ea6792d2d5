"""From queries and statistics to a plan; pure functions over frozen data."""

from dovetail.optimizer import golab
from dovetail.optimizer.cost import ProbeCost, probe_cost
from dovetail.optimizer.graph import JoinGraph
from dovetail.optimizer.ordering import order_probes
from dovetail.optimizer.ordering.golab import general_orders

__all__ = ["JoinGraph", "ProbeCost", "general_orders", "golab", "order_probes", "probe_cost"]
