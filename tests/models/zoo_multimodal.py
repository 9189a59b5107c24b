"""Models of images and text together."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import nn
from zoo import VOCABULARY, Model, add, both, from_config, images, noise, prompt, text, tokens
from zoo_decoders import LLAMA
from zoo_text import SIZES
from zoo_vision import TRANSFORMER

BOTH = both(text(), images())


def pair(name: str, class_name: str, text_sizes: dict[str, Any] = SIZES, **changes: Any) -> None:
    """Two towers, trained to agree."""
    make = from_config(class_name, text_config=text_sizes, vision_config=TRANSFORMER, projection_dim=16, **changes)

    def training(seed: int, batch: int) -> dict[str, Any]:
        return {**BOTH(seed, batch), "return_loss": True}

    add(Model(name, "multimodal", make, BOTH, training))


pair("CLIP", "CLIPModel")
pair("SigLIP", "SiglipModel")
pair("MetaCLIP 2", "MetaClip2Model")
pair("Chinese-CLIP", "ChineseCLIPModel")
pair("CLIPSeg", "CLIPSegModel")
pair("AltCLIP", "AltCLIPModel", {**SIZES, "project_dim": 16})
pair("BLIP", "BlipModel", {**SIZES, "projection_dim": 16, "encoder_hidden_size": 32})
pair("OWL-ViT", "OwlViTModel")
pair("GroupViT", "GroupViTModel")

add(Model("ViLT", "multimodal", from_config("ViltModel", **{**SIZES, **TRANSFORMER}), BOTH))
add(
    Model(
        "VisualBERT",
        "multimodal",
        from_config("VisualBertModel", **SIZES, visual_embedding_dim=16),
        lambda seed, batch: {**text()(seed, batch), "visual_embeds": noise(seed, batch, 4, 16)},
    )
)
add(Model("GIT", "multimodal", from_config("GitForCausalLM", **SIZES, vision_config=TRANSFORMER), BOTH))
add(
    Model(
        "LayoutLM",
        "multimodal",
        from_config("LayoutLMModel", **SIZES),
        lambda seed, batch: {**text()(seed, batch), "bbox": boxes(seed, batch)},
    )
)
add(
    Model(
        "LiLT",
        "multimodal",
        from_config(
            "LiltModel", **{**SIZES, "hidden_size": 48}, channel_shrink_ratio=2, max_2d_position_embeddings=128
        ),
        lambda seed, batch: {**text()(seed, batch), "bbox": boxes(seed, batch)},
    )
)
add(
    Model(
        "LayoutLMv3",
        "multimodal",
        from_config(
            "LayoutLMv3Model",
            **SIZES,
            input_size=32,
            patch_size=8,
            coordinate_size=5,
            shape_size=6,
            max_2d_position_embeddings=128,
            rel_2d_pos_bins=16,
            rel_pos_bins=8,
        ),
        lambda seed, batch: {**BOTH(seed, batch), "bbox": boxes(seed, batch)},
    )
)
add(
    Model(
        "BROS",
        "multimodal",
        from_config("BrosModel", **{**SIZES, "hidden_size": 64}, dim_bbox=8, bbox_scale=1.0),
        lambda seed, batch: {**text()(seed, batch), "bbox": noise(seed, batch, 9, 8).abs()},
    )
)


def boxes(seed: int, batch: int) -> torch.Tensor:
    """Left, top, right, bottom."""
    corner = tokens(seed, batch, 9, 2) % 50
    return torch.cat([corner, corner + 10], dim=-1)


def with_image_tokens(seed: int, batch: int, count: int = 16) -> dict[str, torch.Tensor]:
    """A text that begins with places for the patches of an image."""
    given = {**prompt()(seed, batch), **images()(seed, batch)}
    places = torch.full((batch, count), 3)
    ones = torch.ones(batch, count, dtype=torch.long)
    return {
        **given,
        "input_ids": torch.cat([places, given["input_ids"]], dim=1),
        "attention_mask": torch.cat([ones, given["attention_mask"]], dim=1),
    }


def llava() -> nn.Module:
    config = hf.LlavaConfig(
        text_config=hf.LlamaConfig(**LLAMA),
        vision_config=hf.CLIPVisionConfig(**TRANSFORMER),
        image_token_index=3,
        image_token_id=3,
    )
    return hf.LlavaForConditionalGeneration(config)


def paligemma() -> nn.Module:
    config = hf.PaliGemmaConfig(
        text_config=hf.GemmaConfig(**LLAMA),
        vision_config=hf.SiglipVisionConfig(**TRANSFORMER, vision_use_head=False),
        image_token_index=3,
        image_token_id=3,
        projection_dim=32,
        hidden_size=32,
    )
    return hf.PaliGemmaForConditionalGeneration(config)


add(Model("LLaVA", "multimodal", llava, with_image_tokens, generates=True))
add(Model("PaliGemma", "multimodal", paligemma, with_image_tokens, generates=True))


def captioner() -> nn.Module:
    decoder = hf.GPT2Config(
        vocab_size=VOCABULARY,
        n_layer=2,
        n_embd=32,
        n_head=4,
        n_positions=48,
        bos_token_id=1,
        eos_token_id=2,
        add_cross_attention=True,
        is_decoder=True,
    )
    config = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(hf.ViTConfig(**TRANSFORMER), decoder)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    return hf.VisionEncoderDecoderModel(config=config)


add(
    Model(
        "Vision encoder-decoder",
        "multimodal",
        captioner,
        lambda seed, batch: {**images()(seed, batch), "decoder_input_ids": tokens(seed, batch, 5)},
        lambda seed, batch: {**images()(seed, batch), "labels": tokens(seed, batch, 5)},
    )
)
