"""Published models, and what by hand they cost.

In the comments a layer's weights are what a token is multiplied with; L = 2 x weights / (numbers of
queries and of values), over all layers for the weights, over a kind's layers for the rest.
"""

from __future__ import annotations

import pytest

from packer.hardware import workload_of_model
from packer.shapes.read import shape_of
from packer.workload import Span, Workload
from tests.model_shapes import (
    DEEPSEEK_V2_LITE,
    DEEPSEEK_V3,
    GEMMA_2_9B,
    GEMMA_3_27B,
    GPT_OSS_20B,
    GRANITE_HYBRID,
    LLAMA_2_7B,
    LLAMA_3_8B,
    LLAMA_3_70B,
    LLAMA_4_MAVERICK,
    LLAMA_4_SCOUT,
    MIXTRAL_8X7B,
    NEMOTRON_3_NANO,
    NEMOTRON_NANO_9B_V2,
    QWEN1_5_MOE_A2_7B,
    QWEN3_30B_A3B,
    QWEN3_NEXT_80B_A3B,
    Config,
)


def window(tokens: int, crossover: int) -> tuple[Span, ...]:
    return (Span(mask="window", tokens=tokens, crossover=crossover),)


def chunk(tokens: int, crossover: int) -> tuple[Span, ...]:
    return (Span(mask="chunk", tokens=tokens, crossover=crossover),)


