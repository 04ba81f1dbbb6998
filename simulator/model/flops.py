"""Parameters and FLOPs by the formulas that people use.

6 N FLOPs a token (Kaplan et al. 2020, arXiv:2001.08361, section 2.1): 2 N forward, 4 N backward. The
scores add 12 L h s with full attention (Chowdhery et al. 2022, PaLM, arXiv:2204.02311, appendix B), half
of it where the causal mask's upper triangle is not counted. N counts every parameter, or leaves out the
embeddings; of experts, only those that a token visits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simulator.model.shapes import attention_parameters, experts_parameters, mlp_parameters, norm_parameters
from simulator.spec import Transformer


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters. `active`: that one token visits; `embedding`: token and position tables and the head."""

    total: int
    embedding: int
    active: int

    @property
    def non_embedding(self) -> int:
        return self.total - self.embedding

    @property
    def active_non_embedding(self) -> int:
        return self.active - self.embedding


def parameters(model: Transformer) -> ParameterCount:
    """Count a transformer's parameters.

    >>> from simulator.model import model
    >>> parameters(model("llama-2-7b")).total
    6738415616
    """
    norm = sum(size for _, size in norm_parameters(model))
    embedding = model.vocab * model.hidden * (1 if model.tied_embeddings else 2)
    if model.position == "learned":
        embedding += model.max_positions * model.hidden
    if model.head_bias:
        embedding += model.vocab
    total = active = embedding + norm
    for layer in range(model.layers):
        dense = sum(attention_parameters(model)) + model.norms_per_layer * norm
        if model.is_moe_layer(layer):
            routed, visited, always = experts_parameters(model)
            total += dense + routed + always
            active += dense + visited + always
        else:
            total += dense + sum(mlp_parameters(model))
            active += dense + sum(mlp_parameters(model))
    return ParameterCount(total, embedding, active)


def flops_per_token(
    model: Transformer,
    sequence_length: int,
    *,
    attention: Literal["full", "causal", "none"] = "full",
    embeddings: Literal["all", "logits", "none"] = "logits",
) -> float:
    """FLOPs of forward and backward for one token.

    `embeddings`: "all" counts every parameter (plain 6 N), "logits" the matrix multiplications that are
    done (the head, not the look-up tables), "none" the layers only.
    """
    count = parameters(model)
    weights = {
        "all": count.active,
        "logits": count.active_non_embedding + model.vocab * model.hidden,
        "none": count.active_non_embedding,
    }[embeddings]
    return 6.0 * weights + 3.0 * attention_flops_per_token(model, sequence_length, attention)


def attention_flops_per_token(
    model: Transformer, sequence_length: int, attention: Literal["full", "causal", "none"] = "full"
) -> float:
    """Forward FLOPs of scores and context: 2 s (d_qk + d_v) a head and layer."""
    if attention == "none":
        return 0.0
    latent = model.latent_attention
    width = model.head_dim + (latent.v_head_dim if latent else model.head_dim)
    total = 0.0
    for layer in range(model.layers):
        length = keys_of_layer(model, layer, sequence_length)
        total += 2.0 * model.heads * width * length
    return total * (0.5 if attention == "causal" else 1.0)


def keys_of_layer(model: Transformer, layer: int, sequence_length: int) -> int:
    """How many keys a query of a layer looks at: the sequence, or the sliding window."""
    if not model.sliding_window:
        return sequence_length
    every = model.sliding_window_every
    if every > 1 and layer % every == every - 1:
        return sequence_length
    return min(sequence_length, 2 * model.sliding_window)
