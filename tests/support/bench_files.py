"""Results of ``vllm bench serve`` 0.33.0, field by field in its order, with figures that agree with each other."""

from __future__ import annotations

from typing import Any


def summary(**changes: Any) -> dict[str, Any]:
    """Four requests by two clients in 1 s, 100 prompt and 10 output tokens: without ``--save-detailed``."""
    return {
        "date": "20261130-025504",
        "endpoint_type": "openai",
        "backend": "openai",
        "label": None,
        "model_id": "meta-llama/Llama-3.1-8B",
        "tokenizer_id": "meta-llama/Llama-3.1-8B",
        "num_prompts": 4,
        "tensor_parallel_size": "2",
        "max_num_seqs": "16",
        "max_num_batched_tokens": "512",
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": 2,
        "duration": 1.0,
        "completed": 4,
        "failed": 0,
        "total_input_tokens": 100,
        "total_output_tokens": 10,
        "request_throughput": 4.0,
        "request_goodput": None,
        "output_throughput": 10.0,
        "total_token_throughput": 110.0,
        "max_output_tokens_per_s": 10.0,
        "max_concurrent_requests": 3,
        "rtfx": 0.0,
        "mean_ttft_ms": 300.0,
        "median_ttft_ms": 300.0,
        "std_ttft_ms": 50.0,
        "p99_ttft_ms": 400.0,
        "mean_tpot_ms": 100.0,
        "median_tpot_ms": 100.0,
        "std_tpot_ms": 0.0,
        "p99_tpot_ms": 100.0,
        "mean_itl_ms": 100.0,
        "median_itl_ms": 100.0,
        "std_itl_ms": 0.0,
        "p99_itl_ms": 100.0,
        **changes,
    }


def detailed(**changes: Any) -> dict[str, Any]:
    """The same with lists (``--save-detailed``), open loop; times in seconds."""
    return {
        **summary(),
        "max_concurrency": None,
        "input_lens": [10, 20, 30, 40],
        "output_lens": [3, 3, 2, 2],
        "ttfts": [0.3, 0.4, 0.6, 0.7],
        "itls": [[0.1, 0.1], [0.1, 0.1], [0.1], [0.1]],
        "start_times": [1000.0, 1000.0, 1000.1, 1000.2],
        "generated_texts": ["", "", "", ""],
        "errors": ["", "", "", ""],
        "mean_ttft_ms": 500.0,
        "median_ttft_ms": 500.0,
        "std_ttft_ms": 158.1,
        "p99_ttft_ms": 697.0,
        **changes,
    }
