"""Detectors and segmenters of images."""

from __future__ import annotations

import transformers as hf
from torch import nn
from zoo import Model, add, images

RESNET = dict(embedding_size=8, hidden_sizes=[8, 8, 8, 8], depths=[1, 1, 1, 1], layer_type="basic")
DETR = dict(
    d_model=16,
    encoder_layers=1,
    decoder_layers=2,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=32,
    decoder_ffn_dim=32,
    num_queries=4,
)
KEPT = ["stage2", "stage3", "stage4"]


def detector(name: str, class_name: str, kept: list[str] = KEPT[-1:], **changes: object) -> None:
    """A detector over a small ResNet of the library's own."""

    def make() -> nn.Module:
        cls = getattr(hf, class_name)
        backbone = hf.ResNetConfig(**RESNET, out_features=kept)
        return cls(cls.config_class(**{**DETR, **changes}, backbone_config=backbone))

    add(Model(name, "detection", make, images(64)))


detector("DETR", "DetrForObjectDetection")
detector("Conditional DETR", "ConditionalDetrForObjectDetection")
detector("DAB-DETR", "DabDetrForObjectDetection", hidden_size=16)
detector("Table Transformer", "TableTransformerForObjectDetection")
detector("Deformable DETR", "DeformableDetrForObjectDetection", KEPT, num_feature_levels=3, d_model=32)
