"""The policies, by name."""

from .base import Policy
from .registry import POLICIES, load_policy, policy_options

__all__ = ["POLICIES", "Policy", "load_policy", "policy_options"]
