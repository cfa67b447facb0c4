"""What a page is given: the question of the scenario bar, and the sweep that is open to answer it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..experiments.grid import CellResult
from ..experiments.recommend import Recommendation
from .errors import NoSweepError
from .question import Question
from .results import Results


@dataclass(frozen=True)
class Context:
    """One view, from the address."""

    root: Path
    """The folder of all results."""
    question: Question
    """The scenario bar; that of the open sweep unless something was changed."""
    results: Results | None
    """The open sweep; None if there is none yet. Use ``opened`` on a page that needs one."""
    policy: str
    cell: CellResult | None
    """The cell chosen beside the page: the recommended one unless another was chosen; None if none can work."""
    recommendation: Recommendation | None = None
    """By the SLOs of the bar, which may be others than the sweep's; None if no cell can work."""

    @property
    def opened(self) -> Results:
        """The open sweep. Raises ``NoSweepError``, which the shell answers with what to do."""
        if self.results is None:
            raise NoSweepError(f"{self.root} holds no sweep yet.")
        return self.results
