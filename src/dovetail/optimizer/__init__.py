"""The optimizer: turns queries and statistics into plans, by pure functions over frozen data."""

from dovetail.optimizer.cost import nested_loop
from dovetail.optimizer.cost.probe_cost import ProbeCost, probe_cost
from dovetail.optimizer.cost.units import UnitCosts
from dovetail.optimizer.graph.join_graph import JoinGraph
from dovetail.optimizer.ordering import order_probes
from dovetail.optimizer.ordering.golab import general_orders
from dovetail.optimizer.sharing import plan_queries
from dovetail.optimizer.sharing.model.named import NamedGraph
from dovetail.optimizer.sharing.model.trees import tree_cost
from dovetail.optimizer.sharing.thesis.jtrees import binary_tree
from dovetail.plan.explain.describe import explain_shared
from dovetail.plan.shared_plan import SharedPlan

__all__ = [
    "JoinGraph",
    "NamedGraph",
    "ProbeCost",
    "SharedPlan",
    "UnitCosts",
    "binary_tree",
    "explain_shared",
    "general_orders",
    "nested_loop",
    "order_probes",
    "plan_queries",
    "probe_cost",
    "tree_cost",
]
