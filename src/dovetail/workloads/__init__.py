"""Synthetic workloads: seeded, vectorised generators of streams, and queries over them.

The tuples are the same on every machine and however they are split into batches. Start with `scenario`, which returns a ready-made
workload by name; define your own with `Workload` or `join_workload`.
"""

from dovetail.workloads.arrivals import Arrivals
from dovetail.workloads.columns import Amounts, Copied, GeneratedColumn, Matching, Normal, Switch, Uniform, Words, Zipf
from dovetail.workloads.delays import Delay
from dovetail.workloads.files import describe_files, write_workload
from dovetail.workloads.graphs import edges_of, join_workload
from dovetail.workloads.orders import Orders
from dovetail.workloads.scenarios import SCENARIOS, parse_scenario, scenario
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
    "describe_files",
    "edges_of",
    "join_workload",
    "parse_scenario",
    "scenario",
    "write_workload",
]
