"""Writing a trace for other tools."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

from .csv_formats import PREDICTED_COLUMN, VIDUR_COLUMNS
from .errors import TraceError

if TYPE_CHECKING:
    from .trace import Trace


def write_vidur_csv(trace: Trace, path: str | Path) -> None:
    """Arrivals (s, with every digit a float has) and lengths, predicted ones too; prefix blocks have no place in it."""
    path = Path(path)
    names: tuple[str, ...] = VIDUR_COLUMNS
    columns = [trace.arrival_s, trace.num_prompt_tokens, trace.output_len]
    if trace.predicted_output_len is not None:
        names, columns = (*VIDUR_COLUMNS, PREDICTED_COLUMN), [*columns, trace.predicted_output_len]
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(names)
            writer.writerows(zip(*(column.tolist() for column in columns), strict=True))
    except OSError as error:
        raise TraceError(f"{path} cannot be written ({error.strerror}); choose another place") from error
