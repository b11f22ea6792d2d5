"""Streams to try things on: seeded, vectorised generators that give the same tuples on every machine, however they are cut.

Start with `scenario`, which makes a ready-made workload by name; `Workload` and `join_workload` make your own.
"""

from dovetail.workloads.arrivals import Arrivals
from dovetail.workloads.columns import Amounts, Copied, GeneratedColumn, Matching, Normal, Switch, Uniform, Words, Zipf
from dovetail.workloads.delays import Delay
from dovetail.workloads.files import described, write_workload
from dovetail.workloads.graphs import edges_of, join_workload
from dovetail.workloads.orders import Orders
from dovetail.workloads.scenarios import SCENARIOS, parsed_scenario, scenario
from dovetail.workloads.workload import Appears, Follows, Stream, Workload

__all__ = [
    "SCENARIOS",
    "Amounts",
    "Appears",
    "Arrivals",
    "Copied",
    "Delay",
    "Follows",
    "GeneratedColumn",
    "Matching",
    "Normal",
    "Orders",
    "Stream",
    "Switch",
    "Uniform",
    "Words",
    "Workload",
    "Zipf",
    "described",
    "edges_of",
    "join_workload",
    "parsed_scenario",
    "scenario",
    "write_workload",
]
