"""The ladder of shapes: what the tensors of one forward look like from tokens to logits, flattened and padded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from ..sim.cost.profile import ModelFacts
from .colors import SEQS, TOKENS
from .forward_data import Forward

SYMBOLS = ("d_model", "n_q_heads", "n_kv_heads", "head_dim", "vocab")


class Rung(NamedTuple):
    """One step of the forward."""

    step: str
    flat: str
    """Continuous batching: the shape in this forward."""
    static_prefill: str
    """The same tokens as a padded rectangle of B rows."""
    static_decode: str
    """A decode of static batching: one token a row, over a past padded alike."""
    reads: str = ""
    """Which arrays of the batch this step reads, if any."""
    needs_boundaries: bool = False
    """Whether it must know where a sequence begins and ends; the others take every token alike."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """The rungs, and the names of their sizes."""

    rungs: tuple[Rung, ...]

    def frame(self) -> pd.DataFrame:
        """As a table."""
        return pd.DataFrame(self.rungs, columns=list(Rung._fields))


def ladder(data: Forward, model: ModelFacts | None = None) -> Ladder:
    """The shapes of one forward; with a model's sizes as numbers, otherwise by name."""
    d, n_q, n_kv, h, vocab = _sizes(model)
    t, samples = f"{data.num_tokens:,}", f"{len(data.shapes.sample_rows):,}"
    b, length = f"{data.rectangle.num_rows:,}", f"{data.rectangle.length_tokens:,}"
    longest = int(data.shapes.seq_lens.max(initial=1))
    past = f"{longest - 1:,} + 1"
    return Ladder(
        (
            Rung("input_tokens", f"[{t}]", f"[{b}, {length}]", f"[{b}, 1]"),
            Rung("embedding, norm", f"[{t}, {d}]", f"[{b}, {length}, {d}]", f"[{b}, 1, {d}]"),
            Rung("Q", f"[{t}, {n_q}, {h}]", f"[{b}, {n_q}, {length}, {h}]", f"[{b}, {n_q}, 1, {h}]", "positions"),
            Rung("K, V", f"[{t}, {n_kv}, {h}]", f"[{b}, {n_kv}, {length}, {h}]", f"[{b}, {n_kv}, 1, {h}]", "positions"),
            Rung("KV write", f"{t} slots", "in place", "appended", "slot_mapping"),
            Rung(
                "attention scores",
                f"S × [{n_q}, q_len, seq_len]",
                f"[{b}, {n_q}, {length}, {length}]",
                f"[{b}, {n_q}, 1, {past}]",
                "query_start_loc, seq_lens, block_tables",
                True,
            ),
            Rung("output, MLP", f"[{t}, {d}]", f"[{b}, {length}, {d}]", f"[{b}, 1, {d}]"),
            Rung(
                "logits",
                f"[{samples}, {vocab}]",
                f"[{b}, {length}, {vocab}]",
                f"[{b}, 1, {vocab}]",
                "sampled rows",
                True,
            ),
        )
    )


def _sizes(model: ModelFacts | None) -> tuple[str, ...]:
    if model is None:
        return SYMBOLS
    numbers = (model.hidden_size, model.num_q_heads, model.num_kv_heads, model.head_dim, model.vocab_size)
    return tuple(f"{number:,}" for number in numbers)


def ladder_html(found: Ladder) -> str:
    """The ladder as a table. Rows that need to know whose a token is are marked."""
    rows = "".join(_row(rung) for rung in found.rungs)
    head = "<tr><th>Step</th><th>Flattened, this forward</th><th>Static prefill</th><th>Static decode</th></tr>"
    lives = " &nbsp;·&nbsp; ".join(f"<code>{name}</code> lives {life}" for name, life in LIFETIMES)
    foot = (
        f"<p class='ladder-key'><i style='background:{_ALIKE}'></i> takes every token alike &nbsp; "
        f"<i style='background:{_BOUNDARIES}'></i> needs to know where a sequence begins and ends</p>"
        f"<p class='ladder-key'>{lives}</p>"
    )
    return f"{_STYLE}<table class='ladder'><thead>{head}</thead><tbody>{rows}</tbody></table>{foot}"


def _row(rung: Rung) -> str:
    reads = f" <small>by {rung.reads}</small>" if rung.reads else ""
    kind = " class='needs'" if rung.needs_boundaries else ""
    return (
        f"<tr{kind}><td>{rung.step}</td><td><code>{rung.flat}</code>{reads}</td>"
        f"<td><code>{rung.static_prefill}</code></td><td><code>{rung.static_decode}</code></td></tr>"
    )


_ALIKE, _BOUNDARIES = SEQS, TOKENS
_STYLE = """<style>
.ladder { width: 100%; border-collapse: collapse; font-size: 12.5px; line-height: 1.25; }
.ladder th { text-align: left; font-weight: 600; opacity: .7; padding: 2px 8px 4px 0; }
.ladder td { padding: 2.5px 8px 2.5px 0; border-top: 1px solid rgba(134, 142, 153, .25); vertical-align: top; }
.ladder code { background: none; padding: 0; color: inherit; font-size: 11.5px; letter-spacing: -0.02em; }
.ladder th:nth-child(2) { width: 40%; } .ladder th:nth-child(3) { width: 24%; } .ladder th:nth-child(4) { width: 21%; }
.ladder small { opacity: .75; }
.ladder td:first-child { white-space: nowrap; border-left: 4px solid ALIKE; padding-left: 8px; }
.ladder .needs td:first-child { border-left-color: BOUNDARIES; }
.ladder td:nth-child(n+3) { opacity: .62; }
.ladder-key { font-size: 11.5px; margin: 5px 0 0; opacity: .8; }
.ladder-key i { display: inline-block; width: 9px; height: 9px; border-radius: 2px; margin-right: 3px; }
.ladder-key code { background: none; padding: 0; color: inherit; font-size: 11px; }
</style>""".replace("ALIKE", _ALIKE).replace("BOUNDARIES", _BOUNDARIES)

NAMES = (
    ("T", "`num_actual_tokens` (vLLM's attention metadata), `nnz_qo` (FlashInfer)"),
    ("query_start_loc", "`qo_indptr` (FlashInfer), `cu_seqlens_q` (FlashAttention)"),
    ("seq_lens", "`seqused_k` (FlashAttention), `context_lens` (vLLM V0)"),
    ("block_tables", "`block_table_tensor` (vLLM V1), `paged_kv_indices` (FlashInfer)"),
    ("slot_mapping", "`out_cache_loc` (SGLang)"),
)
"""What other systems call the same arrays."""
LIFETIMES = (
    ("slot_mapping", "for this forward"),
    ("block_tables", "as long as the request, and only grows (until it ends or is preempted)"),
)
