"""Encoders with decoders, of text."""

from __future__ import annotations

from typing import Any

from zoo import LENGTH, VOCABULARY, Inputs, Model, add, from_config, labelled_text, mask, text, tokens

ENDS: dict[str, Any] = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=0)
BART: dict[str, Any] = dict(
    vocab_size=VOCABULARY,
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
    max_position_embeddings=48,
    forced_eos_token_id=None,
    **ENDS,
)
T5: dict[str, Any] = dict(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, **ENDS)


def two_texts(length: int = LENGTH) -> Inputs:
    """A padded text, and the beginning of another one."""
    return lambda seed, batch: {
        "input_ids": tokens(seed, batch, length),
        "attention_mask": mask(seed, batch, length),
        "decoder_input_ids": tokens(seed + 20, batch, 5),
    }


def translator(
    name: str,
    class_name: str,
    sizes: dict[str, Any],
    *,
    kind: str = "encoder-decoder",
    length: int = LENGTH,
    **changes: Any,
) -> None:
    """A model that makes a text of a text."""
    make = from_config(class_name, **{**sizes, **changes})
    add(Model(name, kind, make, two_texts(length), labelled_text(length), generates=True, prompt=text(length)))


translator("T5", "T5ForConditionalGeneration", T5)
translator("T5 v1.1", "T5ForConditionalGeneration", T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
translator("mT5", "MT5ForConditionalGeneration", T5)
translator("UMT5", "UMT5ForConditionalGeneration", T5)
translator("LongT5", "LongT5ForConditionalGeneration", T5, local_radius=4, encoder_attention_type="local")
translator("BART", "BartForConditionalGeneration", BART)
translator("mBART", "MBartForConditionalGeneration", BART)
translator("PLBART", "PLBartForConditionalGeneration", BART)
translator("MVP", "MvpForConditionalGeneration", BART)
translator("Pegasus", "PegasusForConditionalGeneration", BART)
translator("Pegasus-X", "PegasusXForConditionalGeneration", BART, block_size=4, num_global_tokens=2)
translator("BigBird-Pegasus", "BigBirdPegasusForConditionalGeneration", BART, attention_type="original_full")
translator("Marian", "MarianMTModel", BART)
translator("Blenderbot", "BlenderbotForConditionalGeneration", BART)
translator("Blenderbot small", "BlenderbotSmallForConditionalGeneration", BART)
translator("M2M-100", "M2M100ForConditionalGeneration", BART)
translator(
    "LED",
    "LEDForConditionalGeneration",
    BART,
    length=8,
    attention_window=4,
    max_encoder_position_embeddings=48,
    max_decoder_position_embeddings=48,
)
translator(
    "ProphetNet",
    "ProphetNetForConditionalGeneration",
    dict(vocab_size=VOCABULARY, hidden_size=32, **ENDS),
    num_encoder_layers=2,
    num_decoder_layers=2,
    num_encoder_attention_heads=4,
    num_decoder_attention_heads=4,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
    max_position_embeddings=48,
    ngram=2,
)
translator(
    "FSMT",
    "FSMTForConditionalGeneration",
    BART,
    langs=["en", "de"],
    src_vocab_size=VOCABULARY,
    tgt_vocab_size=VOCABULARY,
)
translator(
    "Switch Transformers",
    "SwitchTransformersForConditionalGeneration",
    T5,
    kind="mixture of experts",
    num_experts=4,
    num_decoder_layers=2,
    num_sparse_encoder_layers=1,
    num_sparse_decoder_layers=1,
)
translator(
    "NLLB-MoE",
    "NllbMoeForConditionalGeneration",
    BART,
    kind="mixture of experts",
    num_experts=4,
    encoder_sparse_step=2,
    decoder_sparse_step=2,
    expert_capacity=8,
)
