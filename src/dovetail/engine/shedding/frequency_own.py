"""The other reading of the frequency-based algorithm: tuples go first whose key is rarest in their own window. Ties by the seed.

Where keys do not repeat all tuples are alike, and this is `random`.
"""

from __future__ import annotations

from dovetail.engine.kernels.roster import FREQUENCY_OWN
from dovetail.engine.shedding.policy import Policy

POLICY = Policy("frequency-own", FREQUENCY_OWN)
