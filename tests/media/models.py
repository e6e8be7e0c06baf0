"""Tiny models of every kind that reads pictures or sounds, random weights in the real folder layout.

The weights are random because none of these kinds has real ones that are small enough to come with a test; layout,
config, processors and code paths are the real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as t
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = [f"w{i}" for i in range(60)]
SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<image>", "<|image_pad|>", "<|vision_start|>", "<|vision_end|>",
            "<end_of_utterance>", "<fake_token_around_image>", "<global-img>", "<|im_start|>", "<|im_end|>",
            "<|endoftext|>"]  # fmt: skip
SIDE = 32
_TEXT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "pad_token_id": 1,
    "bos_token_id": 0, "eos_token_id": 2, "vocab_size": 1400, "max_position_embeddings": 40,
}  # fmt: skip
_VISION = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": SIDE,
    "patch_size": 8,
}  # fmt: skip


def _tokenizer(length: int, *, wrapped: bool = True, **more: Any) -> t.PreTrainedTokenizerFast:
    vocab = {word: i for i, word in enumerate([*SPECIALS, *WORDS])}
    rust = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    rust.pre_tokenizer = pre_tokenizers.Whitespace()
    if wrapped:
        rust.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
        )
    return t.PreTrainedTokenizerFast(
        tokenizer_object=rust, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>",
        additional_special_tokens=SPECIALS[4:], model_max_length=length, **more,
    )  # fmt: skip


def _save(folder: Path, model: Any, processor: Any) -> Path:
    model.eval().save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def _pictures(**more: Any) -> Any:
    return t.CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}, **more)


def clip(folder: Path) -> Path:
    config = t.CLIPConfig(text_config=_TEXT, vision_config=_VISION, projection_dim=24)
    processor = t.CLIPProcessor(image_processor=_pictures(), tokenizer=_tokenizer(40))
    return _save(folder, t.CLIPModel(config), processor)


def metaclip_2(folder: Path) -> Path:
    config = t.MetaClip2Config(text_config=_TEXT, vision_config=_VISION, projection_dim=24)
    processor = t.CLIPProcessor(image_processor=_pictures(), tokenizer=_tokenizer(40))
    return _save(folder, t.MetaClip2Model(config), processor)


def chinese_clip(folder: Path) -> Path:
    config = t.ChineseCLIPConfig(text_config={**_TEXT, "type_vocab_size": 2}, vision_config=_VISION, projection_dim=24)
    processor = t.CLIPProcessor(image_processor=_pictures(), tokenizer=_tokenizer(40))
    return _save(folder, t.ChineseCLIPModel(config), processor)


def altclip(folder: Path) -> Path:
    config = t.AltCLIPConfig(
        text_config={**_TEXT, "project_dim": 24, "type_vocab_size": 1}, vision_config=_VISION, projection_dim=24
    )
    return _save(folder, t.AltCLIPModel(config), t.CLIPProcessor(image_processor=_pictures(), tokenizer=_tokenizer(36)))


def siglip(folder: Path) -> Path:
    config = t.SiglipConfig(text_config={**_TEXT, "max_position_embeddings": 16}, vision_config=_VISION)
    pictures = t.SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE})
    return _save(folder, t.SiglipModel(config), t.SiglipProcessor(image_processor=pictures, tokenizer=_tokenizer(16)))


def siglip2(folder: Path) -> Path:
    config = t.Siglip2Config(
        text_config={**_TEXT, "max_position_embeddings": 16}, vision_config={**_VISION, "num_patches": 16}
    )
    pictures = t.Siglip2ImageProcessorPil(patch_size=8, max_num_patches=16)
    return _save(folder, t.Siglip2Model(config), t.Siglip2Processor(image_processor=pictures, tokenizer=_tokenizer(16)))


def align(folder: Path) -> Path:
    vision = {"image_size": SIDE, "width_coefficient": 0.1, "depth_coefficient": 0.2, "hidden_dim": 32,
              "initializer_range": 0.4}  # fmt: skip
    config = t.AlignConfig(text_config={**_TEXT, "type_vocab_size": 2}, vision_config=vision, projection_dim=32)
    pictures = t.EfficientNetImageProcessorPil(size={"height": SIDE, "width": SIDE})
    return _save(folder, t.AlignModel(config), t.AlignProcessor(image_processor=pictures, tokenizer=_tokenizer(40)))


def clap(folder: Path, *, fusion: bool = False) -> Path:
    audio = {
        "window_size": 4, "num_mel_bins": 64, "spec_size": 128, "hidden_size": 32, "patch_size": 4,
        "patch_stride": [4, 4],
        "num_classes": 8, "projection_dim": 24, "depths": [1, 1], "num_attention_heads": [2, 2],
        "patch_embeds_hidden_size": 16, "enable_fusion": fusion, "flatten_patch_embeds": True, "num_hidden_layers": 2,
    }  # fmt: skip
    config = t.ClapConfig(text_config={**_TEXT, "type_vocab_size": 1}, audio_config=audio, projection_dim=24)
    sounds = t.ClapFeatureExtractor(
        feature_size=64, sampling_rate=8000, max_length_s=2, fft_window_size=256, hop_length=80, frequency_max=4000,
        truncation="fusion" if fusion else "rand_trunc",
    )  # fmt: skip
    return _save(folder, t.ClapModel(config), t.ClapProcessor(feature_extractor=sounds, tokenizer=_tokenizer(36)))


def colpali(folder: Path) -> Path:
    text = {**_TEXT, "model_type": "gemma", "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 256}
    vlm = t.PaliGemmaConfig(
        text_config=text, vision_config={**_VISION, "model_type": "siglip_vision_model", "projection_dim": 32},
        projection_dim=32, hidden_size=32, image_token_index=SPECIALS.index("<image>"),
    )  # fmt: skip
    config = t.ColPaliConfig(vlm_config=vlm.to_dict(), embedding_dim=16)
    pictures = t.SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE})
    pictures.image_seq_length = (SIDE // 8) ** 2
    processor = t.ColPaliProcessor(image_processor=pictures, tokenizer=_tokenizer(256, wrapped=False))
    return _save(folder, t.ColPaliForRetrieval(config), processor)


def colqwen2(folder: Path) -> Path:
    text = {**_TEXT, "num_key_value_heads": 2, "max_position_embeddings": 512, "rope_parameters": {
        "rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}}  # fmt: skip
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "mlp_ratio": 2, "patch_size": 4,
              "spatial_merge_size": 2, "temporal_patch_size": 2}  # fmt: skip
    ids = {name: SPECIALS.index(token) for name, token in (
        ("image_token_id", "<|image_pad|>"), ("vision_start_token_id", "<|vision_start|>"),
        ("vision_end_token_id", "<|vision_end|>"))}  # fmt: skip
    vlm = t.Qwen2VLConfig(text_config=text, vision_config=vision, video_token_id=1399, **ids)
    config = t.ColQwen2Config(vlm_config=vlm.to_dict(), embedding_dim=16)
    pictures = t.Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, temporal_patch_size=2, min_pixels=16 * 16, max_pixels=48 * 48
    )
    processor = t.ColQwen2Processor(image_processor=pictures, tokenizer=_tokenizer(512, wrapped=False))
    return _save(folder, t.ColQwen2ForRetrieval(config), processor)


def colmodernvbert(folder: Path) -> Path:
    text = {**_TEXT, "model_type": "modernbert", "local_attention": 16, "global_attn_every_n_layers": 2,
            "cls_token_id": 0, "sep_token_id": 2, "max_position_embeddings": 512}  # fmt: skip
    vision = {**_VISION, "model_type": "siglip_vision_model"}
    vlm = t.ModernVBertConfig(
        text_config=text, vision_config=vision, image_token_id=SPECIALS.index("<image>"), pixel_shuffle_factor=2
    )
    config = t.ColModernVBertConfig(vlm_config=vlm.to_dict(), embedding_dim=16)
    pictures = t.Idefics3ImageProcessorPil(size={"longest_edge": 2 * SIDE}, max_image_size={"longest_edge": SIDE})
    processor = t.ColModernVBertProcessor(
        image_processor=pictures, tokenizer=_tokenizer(512), image_seq_len=(SIDE // 8 // 2) ** 2
    )
    return _save(folder, t.ColModernVBertForRetrieval(config), processor)


PICTURE_KINDS: dict[str, Callable[[Path], Path]] = {
    "clip": clip, "metaclip_2": metaclip_2, "chinese_clip": chinese_clip, "altclip": altclip, "siglip": siglip,
    "siglip2": siglip2, "align": align,
}  # fmt: skip
PAGE_KINDS: dict[str, Callable[[Path], Path]] = {
    "colpali": colpali,
    "colqwen2": colqwen2,
    "colmodernvbert": colmodernvbert,
}


def build(kind: Callable[[Path], Path], folder: Path) -> Path:
    """The folder, with weights that differ enough for a wrong number to show."""
    torch.manual_seed(7)
    return kind(folder)
