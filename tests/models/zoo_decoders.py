"""Decoders of text: attention, mixtures of experts, state spaces."""

from __future__ import annotations

from typing import Any

from zoo import VOCABULARY, Model, add, from_config, labelled_text, prompt, text
from zoo_text import SIZES

LLAMA = {**SIZES, "num_key_value_heads": 2, "head_dim": 8}
GPT = dict(vocab_size=VOCABULARY, n_layer=2, n_embd=32, n_head=4, n_positions=48, bos_token_id=1, eos_token_id=2)
EXPERTS = {**LLAMA, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


def decoder(
    name: str,
    class_name: str,
    sizes: dict[str, Any] = LLAMA,
    *,
    kind: str = "decoder",
    generates: bool = True,
    labels: bool = True,
    **changes: Any,
) -> None:
    """A model that is given texts, and goes on with them."""
    make = from_config(class_name, **{**sizes, **changes})
    training = labelled_text() if labels else None
    add(Model(name, kind, make, text(), training, generates=generates, prompt=prompt()))


decoder("GPT-2", "GPT2LMHeadModel", GPT)
decoder("GPT", "OpenAIGPTLMHeadModel", GPT, generates=False)
decoder(
    "GPT-Neo", "GPTNeoForCausalLM", num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=4
)
decoder("GPT-J", "GPTJForCausalLM", GPT, rotary_dim=4)
decoder("GPT-NeoX", "GPTNeoXForCausalLM")
decoder("GPT-BigCode", "GPTBigCodeForCausalLM", GPT)
decoder("CodeGen", "CodeGenForCausalLM", GPT, rotary_dim=4)
decoder("CTRL", "CTRLLMHeadModel", GPT, dff=64)
decoder("BioGPT", "BioGptForCausalLM")
decoder("XGLM", "XGLMForCausalLM", d_model=32, ffn_dim=64, num_layers=2, attention_heads=4)
decoder("OPT", "OPTForCausalLM", ffn_dim=64, word_embed_proj_dim=32)
decoder("BLOOM", "BloomForCausalLM", n_layer=2, n_head=4)
decoder("MPT", "MptForCausalLM", d_model=32, n_heads=4, n_layers=2, expansion_ratio=2, max_seq_len=48)
decoder("Llama", "LlamaForCausalLM")
decoder("Mistral", "MistralForCausalLM", sliding_window=4)
decoder("Ministral", "MinistralForCausalLM", sliding_window=4)
decoder("Qwen2", "Qwen2ForCausalLM")
decoder("Qwen3", "Qwen3ForCausalLM")
decoder("Gemma", "GemmaForCausalLM")
decoder("Gemma 2", "Gemma2ForCausalLM", sliding_window=4)
decoder("Gemma 3", "Gemma3ForCausalLM", sliding_window=4)
decoder("Phi", "PhiForCausalLM")
decoder("Phi-3", "Phi3ForCausalLM")
decoder("StableLM", "StableLmForCausalLM")
decoder("Falcon", "FalconForCausalLM", SIZES, new_decoder_architecture=True, num_kv_heads=2)
decoder("Falcon, ALiBi", "FalconForCausalLM", SIZES, alibi=True, multi_query=True, new_decoder_architecture=False)
decoder("Cohere", "CohereForCausalLM")
decoder("Cohere 2", "Cohere2ForCausalLM", sliding_window=4)
decoder("OLMo", "OlmoForCausalLM")
decoder("OLMo 2", "Olmo2ForCausalLM")
decoder("OLMo 3", "Olmo3ForCausalLM", sliding_window=4)
decoder("Starcoder2", "Starcoder2ForCausalLM")
decoder("Granite", "GraniteForCausalLM")
decoder("Persimmon", "PersimmonForCausalLM")
decoder("Nemotron", "NemotronForCausalLM")
decoder("GLM", "GlmForCausalLM")
decoder("GLM-4", "Glm4ForCausalLM")
decoder("Helium", "HeliumForCausalLM")
decoder("SmolLM3", "SmolLM3ForCausalLM")
decoder("EXAONE 4", "Exaone4ForCausalLM", sliding_window=4, sliding_window_pattern=2)
decoder("DiffLlama", "DiffLlamaForCausalLM")
decoder("Arcee", "ArceeForCausalLM")
decoder("BitNet", "BitNetForCausalLM")
decoder("Seed-OSS", "SeedOssForCausalLM")
decoder("ERNIE 4.5", "Ernie4_5ForCausalLM")
decoder("ModernBERT decoder", "ModernBertDecoderForCausalLM", local_attention=4, global_attn_every_n_layers=2)

for name, class_name, changes in [
    ("Mixtral", "MixtralForCausalLM", dict(num_local_experts=4)),
    ("Qwen2-MoE", "Qwen2MoeForCausalLM", dict(num_experts=4, shared_expert_intermediate_size=16)),
    ("Qwen3-MoE", "Qwen3MoeForCausalLM", dict(num_experts=4)),
    ("OLMoE", "OlmoeForCausalLM", dict(num_experts=4)),
    ("PhiMoE", "PhimoeForCausalLM", dict(num_local_experts=4)),
    ("Granite-MoE", "GraniteMoeForCausalLM", dict(num_local_experts=4)),
    ("JetMoE", "JetMoeForCausalLM", dict(num_local_experts=4, kv_channels=8)),
    ("GPT-OSS", "GptOssForCausalLM", dict(num_local_experts=4, sliding_window=4)),
    (
        "DeepSeek-V2",
        "DeepseekV2ForCausalLM",
        dict(
            n_routed_experts=4,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
            num_key_value_heads=4,
            q_lora_rank=16,
            kv_lora_rank=16,
            qk_nope_head_dim=8,
            qk_rope_head_dim=8,
            v_head_dim=8,
        ),
    ),
    (
        "DeepSeek-V3",
        "DeepseekV3ForCausalLM",
        dict(
            n_routed_experts=4,
            n_group=2,
            topk_group=1,
            first_k_dense_replace=1,
            num_key_value_heads=4,
            q_lora_rank=16,
            kv_lora_rank=16,
            qk_nope_head_dim=8,
            qk_rope_head_dim=8,
            v_head_dim=8,
        ),
    ),
    (
        "dots.llm1",
        "Dots1ForCausalLM",
        dict(n_routed_experts=4, n_shared_experts=1, n_group=1, topk_group=1, first_k_dense_replace=1),
    ),
    ("GLM-4 MoE", "Glm4MoeForCausalLM", dict(n_routed_experts=4, n_group=1, topk_group=1, first_k_dense_replace=1)),
]:
    decoder(name, class_name, EXPERTS, kind="mixture of experts", **changes)

STATE = dict(kind="state space")
decoder("Mamba", "MambaForCausalLM", **STATE, state_size=4)
decoder("Mamba-2", "Mamba2ForCausalLM", **STATE, state_size=4, num_heads=8, chunk_size=4, n_groups=2)
decoder("FalconMamba", "FalconMambaForCausalLM", **STATE, state_size=4)
decoder("RWKV", "RwkvForCausalLM", **STATE, attention_hidden_size=32, context_length=48)
decoder(
    "RecurrentGemma", "RecurrentGemmaForCausalLM", **STATE, num_hidden_layers=3, attention_window_size=16, lru_width=32
)
decoder(
    "Bamba",
    "BambaForCausalLM",
    **STATE,
    attn_layer_indices=[1],
    mamba_n_heads=8,
    mamba_d_head=8,
    mamba_d_state=4,
    mamba_n_groups=1,
    mamba_chunk_size=4,
)
decoder(
    "Jamba",
    "JambaForCausalLM",
    {**LLAMA, "num_experts": 4, "num_experts_per_tok": 2},
    **STATE,
    num_hidden_layers=4,
    attn_layer_period=2,
    attn_layer_offset=1,
    expert_layer_period=2,
    expert_layer_offset=1,
    mamba_d_state=4,
    mamba_dt_rank=4,
    use_mamba_kernels=False,
)
decoder(
    "Falcon-H1",
    "FalconH1ForCausalLM",
    **STATE,
    mamba_n_heads=8,
    mamba_d_head=8,
    mamba_d_ssm=64,
    mamba_d_state=4,
    mamba_n_groups=1,
    mamba_chunk_size=4,
)
decoder(
    "Zamba2",
    "Zamba2ForCausalLM",
    {**LLAMA, "num_key_value_heads": 4},
    **STATE,
    num_hidden_layers=3,
    layers_block_type=["mamba", "mamba", "hybrid"],
    mamba_d_state=4,
    n_mamba_heads=8,
    mamba_headdim=8,
    chunk_size=4,
    mamba_ngroups=1,
    num_mem_blocks=1,
    adapter_rank=4,
)
decoder("LFM2", "Lfm2ForCausalLM", **STATE, layer_types=["conv", "full_attention"], block_ff_dim=64)
decoder(
    "Qwen3-Next",
    "Qwen3NextForCausalLM",
    {**EXPERTS, "num_experts": 4},
    **STATE,
    layer_types=["linear_attention", "full_attention"],
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
    shared_expert_intermediate_size=16,
)
decoder(
    "MiniMax",
    "MiniMaxForCausalLM",
    {**LLAMA, "num_local_experts": 4},
    **STATE,
    block_size=4,
    layer_types=["linear_attention", "full_attention"],
)
