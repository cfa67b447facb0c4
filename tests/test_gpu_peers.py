"""How other people's kernels are called: stand-ins of their documented signatures compute what they are told."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = pytest.importorskip("torch")
    Tensor = Any

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
DECODE, PREFILL = [(37, 1)] * 3, [(0, 19)] * 2
"""Contexts of 38 and 19 tokens in pages of 16: three pages with 6 tokens in the last, two with 3."""


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_peers

    return gpu_peers


def _case(rows: list[tuple[int, int]]) -> Any:
    import gpu_kernels

    case = gpu_kernels.make_case(rows, gpu_kernels.Shape(4, 2, 16, 16, torch.float32), "cpu")
    gpu_kernels.attention_call(case)  # stores the new keys and values
    return case


def _expected(case: Any) -> Tensor:
    from batchtwin.kernels import reference

    tables, starts, lens = (torch.from_numpy(a) for a in (case.block_tables, case.query_start_loc, case.seq_lens))
    return reference.paged_attention(case.query, case.key_cache, case.value_cache, starts, lens, tables, case.scale)


def _check(peers: ModuleType, name: str, rows: list[tuple[int, int]]) -> Any:
    peer = next(peer for peer in peers.PEERS if peer.name == name)
    case = _case(rows)
    call = peer.decode(case) if rows[0][0] else peer.prefill(case)
    for _ in range(2):  # a planned call must be repeatable
        out = call()
        assert out.shape == case.query.shape
        assert float((out - _expected(case)).abs().max()) < 2e-6
    return case


def _dense(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """[new, heads, head size] of one sequence over [tokens, KV heads, head size]; the last query sees all tokens."""
    group = q.shape[1] // k.shape[1]
    k, v = (t.double().repeat_interleave(group, dim=1) for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * scale
    position = torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0]
    scores = scores.masked_fill(torch.arange(k.shape[0])[None] > position, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), v).to(q.dtype)


def _paged(cache: Tensor, pages: Tensor, length: int) -> Tensor:
    assert pages.dtype == torch.int32
    return cache[pages.long()].flatten(0, 1)[:length]


def _install(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    module = ModuleType(name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize("name", ["sdpa", "flex_attention"])
@pytest.mark.parametrize("rows", [DECODE, PREFILL], ids=["decode", "prefill"])
def test_pytorchs_own_give_what_ours_give(peers: ModuleType, name: str, rows: list[tuple[int, int]]) -> None:
    _check(peers, name, rows)


def _flash2() -> dict[str, Callable[..., Any]]:
    def flash_attn_with_kvcache(
        q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor = None, v: Tensor = None, rotary_cos: Tensor = None,
        rotary_sin: Tensor = None, cache_seqlens: Tensor = None, cache_batch_idx: Tensor = None,
        cache_leftpad: Tensor = None, block_table: Tensor = None, softmax_scale: float | None = None,
        causal: bool = False,
    ) -> Tensor:  # fmt: skip
        assert block_table is None, "pages of a multiple of 256 tokens only"
        assert cache_seqlens.dtype == torch.int32
        assert causal
        assert softmax_scale is not None
        lens = cache_seqlens.tolist()
        return torch.stack([_dense(q[i], k_cache[i, :n], v_cache[i, :n], softmax_scale) for i, n in enumerate(lens)])

    def flash_attn_func(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
    ) -> Tensor:
        assert causal
        assert softmax_scale is not None
        return torch.stack([_dense(*rows, softmax_scale) for rows in zip(q, k, v, strict=True)])

    return {"flash_attn_with_kvcache": flash_attn_with_kvcache, "flash_attn_func": flash_attn_func}


@pytest.mark.parametrize("rows", [DECODE, PREFILL], ids=["decode", "prefill"])
def test_flash_attention_2_gets_contiguous_tokens(
    peers: ModuleType, monkeypatch: pytest.MonkeyPatch, rows: list[tuple[int, int]]
) -> None:
    _install(monkeypatch, "flash_attn", **_flash2())
    _check(peers, "flash_attn", rows)


def test_flash_attention_3_reads_our_pages_and_may_give_a_log_sum_too(
    peers: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flash_attn_with_kvcache(
        q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor = None, v: Tensor = None, qv: Tensor = None,
        cache_seqlens: Tensor = None, page_table: Tensor = None, softmax_scale: float | None = None,
        causal: bool = False,
    ) -> Tensor:  # fmt: skip
        assert causal
        rows = zip(q, page_table, cache_seqlens.tolist(), strict=True)
        return torch.stack([_dense(x, _paged(k_cache, p, n), _paged(v_cache, p, n), softmax_scale) for x, p, n in rows])

    def flash_attn_func(
        q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False
    ) -> tuple[Tensor, None]:
        return _flash2()["flash_attn_func"](q, k, v, softmax_scale=softmax_scale, causal=causal), None

    _install(
        monkeypatch,
        "flash_attn_interface",
        flash_attn_with_kvcache=flash_attn_with_kvcache,
        flash_attn_func=flash_attn_func,
    )
    _check(peers, "flash_attn_3", DECODE)
    _check(peers, "flash_attn_3", PREFILL)


class _Wrapper:
    """Both of FlashInfer's: planned once, then run on queries and a pair of caches [pages, page size, heads, dims]."""

    plans: list[dict[str, Any]]

    def __init__(self, workspace: Tensor, kv_layout: str = "NHD", *, use_tensor_cores: bool = False) -> None:
        assert (workspace.dtype, kv_layout) == (torch.uint8, "NHD")

    def _run(self, q: Tensor, caches: tuple[Tensor, Tensor], starts: list[int]) -> Tensor:
        plan = self.plans[-1]
        indptr, out = plan["indptr"].tolist(), []
        for i, last in enumerate(plan["last_page_len"].tolist()):
            pages = plan["indices"][indptr[i] : indptr[i + 1]]
            length = (len(pages) - 1) * plan["page_size"] + last
            keys, values = (_paged(cache, pages, length) for cache in caches)
            out.append(_dense(q[starts[i] : starts[i + 1]], keys, values, plan["sm_scale"]))
        return torch.cat(out)