COSTS: dict[str, tuple[Config, int, tuple[Span, ...]]] = {
    # 2h + 2k + 3f where queries are as wide as the hidden state.
    "Llama-2-7B": (LLAMA_2_7B, 2 * 4096 + 2 * 4096 + 3 * 11_008, ()),  # 49,408
    "Llama-3-8B": (LLAMA_3_8B, 2 * 4096 + 2 * 1024 + 3 * 14_336, ()),  # 53,248
    "Llama-3-70B": (LLAMA_3_70B, 2 * 8192 + 2 * 1024 + 3 * 28_672, ()),  # 104,448
    # Two of eight experts, and eight columns of router.
    "Mixtral-8x7B": (MIXTRAL_8X7B, 2 * 4096 + 2 * 1024 + 2 * 3 * 14_336 + 8, ()),  # 96,264
    # h = 2048, queries 4096 wide: half of 2 x 4096 + 2 x 512 + 8 x 3 x 768 + 128 = 27,776.
    "Qwen3-30B-A3B": (QWEN3_30B_A3B, 13_888, ()),
    # Four experts of 1408 and a shared one of 5632, 60 columns of router.
    "Qwen1.5-MoE": (QWEN1_5_MOE_A2_7B, 4 * 2048 + 3 * (4 * 1408 + 5632) + 60, ()),  # 42,044
    # h = 3584, queries 4096: 55,296 columns a layer, x 3584 / 4096 x 2, half of the layers each.
    "gemma-2-9b": (GEMMA_2_9B, 96_768, window(4096, 96_768)),
    # 76,800 columns of 5376 a layer; 10 of 62 layers (5, 11, .. 59) see everything.
    # 62 x 76,800 x 5376 / (10 x 4096) = 624,960; / (52 x 4096) = 120,184.6
    "gemma-3-27b": (GEMMA_3_27B, 624_960, window(1024, 120_184)),
    # Attention 7168 x 1536 + 1536 x 24,576 + 7168 x 576 + 512 x 32,768 + 16,384 x 7168
    # = 187,105,280; feed-forward 3 x 7168 x 18,432 = 396,361,728 in every layer (9 experts of 2048
    # are as wide), 58 routers of 7168 x 256: 35,697,917,952 in all. Pairs 61 x 128 x (192 + 128).
    "DeepSeek-V3": (DEEPSEEK_V3, 2 * 35_697_917_952 // 2_498_560, ()),  # 28,574
    # Columns of 2048: attention 3072 + 576 + 1024 + 2048 = 6720, dense 32,832 once, 26 times
    # 3 x 8 x 1408 + 64 = 33,856: 1,094,528 in all. Pairs 27 x 16 x 320.
    "DeepSeek-V2-Lite": (DEEPSEEK_V2_LITE, 2 * 2048 * 1_094_528 // 138_240, ()),  # 32,430
    # h = 2880: 2 x 4096 + 2 x 512 + 4 x 3 x 2880 + 32 = 43,808 columns, x 2880 / 4096 x 2.
    "gpt-oss-20b": (GPT_OSS_20B, 61_605, window(128, 61_605)),
    # Columns of 2048: 12 x (4096 + 4096 gate + 1024 + 4096) of attention; 36 x (4096 + 8192 + 64 +
    # 4096, convolution 16, state 6 x 32 x 128 x 128 FLOPs = 768); 48 x (3 x 11 x 512 + 512)
    # = 1,615,680. Pairs 12 x 2 x 4096.
    "Qwen3-Next": (QWEN3_NEXT_80B_A3B, 1_615_680 * 2048 // (12 * 4096), ()),  # 67,320
    # h = 5120: 61,456 columns a layer; every fourth sees everything.
    "Llama-4-Scout": (LLAMA_4_SCOUT, 4 * 61_456, chunk(8192, 81_941)),
    # Every second layer has experts: (12,288 + 3 x 16,384 + (12,288 + 3 x 16,384 + 128)) / 2.
    "Llama-4-Maverick": (LLAMA_4_MAVERICK, 4 * 61_504, chunk(8192, 82_005)),
    # 4 x 1536 x (3072 + 1024) of attention; 36 x (1536 x 6448 + 4 x 3328 + 3072 x 1536, state
    # 3 x 3072 x 128) of Mamba; 40 x 1536 x (3 x (6 x 512 + 1024) + 64) of experts: 1,353,437,184.
    # Pairs 4 x 2 x 1536.
    "Granite hybrid": (GRANITE_HYBRID, 2 * 1_353_437_184 // 12_288, ()),
    # 27 x (4480 x 22,656 + 10,240 x 4480 + 4 x 12,288 + 3 x 10,240 x 128) of Mamba, 4 x 2 x 4480 x
    # (5120 + 1024) of attention, 25 x 2 x 4480 x 15,680: 7,819,116,544. Pairs 4 x 2 x 5120.
    "Nemotron-Nano-9B-v2": (NEMOTRON_NANO_9B_V2, 2 * 7_819_116_544 // 40_960, ()),
}


def workload(config: Config) -> Workload:
    return workload_of_model(shape_of(config))


@pytest.mark.parametrize("name", COSTS)
def test_a_published_model_costs_what_its_weights_say(name: str) -> None:
    config, crossover, spans = COSTS[name]
    assert workload(config) == Workload(crossover=crossover, spans=spans)


@pytest.mark.parametrize(
    ("config", "embeddings", "active"),
    [
        (LLAMA_2_7B, 2, 6.74e9),
        (MIXTRAL_8X7B, 2, 12.9e9),
        (QWEN3_30B_A3B, 2, 3.35e9),
        (GEMMA_2_9B, 1, 9.24e9),
        (DEEPSEEK_V3, 2, 37.6e9),
        (GPT_OSS_20B, 1, 3.61e9),
        (LLAMA_4_SCOUT["text_config"], 2, 17.2e9),
        (NEMOTRON_NANO_9B_V2, 2, 8.89e9),
        (NEMOTRON_3_NANO, 1, 3.23e9),
    ],
    ids=lambda value: value.get("model_type") if isinstance(value, dict) else None,
)
def test_weights_are_the_active_parameters_that_are_published(
    config: Config, embeddings: int, active: float
) -> None:
    embedding = embeddings * config["vocab_size"] * config["hidden_size"]
    weights = shape_of(config).linear_flops / 2
    assert weights + embedding == pytest.approx(active, rel=0.015)


def kinds(config: Config) -> list[str]:
    return [f"{layer.mask} {layer.span}" for layer in shape_of(config).layers]


FOUR = LLAMA_3_8B | {"num_hidden_layers": 4, "sliding_window": 512}
FULL, WINDOW = "full 0", "window 512"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"model_type": "mistral"}, [WINDOW] * 4),
        ({"model_type": "mistral", "sliding_window": None}, [FULL] * 4),
        ({"model_type": "qwen2", "max_window_layers": 3}, [FULL] * 4),
        (
            {"model_type": "qwen2", "max_window_layers": 3, "use_sliding_window": True},
            [FULL] * 3 + [WINDOW],
        ),
        (
            {"model_type": "qwen2_moe", "max_window_layers": 2, "use_sliding_window": True},
            [WINDOW, FULL, FULL, FULL],
        ),
        ({"model_type": "gemma2"}, [WINDOW, FULL] * 2),
        ({"model_type": "cohere2"}, [WINDOW] * 3 + [FULL]),
        ({"model_type": "new", "sliding_window_pattern": 2}, [WINDOW, FULL] * 2),
        (
            {"layer_types": ["full_attention", "sliding_attention"] * 2},
            [FULL, WINDOW] * 2,
        ),
        (
            {
                "model_type": "llama4_text",
                "no_rope_layers": [1, 1, 0, 1],
                "attention_chunk_size": 64,
                "num_local_experts": 4,
                "num_experts_per_tok": 1,
            },
            ["chunk 64", "chunk 64", FULL, "chunk 64"],
        ),
    ],
)
def test_which_layers_have_a_window(change: Config, expected: list[str]) -> None:
    assert kinds(FOUR | change) == expected


EIGHT_LAYERS = QWEN3_30B_A3B | {"num_hidden_layers": 8}


@pytest.mark.parametrize(
    ("change", "sparse"),
    [
        ({}, range(8)),
        ({"decoder_sparse_step": 2}, [1, 3, 5, 7]),
        ({"mlp_only_layers": [0, 5]}, [1, 2, 3, 4, 6, 7]),
        ({"first_k_dense_replace": 3}, range(3, 8)),
        ({"first_k_dense_replace": 1, "moe_layer_freq": 2}, [2, 4, 6]),
        ({"moe_layer_freq": [0, 1, 1, 0, 1, 1, 1, 1]}, [1, 2, 4, 5, 6, 7]),
        ({"moe_layers": [7]}, [7]),
        ({"moe_layer_start_index": 2, "moe_layer_end_index": 4}, [2, 3, 4]),
    ],
)
def test_which_layers_have_experts(change: Config, sparse: list[int]) -> None:
    routed, dense = 3 * 8 * 768 + 128, 3 * 6144
    flops = [layer.linear_flops for layer in shape_of(EIGHT_LAYERS | change).layers]
    attention = 2 * 4096 + 2 * 512
    expected = [
        2 * 2048 * (attention + (routed if layer in sparse else dense)) for layer in range(8)
    ]
    assert flops == expected


def test_two_matrices_where_a_model_has_no_gate() -> None:
    ungated = LLAMA_2_7B | {"model_type": "gpt_neox"}
    assert workload(ungated).crossover == 4 * 4096 + 2 * 11_008


def test_an_unknown_model_is_read_by_its_fields() -> None:
    assert workload(LLAMA_3_8B | {"model_type": "brand_new"}).crossover == 53_248


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": None}, "no hidden_size"),
        ({"num_hidden_layers": None}, "no num_hidden_layers"),
        ({"intermediate_size": [1, 2]}, "not a whole number"),
        ({"num_attention_heads": 0}, "at least 1"),
        ({"model_type": "new", "sliding_window": 512}, "which layers have it is not known"),
        ({"layer_types": ["conv"] * 32}, "'conv'"),
        ({"layer_types": ["full_attention"]}, "has 1 entries"),
        ({"layer_types": ["sliding_attention"] * 32}, "no sliding_window"),
        ({"layer_types": ["linear_attention"] * 32}, "no linear_num_value_heads"),
        ({"index_topk": 2048}, "sparse attention by an indexer"),
        ({"mamba_d_state": 128}, "Mamba, but it is not said"),
        ({"num_total_experts": 8}, "num_total_experts = 8"),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "my_shared_expert_size": 9},
            "my_shared_expert_size = 9",
        ),
        ({"hybrid_override_pattern": "M-"}, "layers of one block each"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-X"}, "blocks are 'M-X'"),
        ({"model_type": "nemotron_h"}, "blocks are None"),
        ({"model_type": "nemotron_h", "moe_latent_size": 8}, "experts on latents"),
        ({"num_experts": 8}, "no num_experts_per_tok"),
        ({"is_encoder_decoder": True}, "no causal mask"),
        ({"text_config": "x"}, "text_config"),
    ],
)
def test_what_is_not_understood_is_refused_with_the_way_out(change: Config, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        shape_of(LLAMA_3_8B | change)
    if "at least 1" not in words:
        assert "set workload.crossover or workload.profile" in str(caught.value)
