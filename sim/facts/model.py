"""A model's shape, and the arithmetic that follows from it: parameters, bytes of weights, bytes of KV a token."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ..cost.profile import ModelFacts
from .errors import FactsError

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1}
KV_DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
"""vLLM's ``--kv-cache-dtype`` besides ``auto``, which takes the model's."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the linear layers' weights are stored; embeddings, LM head, norms and routers stay in the model's dtype."""

    method: str
    bits: int
    group_size: int | None = None
    """Weights that share one scale; None where scales are too few to count (a channel, a tensor)."""
    bits_a_group: int = 0
    """Scale and zero point of a group."""

    @property
    def bytes_per_weight(self) -> float:
        """Bytes of one weight with its share of the group's scale and zero point."""
        return (self.bits + (self.bits_a_group / self.group_size if self.group_size else 0.0)) / 8


QUANTIZATIONS = {
    "awq": Quantization("awq", 4, 128, 20),
    "gptq": Quantization("gptq", 4, 128, 20),
    "gptq-int8": Quantization("gptq-int8", 8, 128, 24),
    "fp8": Quantization("fp8", 8),
    "int8": Quantization("int8", 8),
    "bitsandbytes": Quantization("bitsandbytes", 4, 64, 8),
    "mxfp4": Quantization("mxfp4", 4, 32, 8),
    "nvfp4": Quantization("nvfp4", 4, 16, 8),
}
"""The usual ones by name. AWQ and GPTQ: a 16-bit scale and a zero point for 128 weights; the others as their formats
define them (bitsandbytes: NF4, one 8-bit absmax for 64 weights)."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder's shape as its ``config.json`` gives it. Counts are of the whole model; byte counts take the
    tensor-parallel degree and are of one GPU.
    """

    name: str
    model_type: str
    num_layers: int
    hidden_size: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    """Width of the MLP; with experts, of one expert."""
    vocab_size: int
    tie_word_embeddings: bool
    gated_mlp: bool
    dtype: str
    max_model_len: int
    sliding_window: int | None = None
    """Tokens that (some) layers look back; KV is counted as if every layer kept all tokens, an upper bound."""
    quantization: Quantization | None = None
    num_experts: int = 0
    num_experts_per_token: int = 0
    shared_intermediate_size: int = 0
    """Width of an expert that every token takes."""
    extras_a_layer: int = 0
    """Parameters of a layer's norms and biases, and its router."""
    extras: int = 0
    """Parameters of the final norm, learned positions and the LM head's bias."""
    rotary_dim: int = 0
    """Rotated part of a head; 0 with learned positions."""

    @property
    def dtype_bytes(self) -> int:
        """Bytes of an activation, of an embedding, and of a weight that is not quantised."""
        return DTYPE_BYTES[self.dtype]

    @property
    def attention_parameters(self) -> int:
        """Weights of one layer's Q, K, V and output projections."""
        return 2 * self.hidden_size * self.head_dim * (self.num_q_heads + self.num_kv_heads)

    @property
    def mlp_parameters(self) -> int:
        """Weights of one layer's MLP, all experts together."""
        return self._mlp(max(self.num_experts, 1))

    @property
    def num_parameters(self) -> int:
        """All parameters; a tied LM head counts once."""
        layer = self.attention_parameters + self.mlp_parameters + self.extras_a_layer
        return self.num_layers * layer + self.embedding_parameters + self.extras

    @property
    def num_active_parameters(self) -> int:
        """Parameters that one token meets: of the experts only those it is routed to."""
        return self.num_parameters - self.num_layers * (
            self.mlp_parameters - self._mlp(self.num_experts_per_token or 1)
        )

    @property
    def embedding_parameters(self) -> int:
        """Token embeddings and LM head; once if they are tied."""
        return self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)

    def check_tensor_parallel(self, degree: int) -> None:
        """Raise ``FactsError`` unless vLLM could split the model over ``degree`` GPUs."""
        if degree < 1 or self.num_q_heads % degree:
            fits = [str(n) for n in (1, 2, 4, 8, 16, 32) if self.num_q_heads % n == 0]
            raise FactsError(
                f"{self.name} has {self.num_q_heads} attention heads, which {degree} GPUs cannot share evenly: choose "
                f"a tensor-parallel size of {', '.join(fits)}."
            )

    def weight_bytes(self, tensor_parallel_size: int = 1) -> int:
        """Bytes of weights on each GPU, with the rotary table, as vLLM logs them. Projections and embeddings are
        split (a KV head is copied where there are fewer than GPUs), norms and routers are copied. Raises
        ``FactsError`` if the heads cannot be split.
        """
        tp = tensor_parallel_size
        self.check_tensor_parallel(tp)
        attention = 2 * self.hidden_size * self.head_dim * (self.num_q_heads // tp + self.kv_heads_a_gpu(tp))
        linear = self.num_layers * (attention + self.mlp_parameters / tp)
        per_weight = self.quantization.bytes_per_weight if self.quantization else float(self.dtype_bytes)
        copied = self.num_layers * self.extras_a_layer + self.extras + self.max_model_len * self.rotary_dim
        return round(linear * per_weight) + (self.embedding_parameters // tp + copied) * self.dtype_bytes

    def kv_heads_a_gpu(self, tensor_parallel_size: int = 1) -> int:
        """KV heads that each GPU holds: at least one."""
        return max(1, self.num_kv_heads // tensor_parallel_size)

    def kv_bytes_per_token(self, tensor_parallel_size: int = 1, kv_dtype: str = "auto") -> int:
        """Bytes of K and V that one token takes on each GPU, over all layers: 2 · layers · KV heads · head size ·
        bytes of the KV dtype. Raises ``FactsError`` for a dtype vLLM's cache does not have.
        """
        if kv_dtype != "auto" and kv_dtype not in KV_DTYPE_BYTES:
            raise FactsError(f"There is no KV cache dtype {kv_dtype!r}; known are auto, {', '.join(KV_DTYPE_BYTES)}.")
        size = KV_DTYPE_BYTES.get(kv_dtype, self.dtype_bytes)
        return 2 * self.num_layers * self.kv_heads_a_gpu(tensor_parallel_size) * self.head_dim * size

    def facts(self) -> ModelFacts:
        """The same as a profile's model, whole (one GPU) and without quantisation."""
        return ModelFacts(
            name=self.name,
            digest=self.digest(),
            dtype=self.dtype,
            num_layers=self.num_layers,
            num_q_heads=self.num_q_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            gated_mlp=self.gated_mlp,
            vocab_size=self.vocab_size,
            num_parameters=self.num_parameters,
            max_model_len=self.max_model_len,
            dtype_bytes=self.dtype_bytes,
        )

    def digest(self) -> str:
        """A name for exactly this shape, whatever the model is called."""
        shape = "|".join(str(getattr(self, name)) for name in self.__slots__ if name != "name")
        return hashlib.sha256(shape.encode()).hexdigest()[:16]

    def _mlp(self, num_experts: int) -> int:
        matrices = 3 if self.gated_mlp else 2
        return matrices * self.hidden_size * (num_experts * self.intermediate_size + self.shared_intermediate_size)
