"""Runs the Triton kernels in the interpreter, in a process of its own, and prints one JSON object of errors.

Interpreting is decided when triton is imported, and a process that interprets cannot compile; hence the process.
"""

from __future__ import annotations

import json
import os

os.environ["TRITON_INTERPRET"] = "1"

import torch
from cases import PagedCase, paged_case, rms_ratio

from batchtwin.kernels import reference, triton_attention, triton_write_kv

DECODES = {
    "decode_lengths_around_a_page": ([(14, 1), (15, 1), (16, 1), (1, 1), (30, 1)], {}, 1, 0),
    "decode_prime_lengths_three_splits": ([(96, 1), (12, 1), (150, 1)], {}, 3, 0),
    "decode_more_splits_than_tiles": ([(1, 1), (70, 1)], {}, 5, 0),
    "decode_group_of_three_odd_head": ([(22, 1), (40, 1)], {"num_heads": 6, "head_dim": 24}, 2, 0),
    "decode_window": ([(50, 1), (4, 1), (130, 1)], {}, 2, 33),
    "decode_half_precision": ([(18, 1), (64, 1)], {"dtype": torch.float16}, 1, 0),
    "decode_page_of_one": ([(6, 1)], {"block_size": 1}, 1, 0),
}
PREFILLS = {
    "prefill_lengths_around_a_page": ([(0, 1), (0, 15), (0, 16), (0, 17)], {}, 0, 0),
    "prefill_chunks_over_context": ([(13, 7), (32, 31)], {}, 0, 0),
    "prefill_group_of_three_odd_head": ([(5, 11), (0, 23)], {"num_heads": 6, "head_dim": 24}, 0, 0),
    "prefill_one_query_head_a_kv_head": ([(0, 19)], {"num_heads": 2}, 0, 0),
    "prefill_window": ([(40, 37)], {}, 0, 17),
    "prefill_half_precision": ([(3, 21)], {"dtype": torch.float16}, 0, 0),
    "prefill_takes_decodes_too": ([(9, 1), (33, 1), (0, 5)], {}, 0, 0),
    "prefill_behind_two_decodes": ([(9, 1), (33, 1), (0, 5), (17, 18)], {}, 2, 0),
}


def expected(case: PagedCase, window: int) -> torch.Tensor:
    return reference.paged_attention(
        case.query, case.key_cache, case.value_cache, case.query_start_loc, case.seq_lens, case.block_tables,
        case.scale, window,
    )  # fmt: skip


def decode_error(rows: list[tuple[int, int]], shape: dict[str, object], num_splits: int, window: int) -> float:
    case = paged_case(rows, **shape)
    out = torch.full_like(case.query, float("nan"))
    triton_attention.decode_attention(
        case.query, case.key_cache, case.value_cache, case.seq_lens, case.block_tables, case.scale, out,
        num_splits=num_splits, window=window,
    )  # fmt: skip
    return rms_ratio(out, expected(case, window))


def prefill_error(rows: list[tuple[int, int]], shape: dict[str, object], num_decodes: int, window: int) -> float:
    """``num_decodes`` leading sequences are left to the decode kernel: their rows must stay as they were."""
    case = paged_case(rows, **shape)
    out = torch.full_like(case.query, float("nan"))
    triton_attention.prefill_attention(
        case.query, case.key_cache, case.value_cache, case.query_start_loc[num_decodes:],
        case.seq_lens[num_decodes:], case.block_tables[num_decodes:], case.scale, out, window=window,
    )  # fmt: skip
    if not out[:num_decodes].isnan().all():
        return float("inf")
    return rms_ratio(out[num_decodes:], expected(case, window)[num_decodes:])


def write_error() -> float:
    """Zero iff the written cache equals the reference's, bit for bit, untouched places included."""
    case = paged_case([(13, 1), (0, 17)], num_heads=6, num_kv_heads=3, head_dim=8)
    caches = [torch.zeros_like(case.key_cache) for _ in range(4)]
    strided = torch.empty((case.value.shape[0], 3, 16))[..., ::2].copy_(case.value)
    triton_write_kv.write_kv(case.key, strided, caches[0], caches[1], case.slot_mapping)
    reference.write_kv(case.key, case.value, caches[2], caches[3], case.slot_mapping)
    return 0.0 if torch.equal(caches[0], caches[2]) and torch.equal(caches[1], caches[3]) else 1.0


def main() -> None:
    errors = {name: decode_error(*arguments) for name, arguments in DECODES.items()}
    errors |= {name: prefill_error(*arguments) for name, arguments in PREFILLS.items()}
    errors["write_kv"] = write_error()
    print(json.dumps(errors))


if __name__ == "__main__":
    main()
