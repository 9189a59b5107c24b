"""Models of sound and of time series."""

from __future__ import annotations

from typing import Any

import torch
from zoo import VOCABULARY, Inputs, Model, add, from_config, labelled, noise, tokens
from zoo_text import SIZES

WAVES: dict[str, Any] = {
    **SIZES,
    "conv_dim": (16, 16),
    "conv_kernel": (8, 4),
    "conv_stride": (4, 4),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "apply_spec_augment": False,
    "layerdrop": 0.0,
    "ctc_loss_reduction": "mean",
}
WHISPER: dict[str, Any] = dict(
    vocab_size=VOCABULARY,
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
    max_source_positions=20,
    max_target_positions=32,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=1,
    suppress_tokens=None,
    begin_suppress_tokens=None,
)


def waves(length: int = 400) -> Inputs:
    return lambda seed, batch: {"input_values": noise(seed, batch, length)}


def spectrum(length: int = 40, bins: int = 80, **more: Any) -> Inputs:
    return lambda seed, batch: {"input_features": noise(seed, batch, bins, length)}


def spoken(inputs: Inputs) -> Inputs:
    """With the text that was said."""
    return lambda seed, batch: {**inputs(seed, batch), "labels": tokens(seed + 50, batch, 4)}


def listener(name: str, class_name: str, **changes: Any) -> None:
    """A model of waves that writes down what it hears."""
    add(Model(name, "audio", from_config(class_name, **{**WAVES, **changes}), waves(), spoken(waves())))


listener("Wav2Vec2", "Wav2Vec2ForCTC")
listener("HuBERT", "HubertForCTC")
listener("UniSpeech", "UniSpeechForCTC")
listener("UniSpeech-SAT", "UniSpeechSatForCTC")
listener("WavLM", "WavLMForCTC")
listener("Data2Vec-Audio", "Data2VecAudioForCTC", conv_pos_kernel_size=3)
listener("Wav2Vec2-Conformer", "Wav2Vec2ConformerForCTC")
listener("SEW", "SEWForCTC", squeeze_factor=2)
listener("SEW-D", "SEWDForCTC", squeeze_factor=2)


def whisper_inputs(seed: int, batch: int) -> dict[str, torch.Tensor]:
    return {"input_features": noise(seed, batch, 80, 40), "decoder_input_ids": tokens(seed, batch, 5)}


add(
    Model(
        "Whisper",
        "audio",
        from_config("WhisperForConditionalGeneration", **WHISPER),
        whisper_inputs,
        spoken(spectrum()),
        generates=True,
        prompt=spectrum(),
    )
)
add(
    Model(
        "Moonshine",
        "audio",
        from_config(
            "MoonshineForConditionalGeneration",
            **{
                **SIZES,
                "encoder_num_hidden_layers": 2,
                "decoder_num_hidden_layers": 2,
                "encoder_num_attention_heads": 4,
                "decoder_num_attention_heads": 4,
                "decoder_start_token_id": 1,
            },
        ),
        lambda seed, batch: {"input_values": noise(seed, batch, 2000), "decoder_input_ids": tokens(seed, batch, 5)},
        spoken(waves(2000)),
        generates=True,
        prompt=waves(2000),
    )
)
add(
    Model(
        "Speech2Text",
        "audio",
        from_config(
            "Speech2TextForConditionalGeneration",
            **{**WHISPER, "input_feat_per_channel": 8, "conv_channels": 16, "max_source_positions": 40},
        ),
        lambda seed, batch: {"input_features": noise(seed, batch, 40, 8), "decoder_input_ids": tokens(seed, batch, 5)},
        lambda seed, batch: {"input_features": noise(seed, batch, 40, 8), "labels": tokens(seed + 50, batch, 4)},
        generates=True,
        prompt=lambda seed, batch: {"input_features": noise(seed, batch, 40, 8)},
    )
)


def spectrogram(seed: int, batch: int) -> dict[str, torch.Tensor]:
    return {"input_values": noise(seed, batch, 24, 16)}


add(
    Model(
        "AST",
        "audio",
        from_config(
            "ASTForAudioClassification",
            **{**SIZES, "patch_size": 4, "max_length": 24, "num_mel_bins": 16, "frequency_stride": 4, "time_stride": 4},
        ),
        spectrogram,
        labelled(spectrogram),
    )
)
add(
    Model(
        "Wav2Vec2-BERT",
        "audio",
        from_config(
            "Wav2Vec2BertForCTC",
            **{**SIZES, "feature_projection_input_dim": 8, "apply_spec_augment": False, "layerdrop": 0.0},
        ),
        lambda seed, batch: {"input_features": noise(seed, batch, 20, 8)},
        lambda seed, batch: {"input_features": noise(seed, batch, 20, 8), "labels": tokens(seed + 50, batch, 4)},
    )
)
add(
    Model(
        "EnCodec",
        "audio",
        from_config(
            "EncodecModel",
            hidden_size=16,
            num_filters=4,
            codebook_size=16,
            codebook_dim=16,
            num_lstm_layers=1,
            upsampling_ratios=[4, 2],
            num_residual_layers=1,
        ),
        lambda seed, batch: {"input_values": noise(seed, batch, 1, 160)},
    )
)
add(
    Model(
        "DAC",
        "audio",
        from_config(
            "DacModel",
            encoder_hidden_size=4,
            decoder_hidden_size=16,
            hidden_size=16,
            downsampling_ratios=[2, 2],
            codebook_size=16,
            codebook_dim=4,
            n_codebooks=2,
        ),
        lambda seed, batch: {"input_values": noise(seed, batch, 1, 160)},
    )
)
add(
    Model(
        "UnivNet",
        "audio",
        from_config(
            "UnivNetModel",
            model_in_channels=8,
            model_hidden_channels=8,
            num_mel_bins=8,
            resblock_kernel_sizes=[3],
            resblock_stride_sizes=[8],
            resblock_dilation_sizes=[[1, 3]],
            kernel_predictor_hidden_channels=8,
        ),
        lambda seed, batch: {"input_features": noise(seed, batch, 7, 8), "noise_sequence": noise(seed, batch, 7, 8)},
    )
)


def series(seed: int, batch: int) -> dict[str, torch.Tensor]:
    return {"past_values": noise(seed, batch, 16, 3)}


add(
    Model(
        "PatchTST",
        "time series",
        from_config(
            "PatchTSTForPrediction",
            context_length=16,
            patch_length=4,
            patch_stride=4,
            prediction_length=4,
            num_input_channels=3,
            d_model=16,
            num_attention_heads=2,
            ffn_dim=32,
            num_hidden_layers=2,
        ),
        series,
        lambda seed, batch: {**series(seed, batch), "future_values": noise(seed + 9, batch, 4, 3)},
    )
)
add(
    Model(
        "PatchTSMixer",
        "time series",
        from_config(
            "PatchTSMixerForPrediction",
            context_length=16,
            patch_length=4,
            patch_stride=4,
            prediction_length=4,
            num_input_channels=3,
            d_model=16,
            num_layers=2,
        ),
        series,
        lambda seed, batch: {**series(seed, batch), "future_values": noise(seed + 9, batch, 4, 3)},
    )
)
