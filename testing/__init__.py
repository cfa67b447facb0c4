"""For whoever writes a policy: ``check_policy`` holds the scheduler's rules against it over random workloads.

``def test_mine(): check_policy(MyPolicy)`` is a whole test. Nothing but BatchTwin itself is needed, no pytest either.
"""

from .conformance import check_policy
from .violation import PolicyViolation

__all__ = ["PolicyViolation", "check_policy"]
