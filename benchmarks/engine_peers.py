"""Hugging Face's two ways to serve the requests of ``engine.py``: padded ``generate``, and continuous batching."""

from __future__ import annotations

import logging
import os
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching import cache as their_cache

from batchtwin.executor import PRESETS
from batchtwin.executor.models import LoadedModel

if TYPE_CHECKING:
    from engine import Outputs, Run, Workload

GENERATE_BATCHES = (8, 16, 32)
CONTINUOUS_SETTINGS = (
    (256, 8, "fifo"),
    (64, 8, "fifo"),
    (256, 4, "fifo"),
    (256, 8, "prefill_first"),
    (256, 16, "fifo"),
    (512, 64, "fifo"),
)
"""max_batch_tokens, max_requests_per_batch, scheduler_type."""
PAGE_TOKENS, MAX_TOKENS, MOST_NEW_TOKENS = 32, 384, 128


def plain_copy(loaded: LoadedModel, attention: str) -> PreTrainedModel:
    """The same weights under transformers' own attention."""
    peer: PreTrainedModel = AutoModelForCausalLM.from_config(PRESETS["tiny-llama"](), attn_implementation=attention)
    peer.load_state_dict(loaded.model.state_dict())
    return peer.eval()


def generate_runs(loaded: LoadedModel, work: Workload) -> dict[str, Run]:
    """Padded static batches, by arrival or sorted by output length."""
    peer = plain_copy(loaded, "sdpa")
    return {
        f"generate, batches of {batch}, {order}": partial(run_generate, peer, work, batch, by_output=by_output)
        for batch in GENERATE_BATCHES
        for order, by_output in (("by arrival", False), ("by output length", True))
    }


def continuous_runs(loaded: LoadedModel, work: Workload) -> dict[str, Run]:
    """Continuous batching as transformers does it (what ``generate_batch`` runs on)."""
    peer = plain_copy(loaded, "paged|sdpa")
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
    if find_spec("psutil") is None:  # it then takes the machine's memory for 0 bytes, and refuses to start
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        their_cache.get_device_and_memory_breakdown = lambda: (torch.device("cpu"), total, total // 8, total // 8)
    return {
        f"generate_batch, {requests} requests, {tokens} tokens, {scheduler}": partial(
            run_continuous, peer, work, tokens, requests, scheduler
        )
        for tokens, requests, scheduler in CONTINUOUS_SETTINGS
    }


def run_generate(model: PreTrainedModel, work: Workload, batch_size: int, *, by_output: bool) -> Outputs:
    """Left-padded static batches; each runs as long as its longest output."""
    names = sorted(work.output_lens, key=lambda name: work.output_lens[name]) if by_output else list(work.prompts)
    outputs: Outputs = {}
    for at in range(0, len(names), batch_size):
        group = names[at : at + batch_size]
        longest = max(len(work.prompts[name]) for name in group)
        ids = torch.zeros((len(group), longest), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, name in enumerate(group):
            prompt = work.prompts[name]
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        num_new = max(work.output_lens[name] for name in group)
        out = model.generate(ids, attention_mask=mask, max_new_tokens=num_new, do_sample=False)
        for row, name in enumerate(group):
            outputs[name] = out[row, longest : longest + work.output_lens[name]].tolist()
    return outputs


def run_continuous(model: PreTrainedModel, work: Workload, tokens: int, requests: int, scheduler: str) -> Outputs:
    """Everything queued at once; each request stops at its own length, which ``generate_batch`` itself cannot say."""
    config = ContinuousBatchingConfig(
        page_size=PAGE_TOKENS,
        num_blocks=len(work.prompts) * MAX_TOKENS // PAGE_TOKENS + 8,
        max_batch_tokens=tokens,
        max_requests_per_batch=requests,
        scheduler_type=scheduler,
        allow_block_sharing=False,
        use_cuda_graph=False,
    )
    chosen = GenerationConfig(do_sample=False, max_new_tokens=MOST_NEW_TOKENS, eos_token_id=-1, pad_token_id=0)
    outputs: Outputs = {}
    with (
        torch.no_grad(),
        model.continuous_batching_context_manager(
            generation_config=chosen, continuous_batching_config=config, block=True, timeout=5
        ) as manager,
    ):
        for name, prompt in work.prompts.items():
            manager.add_request(prompt, request_id=name, max_new_tokens=work.output_lens[name])
        while len(outputs) < len(work.prompts):
            result = manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                outputs[result.request_id] = list(result.generated_tokens)
            elif result is None and not manager.is_running():
                raise RuntimeError("transformers' continuous batching stopped before every request was served")
    return outputs