def _flashinfer() -> tuple[list[dict[str, Any]], dict[str, type]]:
    made: list[dict[str, Any]] = []

    class Decode(_Wrapper):
        plans = made

        def plan(
            self, indptr: Tensor, indices: Tensor, last_page_len: Tensor, num_qo_heads: int, num_kv_heads: int,
            head_dim: int, page_size: int, *, q_data_type: Any = "float16", kv_data_type: Any = None,
            sm_scale: float | None = None,
        ) -> None:  # fmt: skip
            made.append({name: value for name, value in locals().items() if name != "self"})

        def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
            return self._run(q, paged_kv_cache, list(range(len(q) + 1)))

    class Prefill(_Wrapper):
        plans = made

        def plan(
            self, qo_indptr: Tensor, paged_kv_indptr: Tensor, paged_kv_indices: Tensor, paged_kv_last_page_len: Tensor,
            num_qo_heads: int, num_kv_heads: int, head_dim_qk: int, page_size: int, *, causal: bool = False,
            sm_scale: float | None = None, q_data_type: Any = "float16", kv_data_type: Any = None,
        ) -> None:  # fmt: skip
            assert causal
            assert qo_indptr.dtype == torch.int32
            rest = {"indptr": paged_kv_indptr, "indices": paged_kv_indices, "last_page_len": paged_kv_last_page_len}
            made.append({name: value for name, value in locals().items() if name != "self"} | rest)

        def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
            return self._run(q, paged_kv_cache, made[-1]["qo_indptr"].tolist())

    return made, {"BatchDecodeWithPagedKVCacheWrapper": Decode, "BatchPrefillWithPagedKVCacheWrapper": Prefill}


