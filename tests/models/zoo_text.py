"""Encoders of text."""

from __future__ import annotations

from typing import Any

from zoo import VOCABULARY, Inputs, Model, add, from_config, labelled_text, text

SIZES: dict[str, Any] = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=48,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
DIM = dict(vocab_size=VOCABULARY, dim=32, n_heads=4, n_layers=2, max_position_embeddings=48)


def encoder(
    name: str, class_name: str, *, length: int = 9, labels: bool = True, sizes: dict[str, Any] = SIZES, **changes: Any
) -> None:
    """A model that is given padded texts, and labels to be trained."""
    given: Inputs = text(length)
    training = labelled_text(length) if labels else None
    add(Model(name, "text encoder", from_config(class_name, **{**sizes, **changes}), given, training))


encoder("BERT", "BertForMaskedLM")
encoder("RoBERTa", "RobertaForMaskedLM")
encoder("XLM-RoBERTa", "XLMRobertaForMaskedLM")
encoder("XLM-RoBERTa-XL", "XLMRobertaXLForMaskedLM")
encoder("RoBERTa-PreLayerNorm", "RobertaPreLayerNormForMaskedLM")
encoder("CamemBERT", "CamembertForMaskedLM")
encoder("Data2Vec-Text", "Data2VecTextForMaskedLM")
encoder("ALBERT", "AlbertForMaskedLM", embedding_size=16)
encoder("DistilBERT", "DistilBertForMaskedLM", sizes={**DIM, "hidden_dim": 64})
encoder("DeBERTa", "DebertaForMaskedLM", relative_attention=True, pos_att_type=["c2p", "p2c"])
encoder("DeBERTa-v2", "DebertaV2ForMaskedLM", relative_attention=True, pos_att_type=["c2p", "p2c"])
encoder("ELECTRA", "ElectraForMaskedLM", embedding_size=16)
encoder("MPNet", "MPNetForMaskedLM")
encoder("XLNet", "XLNetLMHeadModel", sizes=dict(vocab_size=VOCABULARY, d_model=32, n_layer=2, n_head=4, d_inner=64))
encoder("Longformer", "LongformerForMaskedLM", attention_window=4, length=8)
encoder("BigBird", "BigBirdForMaskedLM", attention_type="original_full")
encoder("BigBird, block sparse", "BigBirdForMaskedLM", block_size=4, num_random_blocks=1, length=48)
encoder(
    "Funnel",
    "FunnelForMaskedLM",
    sizes=dict(vocab_size=VOCABULARY),
    block_sizes=[1, 1],
    d_model=32,
    n_head=4,
    d_head=8,
    d_inner=64,
    length=8,
)
encoder("ModernBERT", "ModernBertForMaskedLM", local_attention=4, global_attn_every_n_layers=2)
encoder("FNet", "FNetForMaskedLM", labels=False)
encoder("ConvBERT", "ConvBertForMaskedLM", embedding_size=32)
encoder("MobileBERT", "MobileBertForMaskedLM", embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16)
encoder("SqueezeBERT", "SqueezeBertForMaskedLM", embedding_size=32)
encoder("RoFormer", "RoFormerForMaskedLM", embedding_size=32)
encoder("RemBERT", "RemBertForMaskedLM", input_embedding_size=16, output_embedding_size=32)
encoder("Megatron-BERT", "MegatronBertForMaskedLM")
encoder("ERNIE", "ErnieForMaskedLM")
encoder("I-BERT", "IBertForMaskedLM")
encoder("Nystromformer", "NystromformerForMaskedLM", num_landmarks=8, segment_means_seq_len=8, length=8)
encoder("YOSO", "YosoForMaskedLM", use_expectation=True)
encoder("MRA", "MraForMaskedLM")
encoder("ESM", "EsmForMaskedLM", mask_token_id=4)
encoder("Splinter", "SplinterModel", labels=False)
encoder("X-MOD", "XmodForMaskedLM", languages=["en_XX"], default_language="en_XX")
encoder("XLM", "XLMWithLMHeadModel", sizes={**DIM, "emb_dim": 32})
encoder("FlauBERT", "FlaubertWithLMHeadModel", sizes={**DIM, "emb_dim": 32})
encoder("NomicBERT", "NomicBertForMaskedLM")
encoder("EuroBERT", "EuroBertForMaskedLM")
encoder("LUKE", "LukeForMaskedLM", entity_vocab_size=10, entity_emb_size=16)
encoder("CANINE", "CanineModel", labels=False, downsampling_rate=2, local_transformer_stride=8, length=16)
encoder(
    "Reformer",
    "ReformerForMaskedLM",
    labels=False,
    is_decoder=False,
    attn_layers=["local", "lsh"],
    length=16,
    attention_head_size=8,
    axial_pos_shape=[4, 4],
    axial_pos_embds_dim=[16, 16],
    num_buckets=2,
    hash_seed=0,
    local_attn_chunk_length=4,
    lsh_attn_chunk_length=4,
    feed_forward_size=64,
    max_position_embeddings=16,
)
