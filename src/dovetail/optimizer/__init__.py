"""From queries and statistics to a plan; pure functions over frozen data."""

from dovetail.optimizer import nested_loop_cost as golab
from dovetail.optimizer.cost import ProbeCost, probe_cost
from dovetail.optimizer.graph import JoinGraph
from dovetail.optimizer.multiquery import plan_queries
from dovetail.optimizer.multiquery.model.named import NamedGraph
from dovetail.optimizer.multiquery.model.trees import tree_cost
from dovetail.optimizer.multiquery.thesis.jtrees import binary_tree
from dovetail.optimizer.ordering import order_probes
from dovetail.optimizer.ordering.golab import general_orders
from dovetail.optimizer.units import UnitCosts
from dovetail.plan.explain_global import explain_global
from dovetail.plan.global_plan import GlobalPlan

__all__ = [
    "GlobalPlan",
    "JoinGraph",
    "NamedGraph",
    "ProbeCost",
    "UnitCosts",
    "binary_tree",
    "explain_global",
    "general_orders",
    "golab",
    "order_probes",
    "plan_queries",
    "probe_cost",
    "tree_cost",
]