@pytest.mark.parametrize(
    ("rows", "indptr", "last"),
    [(DECODE, [0, 3, 6, 9], [6, 6, 6]), (PREFILL, [0, 2, 4], [3, 3])],
    ids=["decode", "prefill"],
)
def test_flashinfer_is_planned_once_outside_of_the_call(
    peers: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    rows: list[tuple[int, int]],
    indptr: list[int],
    last: list[int],
) -> None:
    plans, members = _flashinfer()
    _install(monkeypatch, "flashinfer", **members)
    case = _check(peers, "flashinfer", rows)
    assert len(plans) == 1
    plan = plans[0]
    assert plan["indptr"].tolist() == indptr
    assert plan["last_page_len"].tolist() == last
    assert plan["indices"].tolist() == [int(page) for row in case.block_tables for page in row]
    assert {plan[name].dtype for name in ("indptr", "indices", "last_page_len")} == {torch.int32}
    assert (plan["num_qo_heads"], plan["num_kv_heads"], plan["page_size"]) == (4, 2, 16)
    assert (plan["q_data_type"], plan["kv_data_type"]) == (torch.float32, torch.float32)


def _varlen(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, cu_seqlens_q: Tensor, seqused_k: Tensor, block_table: Tensor,
    softmax_scale: float,
) -> None:  # fmt: skip
    starts = cu_seqlens_q.tolist()
    for i, length in enumerate(seqused_k.tolist()):
        keys, values = (_paged(cache, block_table[i], length) for cache in (k, v))
        out[starts[i] : starts[i + 1]] = _dense(q[starts[i] : starts[i + 1]], keys, values, softmax_scale)


@pytest.mark.parametrize("has_3", [True, False])
@pytest.mark.parametrize("rows", [DECODE, PREFILL], ids=["decode", "prefill"])
def test_vllms_flash_attention_reads_our_pages(
    peers: ModuleType, monkeypatch: pytest.MonkeyPatch, rows: list[tuple[int, int]], has_3: bool
) -> None:
    versions: list[int] = []

    def flash_attn_varlen_func(
        q: Tensor, k: Tensor, v: Tensor, max_seqlen_q: int, cu_seqlens_q: Tensor, max_seqlen_k: int,
        cu_seqlens_k: Tensor = None, seqused_k: Tensor = None, softmax_scale: float | None = None,
        causal: bool = False, block_table: Tensor = None, out: Tensor = None, fa_version: int = 2,
    ) -> Tensor:  # fmt: skip
        assert (max_seqlen_q, max_seqlen_k) == (rows[0][1], sum(rows[0]))
        assert causal
        versions.append(fa_version)
        assert softmax_scale is not None
        _varlen(q, k, v, out, cu_seqlens_q, seqused_k, block_table, softmax_scale)
        return out

    _install(
        monkeypatch,
        "vllm.vllm_flash_attn",
        flash_attn_varlen_func=flash_attn_varlen_func,
        is_fa_version_supported=lambda version: has_3 and version == 3,
    )
    _check(peers, "vllm_flash_attn", rows)
    assert set(versions) == {3 if has_3 else 2}


@pytest.mark.parametrize("place", ["vllm.v1.attention.ops", "vllm.attention.ops"])
@pytest.mark.parametrize("segmented", [True, False])
def test_vllms_triton_kernel_gets_its_segments_where_it_asks_for_them(
    peers: ModuleType, monkeypatch: pytest.MonkeyPatch, place: str, segmented: bool
) -> None:
    seen: list[dict[str, Any]] = []

    def older(
        q: Tensor, k: Tensor, v: Tensor, out: Tensor, cu_seqlens_q: Tensor, max_seqlen_q: int, seqused_k: Tensor,
        max_seqlen_k: int, softmax_scale: float, causal: bool, window_size: tuple[int, int], block_table: Tensor,
        softcap: float, q_descale: Tensor, k_descale: Tensor, v_descale: Tensor, sinks: Tensor = None,
    ) -> None:  # fmt: skip
        assert (causal, window_size, softcap, q_descale) == (True, (-1, -1), 0.0, None)
        assert k_descale.shape == v_descale.shape == (len(seqused_k), k.shape[2])
        _varlen(q, k, v, out, cu_seqlens_q, seqused_k, block_table, softmax_scale)

    def newer(
        *, seq_threshold_3D: int, num_par_softmax_segments: int, softmax_segm_output: Tensor,
        softmax_segm_max: Tensor, softmax_segm_expsum: Tensor, **rest: Any,
    ) -> None:  # fmt: skip
        seen.append({"threshold": seq_threshold_3D, "segments": num_par_softmax_segments})
        assert softmax_segm_output.shape == (64, 4, 16, 16)
        assert softmax_segm_max.shape == softmax_segm_expsum.shape == (64, 4, 16)
        older(**rest)

    _install(monkeypatch, "vllm")  # an older vLLM lacks the newer place, and is no package to look further in
    _install(monkeypatch, f"{place}.triton_unified_attention", unified_attention=newer if segmented else older)
    _check(peers, "vllm_triton", DECODE)
    _check(peers, "vllm_triton", PREFILL)
    assert seen == [{"threshold": 64, "segments": 16}] * 4 * segmented


