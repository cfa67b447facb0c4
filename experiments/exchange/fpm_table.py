"""Our iterations as rows of an ``fpm_forward_perf`` table: one a batch, with what it read and how long it took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...sim.cost.forward_tables import FPM_CELL, FPM_KEYS
from ..errors import ExperimentError
from ..run import Run, write_whole

COLUMNS = (*FPM_CELL, *FPM_KEYS, "partition_policy", "latency_ms")


def fpm_rows(run: Run) -> list[dict[str, Any]]:
    """The iterations of pure decode or of prefill alone; the table has no row for both at once. ``partition_policy`` is
    ``as_run``: chunks need not be of equal size. Raises ``ExperimentError`` if there is none.
    """
    its = run.records.iterations
    same = dict.fromkeys(FPM_CELL, "") | {
        "cell_id": f"batchtwin-{run.kind}",
        "model_path": run.scenario.model,
        "system": run.provenance.get("device", run.scenario.device),
        "backend": "batchtwin",
        "backend_version": run.provenance.get("batchtwin", ""),
        "kv_cache_dtype": run.scenario.dtype,
        **dict.fromkeys(("tp", "pp", "dp", "moe_tp", "moe_ep", "cp"), 1),
    }
    decodes, prefills = its["num_decodes"], its["num_prefills"]
    chosen = ((decodes > 0) ^ (prefills > 0)) & (its["num_padded_tokens"] == 0) & (its["num_blocks_swapped"] == 0)
    rows = []
    for i in np.flatnonzero(chosen).tolist():
        decode = bool(decodes[i])
        batch, tokens = int(its["num_seqs"][i]), int(its["num_prefill_tokens"][i])
        read = (
            int(its["num_decode_kv_tokens"][i])
            if decode
            else _prefix_tokens(its["prefill_attention_work"][i], tokens, batch)
        )
        shape = ("decode" if decode else "prefill", batch, 0 if decode else tokens, read)
        latency_ms = 1e3 * float(its["device_s"][i])
        rows.append(
            same | dict(zip(FPM_KEYS, shape, strict=True)) | {"partition_policy": "as_run", "latency_ms": latency_ms}
        )
    if not rows:
        raise ExperimentError("The run has no iteration of pure decode or prefill to write.")
    return rows


def write_fpm(run: Run, path: Path) -> int:
    """Write the table as CSV and return how many rows it has."""
    import csv
    import io

    rows = fpm_rows(run)
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue())
    return len(rows)


def _prefix_tokens(work: float, tokens: int, batch: int) -> int:
    """The prefixes that chunks of equal size over equal prefixes would read for as much attention work."""
    return max(0, round((float(work) - tokens * tokens / batch / 2) * batch / tokens)) if tokens else 0
