"""Models of images and videos."""

from __future__ import annotations

from typing import Any

from zoo import Inputs, Model, add, from_config, images, labelled, noise

TRANSFORMER: dict[str, Any] = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    image_size=32,
    patch_size=8,
)
WINDOWS: dict[str, Any] = dict(image_size=32)
STAGES: dict[str, Any] = dict(hidden_sizes=[8, 16], depths=[1, 2], num_labels=2)


def vision(
    name: str,
    class_name: str,
    *,
    inputs: Inputs | None = None,
    labels: bool = True,
    sizes: dict[str, Any] = TRANSFORMER,
    **changes: Any,
) -> None:
    """A model of images, by default one that tells two classes apart."""
    given = inputs or images()
    make = from_config(class_name, **{**sizes, **changes})
    add(Model(name, "vision", make, given, labelled(given) if labels else None))


def video(frames: int = 4, size: int = 16) -> Inputs:
    return lambda seed, batch: {"pixel_values": noise(seed, batch, frames, 3, size, size)}


vision("ViT", "ViTForImageClassification")
vision("DeiT", "DeiTForImageClassification")
vision("BEiT", "BeitForImageClassification", use_relative_position_bias=True)
vision("Data2Vec-Vision", "Data2VecVisionForImageClassification", use_relative_position_bias=True)
vision("DINOv2", "Dinov2ForImageClassification", mlp_ratio=2)
vision("DINOv2 with registers", "Dinov2WithRegistersForImageClassification", mlp_ratio=2, num_register_tokens=2)
vision("DINOv3 ViT", "DINOv3ViTModel", labels=False)
vision("ViT-MSN", "ViTMSNForImageClassification")
vision("I-JEPA", "IJepaForImageClassification")
vision("ViTDet", "VitDetModel", labels=False)
vision("Pixio", "PixioModel", labels=False)
vision("YOLOS", "YolosModel", labels=False, image_size=[32, 32], num_detection_tokens=4)
vision("SigLIP vision", "SiglipVisionModel", labels=False)
vision("CLIP vision", "CLIPVisionModel", labels=False)
vision(
    "DPT",
    "DPTForDepthEstimation",
    labels=False,
    num_hidden_layers=4,
    backbone_out_indices=[0, 1, 2, 3],
    neck_hidden_sizes=[8, 8, 8, 8],
    fusion_hidden_size=8,
    is_hybrid=False,
    reassemble_factors=[4, 2, 1, 0.5],
)
vision(
    "Swin",
    "SwinForImageClassification",
    sizes=WINDOWS,
    embed_dim=8,
    depths=[1, 2],
    num_heads=[2, 4],
    window_size=2,
    patch_size=4,
)
vision(
    "Swin v2",
    "Swinv2ForImageClassification",
    sizes=WINDOWS,
    embed_dim=8,
    depths=[1, 2],
    num_heads=[2, 4],
    window_size=2,
    patch_size=4,
)
vision(
    "Swin2SR",
    "Swin2SRModel",
    sizes=WINDOWS,
    labels=False,
    embed_dim=8,
    depths=[1, 2],
    num_heads=[2, 4],
    window_size=2,
    patch_size=1,
)
vision(
    "Hiera",
    "HieraForImageClassification",
    sizes={},
    embed_dim=8,
    depths=[1, 1],
    num_heads=[1, 2],
    image_size=[32, 32],
    mlp_ratio=2.0,
    num_query_pool=1,
    query_stride=[2, 2],
    masked_unit_size=[4, 4],
)
vision("ConvNeXt", "ConvNextForImageClassification", sizes=STAGES, num_stages=2)
vision("ConvNeXt v2", "ConvNextV2ForImageClassification", sizes=STAGES, num_stages=2)
vision("ResNet", "ResNetForImageClassification", sizes=STAGES, embedding_size=8)
vision("RegNet", "RegNetForImageClassification", sizes=STAGES, embedding_size=8, groups_width=4)
vision("BiT", "BitForImageClassification", sizes=STAGES, embedding_size=8, num_groups=2)
vision("MobileNet v1", "MobileNetV1ForImageClassification", sizes={}, depth_multiplier=0.25, image_size=32)
vision("MobileNet v2", "MobileNetV2ForImageClassification", sizes={}, depth_multiplier=0.25, image_size=32)
vision(
    "MobileViT",
    "MobileViTForImageClassification",
    image_size=32,
    sizes=dict(
        hidden_sizes=[8, 8, 8],
        neck_hidden_sizes=[8, 8, 8, 8, 8, 8, 8],
        num_attention_heads=2,
        patch_size=2,
        mlp_ratio=2.0,
    ),
)
vision(
    "MobileViT v2",
    "MobileViTV2ForImageClassification",
    sizes={},
    inputs=images(64),
    image_size=64,
    width_multiplier=0.125,
)
vision(
    "EfficientNet",
    "EfficientNetForImageClassification",
    sizes=dict(width_coefficient=0.25, depth_coefficient=0.25, hidden_dim=320, image_size=32),
)
vision("PoolFormer", "PoolFormerForImageClassification", sizes=dict(hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1]))
vision(
    "PVT",
    "PvtForImageClassification",
    sizes=dict(image_size=32, hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 2, 2]),
)
vision(
    "PVT v2",
    "PvtV2ForImageClassification",
    sizes=dict(image_size=32, hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 2, 2]),
)
vision("CvT", "CvtForImageClassification", sizes=dict(embed_dim=[8, 16, 16], num_heads=[1, 2, 2], depth=[1, 2, 3]))
vision(
    "LeViT",
    "LevitForImageClassification",
    sizes=dict(
        image_size=64, hidden_sizes=[16, 16, 16], num_attention_heads=[2, 2, 2], depths=[1, 1, 1], key_dim=[8, 8, 8]
    ),
    inputs=images(64),
)
vision(
    "FocalNet",
    "FocalNetForImageClassification",
    sizes=dict(
        image_size=32, embed_dim=8, hidden_sizes=[8, 16], depths=[1, 1], focal_levels=[2, 2], focal_windows=[3, 3]
    ),
)
vision(
    "SwiftFormer",
    "SwiftFormerForImageClassification",
    sizes=dict(image_size=32, depths=[1, 1, 1, 1], embed_dims=[8, 8, 8, 8]),
)
vision(
    "SegFormer",
    "SegformerForImageClassification",
    sizes=dict(
        hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 2, 2], decoder_hidden_size=8
    ),
)
vision(
    "SegFormer, segmentation",
    "SegformerForSemanticSegmentation",
    labels=False,
    sizes=dict(
        hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 2, 2], decoder_hidden_size=8
    ),
)
vision(
    "GLPN",
    "GLPNForDepthEstimation",
    labels=False,
    sizes=dict(
        hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 2, 2], decoder_hidden_size=8
    ),
)
vision(
    "HGNet v2",
    "HGNetV2ForImageClassification",
    sizes=dict(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        stem_channels=[3, 8, 8],
        stage_in_channels=[8, 16],
        stage_mid_channels=[8, 8],
        stage_out_channels=[16, 16],
        stage_num_blocks=[1, 1],
        stage_downsample=[False, True],
        stage_light_block=[False, True],
        stage_kernel_size=[3, 3],
        stage_numb_of_layers=[1, 1],
    ),
)
vision("TextNet", "TextNetForImageClassification", sizes={}, inputs=images(64))
vision("ViT-MAE", "ViTMAEModel", labels=False, mask_ratio=0.5)
vision("VideoMAE", "VideoMAEForVideoClassification", inputs=video(), image_size=16, num_frames=4)
vision("ViViT", "VivitForVideoClassification", inputs=video(), image_size=16, num_frames=4, tubelet_size=[2, 8, 8])
vision("TimeSformer", "TimesformerForVideoClassification", inputs=video(), image_size=16, num_frames=4)
vision(
    "ImageGPT",
    "ImageGPTForImageClassification",
    sizes=dict(vocab_size=100, n_positions=48, n_embd=32, n_layer=2, n_head=4),
    inputs=lambda seed, batch: {"input_ids": (noise(seed, batch, 9) * 10).long().abs()},
)
vision(
    "SuperPoint",
    "SuperPointForKeypointDetection",
    labels=False,
    sizes=dict(
        encoder_hidden_sizes=[8, 8, 8, 8], decoder_hidden_size=8, descriptor_decoder_dim=8, keypoint_decoder_dim=65
    ),
    inputs=images(64),
)