class _Report:
    """Of a run whose kernels were found right."""

    def __init__(self, peers: ModuleType) -> None:
        self.dry_run, self.device, self.kept = True, "cpu", list[Any]()
        self.sections = {"correctness": {"checked": [{"variant": str(peers.variants(True)[0]), "right": True}]}}

    def left_s(self) -> float:
        return 1e9

    def keep(self, name: str, done: dict[str, Any]) -> None:
        self.kept.append(json.loads(json.dumps(done)))


def _with(peers: ModuleType, monkeypatch: pytest.MonkeyPatch, **prepares: Callable[..., Any]) -> dict[str, Any]:
    made = tuple(peers.Peer(name, ("torch",), prepare, prepare) for name, prepare in prepares.items())
    monkeypatch.setattr(peers, "PEERS", made)
    report = _Report(peers)
    found: dict[str, Any] = peers.peers(report)
    assert report.kept[-1]["timed"] == found["timed"]
    return found


def test_a_peer_that_fails_or_disagrees_is_a_row_and_gets_no_time(
    peers: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(case: Any) -> Any:
        raise RuntimeError("head size 16 is not supported")

    sdpa = peers.PEERS[0].decode
    found = _with(peers, monkeypatch, refuses=refuses, wrong=lambda case: lambda: case.query * 0, right=sdpa)
    row = next(row for row in found["timed"] if row["kind"] == "decode")
    assert row["refuses"] == {"failed": "RuntimeError: head size 16 is not supported"}
    assert row["wrong"] == {"disagrees": pytest.approx(1.0)}
    assert row["right"]["over_ours"] == pytest.approx(row["right"]["p50_us"] / row["ours"]["p50_us"])
    assert row["right"]["version"].startswith("torch ")
    assert "wrong no time" in found["summary"]


def test_who_fails_slowly_is_not_tried_again(peers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[object] = []

    def refuses(case: Any) -> Any:
        tries.append(case)
        raise RuntimeError("no compiler")

    monkeypatch.setattr(peers, "SLOW_S", -1.0)
    monkeypatch.setattr(peers, "_shapes", lambda dry_run: [("decode", 1, 20), ("decode", 2, 20)])
    found = _with(peers, monkeypatch, refuses=refuses)
    assert len(tries) == 1
    assert found["timed"][1]["refuses"] == {"skipped": "it failed slowly before: RuntimeError: no compiler"}


def test_what_is_not_installed_is_listed(peers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = peers.Peer("absent", ("batchtwin-has-no-such-peer",), lambda case: None, lambda case: None)
    monkeypatch.setattr(peers, "PEERS", (absent,))
    found = peers.peers(_Report(peers))
    assert found["versions"] == {"absent": "not installed"}
    assert all("absent" not in row for row in found["timed"])


def test_nothing_is_compared_with_a_kernel_that_is_wrong(peers: ModuleType) -> None:
    report = _Report(peers)
    report.sections["correctness"]["checked"][0]["right"] = False
    assert "nothing is compared" in peers.peers(report)["skipped"]


def test_sequences_of_different_lengths_are_no_case_for_a_peer(peers: ModuleType) -> None:
    with pytest.raises(ValueError, match="equally long"):
        peers.contiguous_kv(_case([(37, 1), (20, 1)]))
