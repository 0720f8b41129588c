"""Parts of an OmniVoice model: backbone without its causal mask, tokenizer, processor, usual codec."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, AutoTokenizer

from stentor.errors import ConfigError
from stentor.models.base import Bundle
from stentor.models.codecs.base import INSIDE, AudioCodec
from stentor.models.codecs.higgs_audio_v2 import HiggsAudioV2
from stentor.models.omnivoice.config import OmniVoice
from stentor.models.omnivoice.modeling import OmniVoiceModel, initial_std
from stentor.models.omnivoice.processor import OmniVoiceProcessor
from stentor.models.packing import flex
from stentor.models.pretrained.load import load_pretrained, set_memory_options
from stentor.models.pretrained.lora import is_adapter
from stentor.models.pretrained.weights import SECTION_FILE, check_weights

CODEBOOKS, ENTRIES = 8, 1024
"""Codebooks of OmniVoice's codec, and the entries of each."""


def download(family: OmniVoice) -> Path:
    """The folder of `from`, downloaded when it is a Hub id."""
    from huggingface_hub import snapshot_download

    def load(name: str, options: dict[str, Any]) -> Path:
        if Path(name).is_dir():
            return Path(name)
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model"], **options))

    return load_pretrained(family, "model", load)  # type: ignore[no-any-return]


def base(part: Any, loader: Any, **options: Any) -> Any:
    """The part of the base of `model.llm` that a class of transformers loads."""
    return load_pretrained(
        part, "model.llm", lambda name, at: loader.from_pretrained(name, trust_remote_code=False, **options, **at)
    )


def base_model(part: Any, **options: Any) -> Any:
    """The pretrained backbone of `model.llm`, in float32."""
    return base(part, AutoModel, dtype=torch.float32, use_safetensors=True, **options)


def tokenizer_of(folder: Path, config: Any) -> Any:
    """The tokenizer of a model's folder; `config` is that of its backbone, as transformers knows no type omnivoice."""
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, config=config)


def bundle_of(family: OmniVoice, model: OmniVoiceModel, tokenizer: Any, codec: AudioCodec | None) -> Bundle:
    """The model with its processor."""
    processor: Any = OmniVoiceProcessor(tokenizer, model.codebooks, model.vocabulary - 1, model.mask_id, codec)
    processor.flex = family.attention == "flex"
    return Bundle(model, processor, family, codebooks=model.codebooks)


def resize(bundle: Bundle) -> None:
    """Give the text embeddings a row for each token, as OmniVoice does: rows that no token has are dropped, new ones
    start at random."""
    model: Any = bundle.model
    table = model.llm.get_input_embeddings()
    rows, size = len(table.weight), len(bundle.processor.tokenizer)  # type: ignore[attr-defined]
    if rows == size:
        return
    model.llm.resize_token_embeddings(size, mean_resizing=False)
    if size > rows:
        table = model.llm.get_input_embeddings()
        nn.init.normal_(table.weight.data[rows:], std=initial_std(model.llm.config))
        bundle.origin.from_base.discard("llm.embed_tokens.weight")


def backbone_config(config: Any, family: OmniVoice, key: str) -> Any:
    """A backbone's config without its causal mask. Raises ConfigError for backbones that cannot do without."""
    config = config.get_text_config()
    if kind := flex.partial(config):
        raise ConfigError(
            f"{key}: {config.model_type} has layers of the kind `{kind}`, which do not see all of an utterance: use "
            "a backbone whose layers all have full attention, such as qwen3, llama or gemma."
        )
    if family.attention == "flex":
        flex.check(config, "model.attention")
    return config


def backbone(config: Any, key: str) -> nn.Module:
    """An untrained backbone."""
    try:
        return AutoModel.from_config(
            config, trust_remote_code=False, attn_implementation=flex.NAME, dtype=torch.float32
        )
    except ValueError as error:  # sizes that do not go together, no such attention
        raise ConfigError(f"{key}: {' '.join(str(error).split()).partition('. ')[0]}.") from error


@torch.no_grad()
def make_bidirectional(llm: Any, key: str) -> None:
    """Take the causal mask from a decoder, and try on two short items that each position then sees all of its item and
    nothing of the other. Raises ConfigError for a decoder that cannot."""
    check_weights(llm.named_parameters(), key)
    config = llm.config
    config.is_causal = False
    for module in llm.modules():
        if "is_causal" in vars(module):
            module.is_causal = False
    rows = llm.get_input_embeddings().weight
    if rows.is_meta:  # a skeleton, which computes nothing
        return
    training = llm.training
    llm.eval()
    embeds = torch.randn(1, 6, rows.shape[1], generator=torch.Generator().manual_seed(0)).to(rows)
    two_items = flex.item_table(torch.tensor([0, 0, 0, 1, 1, 1]))
    layout = {"attention_mask": two_items, "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]])}
    changed = embeds.clone()
    changed[0, 2] = -embeds[0, 2]

    def outputs(embeds: torch.Tensor, **layout: Any) -> torch.Tensor:
        try:
            return llm(inputs_embeds=embeds, use_cache=False, **layout).last_hidden_state[0].float()
        except (TypeError, ValueError, RuntimeError, AttributeError, KeyError):
            return embeds.new_zeros(6, 1).float()  # takes no such mask: changes nothing below

    packed = (outputs(embeds, **layout) - outputs(changed, **layout)).abs().amax(-1)
    alone = (outputs(embeds[:, :3]) - outputs(changed[:, :3])).abs().amax(-1)
    llm.train(training)
    tolerance = 1e-4 * packed.max()  # experts, for one, round a little differently with other items in the batch
    if not (packed[0] > tolerance and packed[3:].max() < tolerance and alone[0] > tolerance):
        raise ConfigError(
            f"{key}: the attention of {config.model_type} cannot be made bidirectional (its layers only look back, "
            "or take no mask): use a decoder with plain attention, such as qwen3, llama or gemma."
        )


def usual_codec(bundle: Bundle, folder: Path) -> None:
    """Give a checkpoint that OmniVoice's own training wrote, which has no codec next to it, the published one, as
    OmniVoice does. Where that cannot be had, the processor's `codec_missing` says why."""
    processor: Any = bundle.processor
    if (folder / SECTION_FILE).is_file() or (processor.codebooks, processor.vocabulary) != (CODEBOOKS, ENTRIES):
        return
    try:
        processor.codec = HiggsAudioV2().open()
    except ConfigError as error:
        reason = str(error).partition(": ")[2]
        processor.codec_missing = f"{folder / INSIDE} is not there, and {reason}"


def finish(bundle: Bundle) -> None:
    """Storage and memory options, after adapters and freezing."""
    family: Any = bundle.family
    model: Any = bundle.model
    backbone = {n: p for n, p in model.llm.named_parameters() if not is_adapter(n)}
    if family.dtype == "bfloat16" and not any(p.requires_grad for p in backbone.values()) and bundle.origin.from_base:
        for parameter in backbone.values():
            parameter.data = parameter.data.to(torch.bfloat16)
    set_memory_options(bundle, (model.llm,))
