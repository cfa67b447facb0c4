"""Writing a trace for other tools."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

from .csv_formats import VIDUR_COLUMNS
from .errors import TraceError

if TYPE_CHECKING:
    from .trace import Trace


def write_vidur_csv(trace: Trace, path: str | Path) -> None:
    """Arrivals (s, with every digit a float has), prompt and output lengths; prefix blocks have no place in it."""
    path = Path(path)
    columns = (trace.arrival_s.tolist(), trace.num_prompt_tokens.tolist(), trace.output_len.tolist())
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(VIDUR_COLUMNS)
            writer.writerows(zip(*columns, strict=True))
    except OSError as error:
        raise TraceError(f"{path} cannot be written ({error.strerror}); choose another place") from error
