"""What is raised when a policy breaks a rule."""

from __future__ import annotations

BUDGET = "Rule 1 (budget)"
BLOCKS = "Rule 2 (blocks are conserved)"
OWN_BLOCKS = "Rule 3 (own blocks only)"
NOBODY_LOST = "Rule 4 (nobody lost, duplicated or starved for ever)"
CLOCK_AND_TOKENS = "Rule 5 (clock and tokens)"
WORK = "Rule 6 (work-conserving)"
SAME_AGAIN = "Rule 7 (same seed, same batches)"
LEAPING = "Rule 8 (stepping = leaping)"
TIMING = "Rule 9 (offline, batches do not depend on timing)"
BLIND = "No oracle (true output lengths are unknown)"
NO_ERROR = "No error"


class PolicyViolation(AssertionError):
    """A policy broke ``rule``; ``sentence`` says in which step and how."""

    def __init__(self, rule: str, sentence: str) -> None:
        super().__init__(rule, sentence)
        self.rule = rule
        self.sentence = sentence

    def __str__(self) -> str:
        return f"{self.rule}: {self.sentence}"
