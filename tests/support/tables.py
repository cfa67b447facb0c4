"""Small operator tables and recorded runs on disk, of laws that a test can compute by hand."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

KVS = (16, 64, 256, 1024)
CHUNKS = (16, 64, 256)
DECODES = (1, 2, 4, 8, 16)


def attention_us(chunk: float, kv_prefill: float, n: float, kv_decode: float) -> float:
    """Multilinear, so that linear interpolation is exact, and not the sum of its parts."""
    return 10 + 0.01 * n * kv_decode + 0.5 * chunk + 0.002 * chunk * kv_prefill + 0.001 * n * chunk


def write_layers(folder: Path, *, skew: bool = False, degree: int = 1, meta: bool = True) -> Path:
    """LLMServingSim's layout for a model of two layers: dense 100 + T µs a layer and operator, head 50 + n µs."""
    place = folder / f"tp{degree}"
    place.mkdir(parents=True, exist_ok=True)
    dense = [(layer, t, 100 + t) for layer in ("qkv_proj", "layernorm", "embedding") for t in (1, 16, 256)]
    _csv(place / "dense.csv", "layer,tokens,time_us", dense)
    _csv(place / "per_sequence.csv", "layer,sequences,time_us", [("lm_head", n, 50 + n) for n in (1, 16)])
    rows = [(0, 0, n, kv, attention_us(0, 0, n, kv)) for n, kv in product(DECODES, KVS)]
    rows += [(c, kp, 0, 0, attention_us(c, kp, 0, 0)) for c, kp in product(CHUNKS, (0, *KVS))]
    rows += [(*p, attention_us(*p)) for p in product(CHUNKS, (0, *KVS), DECODES, KVS)]
    _csv(place / "attention.csv", "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", rows)
    if skew:
        _csv(place / "skew.csv", "n,nb,pc,kp,kvs,kv_big,t_mean_us,t_max_us,t_skew_us", _skew_rows())
    if meta:
        (folder / "meta.yaml").write_text("model: toy\ngpu: toy GPU\nvllm_version: 0.19.0\n")
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 256,
        "max_position_embeddings": 4096,
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _skew_rows() -> list[tuple[float, ...]]:
    """A quarter of the way from the mean's time to the longest's, everywhere."""
    rows = []
    for n, kvs in product((4, 8), KVS[:3]):
        mean_us, longest_us = 10 + 0.01 * n * kvs * 1.75, 10 + 0.01 * n * kvs * 4
        rows.append((n, n // 4, 0, 0, kvs, 4 * kvs, mean_us, longest_us, mean_us + 0.25 * (longest_us - mean_us)))
    return rows


def write_run(
    folder: Path, *, num_requests: int = 12, gap_s: float = 0.01, meta: dict[str, object] | None = None
) -> Path:
    """A recorded run whose requests came every 10 ms and all took 20 ms to a first token and 5 ms a token."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for i in range(num_requests):
        queued = 500.0 + gap_s * i
        lines.append(
            {
                "request_id": f"r{i}",
                "input_toks": 32,
                "output_toks": 8,
                "arrival_time": 1e9 + gap_s * i,
                "queued_ts": queued,
                "scheduled_ts": queued,
                "first_token_ts": queued + 0.02,
                "last_token_ts": queued + 0.02 + 7 * 0.005,
            }
        )
    (folder / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = {"vllm_version": "0.19.0", "engine_kwargs": {"max_num_seqs": 8, "max_num_batched_tokens": 64}}
    (folder / "meta.json").write_text(json.dumps(said if meta is None else meta))
    _csv(folder / "timeseries.csv", "t,running,waiting,kv_cache_pct", [(0.05, 3, 0, 0.0), (0.1, 4, 1, 0.0)])
    return folder


def _csv(path: Path, header: str, rows: list[tuple[object, ...]]) -> None:
    path.write_text(header + "\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
