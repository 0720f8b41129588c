"""Models that speak as ONNX graphs with `speak.py`, which runs them.

OmniVoice     model.onnx: input_ids [1, codebooks, L], audio_mask [1, L], rows [T] -> log-probabilities of the codes at
              the positions `rows`, [T, codebooks, entries and MASK]
Pocket TTS    graphs as sherpa-onnx 2.0.1 reads them (sherpa-onnx/csrc/offline-tts-pocket-model.cc): text_conditioner,
              lm_main (NaN stands for the first latent; a state begins as a position of zeros, which is never seen),
              lm_flow; and voice.onnx, which embeds the latents of a voice
codec_*.onnx  see `stentor.export.onnx.codec`
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stentor.data.batch import Example
from stentor.data.speaking_rate import weight
from stentor.errors import ConfigError
from stentor.export.onnx.codec import write_codec
from stentor.export.onnx.exporter import GraphExporter, usage_of, write_facts
from stentor.export.onnx.trace import cached_states, trace
from stentor.export.program import load_program, write_program
from stentor.inference.model import Model
from stentor.models.base import Bundle
from stentor.models.text.control_tokens import control_names
from stentor.tasks.speak.generation import OF_TEXTS, Generation
from stentor.text.languages import table

USAGE = """\
The second line is for models that clone voices (`clones` in `onnx_config.json`). A model of phonemes (`phonemes` there)
also needs the program espeak-ng.
"""
COMMANDS = """\
python speak.py "Hello there." --to hello.wav --seed 1
python speak.py "Hello there." --to hello.wav --reference voice.wav --reference-text "What is said there."\
"""
KINDS_OF_TTS = ("pocket_tts", "gradium_phonon_tts")
"""Kinds of the family `tts` that are exported."""
TYPES = {"omnivoice": "masked", **dict.fromkeys(KINDS_OF_TTS, "flow")}
"""Template of the way of speaking, by family or kind."""


class MaskedGraph(nn.Module):
    """OmniVoice: what the codes of some positions are."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, audio_mask: Tensor, rows: Tensor) -> Tensor:
        model, size = self.model, input_ids.shape[2]
        embeds = model.embed(input_ids, audio_mask)
        nothing = torch.zeros(1, 1, size, size)  # hidden: each position sees all
        states = model.llm(inputs_embeds=embeds, attention_mask=nothing, use_cache=False).last_hidden_state[0, rows]
        return model.audio_heads(states).unflatten(-1, (model.codebooks, model.vocabulary)).log_softmax(-1)


class FlowGraph(nn.Module):
    """Pocket TTS: one step of the flow, `s` to `t` [1, 1], at the point `x` [1, dimensions]."""

    def __init__(self, pretrained: Any):
        super().__init__()
        self.head = pretrained.flow_head

    def forward(self, c: Tensor, s: Tensor, t: Tensor, x: Tensor) -> Tensor:
        return self.head(x, c, times=[s, t])


class VoiceGraph(nn.Module):
    """Embeddings [1, T or T + 1, width] of a voice's latents [1, T, dimensions], behind what begins a voice."""

    def __init__(self, pretrained: Any, first: Sequence[int]):
        super().__init__()
        self.project, self.table = pretrained.model.audio_prompt_proj, pretrained.get_input_embeddings()
        self.register_buffer("first", torch.tensor([list(first)], dtype=torch.long))

    def forward(self, latents: Tensor) -> Tensor:
        return torch.cat([self.table(self.first), self.project(latents)], 1)


class MainGraph(nn.Module):
    """Pocket TTS: latents [1, T, dimensions] or embeddings [1, L, width] behind those in the state."""

    def __init__(self, pretrained: Any, threshold: float):
        super().__init__()
        self.model, self.end, self.shift = pretrained.model, pretrained.eos_head, -4.0 - threshold

    def forward(self, sequence: Tensor, text_embeddings: Tensor, state: list[Tensor]) -> tuple[Tensor, ...]:
        from transformers import DynamicCache

        model = self.model
        latents = model.embed_audio_latents(torch.where(sequence.isnan(), model.bos_latent, sequence))
        embeds = torch.cat([text_embeddings, latents], 1)
        cache: Any = DynamicCache(list(zip(state[::2], state[1::2])))
        before, size = state[0].shape[2], state[0].shape[2] + embeds.shape[1]
        place = torch.arange(size)
        seen = ((place[None] <= place[before:, None]) & (place[None] > 0))[None, None]
        states = cached_states(model, embeds, seen, place[None, before:] - 1, cache)[:, -1]
        # sherpa-onnx ends where this is above -4, whatever the model's threshold.
        return states, self.end(states) + self.shift, *[t for layer in cache.layers for t in (layer.keys, layer.values)]


class SpeakOnnx(GraphExporter):
    """Graphs of a model that speaks, with a program that runs them."""

    usage = usage_of(COMMANDS, USAGE, "prompt, length, codes, audio")

    def refusal(self, bundle: Bundle) -> str | None:
        processor: Any = bundle.processor
        if processor.codec is None:
            return "the model has no codec, so there would be no audio"
        if bundle.family.type == "tts" and processor.model_types[0] not in KINDS_OF_TTS:
            return f"the decoding loop of a {processor.model_types[0]} is not in the exported program"
        return None

    def write_graphs(self, model: Model, folder: Path) -> None:
        bundle = model.bundle
        processor: Any = bundle.processor
        codec = write_codec(processor.codec, folder, processor.clones)
        kind = TYPES[processor.model_types[0] if bundle.family.type == "tts" else bundle.family.type]
        write, facts_of = (write_masked, masked_facts) if kind == "masked" else (write_flow, flow_facts)
        with torch.no_grad():
            write(bundle, folder)
        processor.tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
        graphs = {path.stem: {"file": path.name} for path in sorted(folder.glob("*.onnx"))}
        facts = {
            "codec": codec,
            "weights": weights_of_characters(),
            "pace": processor.pace,
            "unknown": processor.tokenizer.unk_token_id,
            "control": control_names(processor.tokenizer, " ".join(processor.tokenizer.get_vocab())),
            "clones": processor.clones,
            **facts_of(model),
        }
        write_facts(folder, f"speak_{kind}", graphs, facts)
        write_program(folder, f"speak_{kind}", "speak.py", ("audio", "speaking"))

    def run(self, folder: Path, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]]:
        program = load_program(folder, "speak.py")
        speaker = program.Speaker(folder)
        speaker.random = TorchNoise
        if speaker.facts["phonemes"]:
            speaker.phonemes = model.bundle.processor.read  # type: ignore[attr-defined]
        speaker.finished = lambda audio, level, end: audio
        return [spoken_by(program, speaker, example) for example in examples]


def spoken_by(program: Any, speaker: Any, example: Example) -> dict[str, Any]:
    """Speech of an exported program for an example of `stentor.export.speech`; see `spoken` there."""
    extra, voice = example.extra, example.extra["voice"]
    if voice is not None:
        voice = program.Voice(voice.codes, " ".join(speaker.spelled(voice.text).split()))
    audio, codes = speaker.speak(example.text, voice, extra["seed"], example.language, extra["instruct"])
    encoded = None
    if example.audio is not None and "codec_encoder" in speaker.graphs:
        encoded = speaker.encode(example.audio)
    return {"audio": audio, "codes": np.concatenate(codes, 1), "encoded": encoded}


class TorchNoise:
    """The noise that Stentor draws for a seed, so that speech is compared with the chance that it is made with."""

    def __init__(self, seed: int):
        self.generator = torch.Generator().manual_seed(seed)

    def standard_exponential(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        return torch.empty(*shape).exponential_(generator=self.generator).numpy()

    def standard_normal(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        return torch.randn(*shape, generator=self.generator).numpy()


def write_masked(bundle: Bundle, folder: Path) -> None:
    """Write the graph of an OmniVoice model."""
    model: Any = bundle.model
    ids = torch.zeros(1, model.codebooks, 19, dtype=torch.long)
    inputs = {"input_ids": ids, "audio_mask": torch.arange(19)[None] > 6, "rows": torch.arange(8, 19)}
    axes = {"input_ids": (2,), "audio_mask": (1,), "rows": (0,)}
    before, model.llm.config._attn_implementation = model.llm.config._attn_implementation, "sdpa"
    try:
        trace(MaskedGraph(model), inputs, axes, ["log_probs"], folder / "model.onnx", "language model")
    finally:
        model.llm.config._attn_implementation = before


def masked_facts(model: Model) -> dict[str, Any]:
    """Facts that `speak_masked.py` reads in onnx_config.json."""
    processor: Any = model.bundle.processor
    task: Any = model.task
    section = model.training.get("model", {})
    learned = task.learned_style("language", "instruct", section)
    return {
        "generation": task.generation.model_dump(),
        "mask": processor.mask_id,
        "tags": processor.tags.pattern,
        "phonemes": processor.phonemes,
        "languages": {row.code: row.omnivoice for row in table().values() if row.omnivoice not in (row.code, "", None)},
        **{name: learned[name] is not None for name in ("language", "instruct")},
        "denoise": not model.training or bool(section.get("from")),
        "instruct_alone": task.only_instruct_ratio == 1 and not section.get("from"),
    }


def write_flow(bundle: Bundle, folder: Path) -> None:
    """Write the graphs of a Pocket TTS but those of its codec."""
    pretrained, processor = bundle.model.pretrained, bundle.processor
    config = pretrained.config
    width, latents, key = config.hidden_size, config.latent_dim, config.num_key_value_heads
    head = config.to_dict().get("head_dim") or width // config.num_attention_heads
    state = [torch.zeros(1, key, 4, head) for _ in range(2 * config.num_hidden_layers)]
    names = [f"{i}.{part}" for i in range(config.num_hidden_layers) for part in ("key", "value")]
    trace(
        MainGraph(pretrained, generation_of(bundle)["eos_threshold"]),
        {"sequence": torch.randn(1, 3, latents), "text_embeddings": torch.randn(1, 5, width), "state": state},
        {"sequence": (1,), "text_embeddings": (1,), "state": [(2,)] * len(state)},
        ["conditioning", "eos_logit", *(f"next.{name}" for name in names)],
        folder / "lm_main.onnx",
        "language model",
        ["sequence", "text_embeddings", *(f"state.{name}" for name in names)],
    )
    point = {"c": torch.randn(1, width), "s": torch.zeros(1, 1), "t": torch.ones(1, 1), "x": torch.randn(1, latents)}
    trace(FlowGraph(pretrained), point, dict.fromkeys(point, ()), ["flow_dir"], folder / "lm_flow.onnx", "flow head")
    ids, part = torch.zeros(1, 5, dtype=torch.long), "text embedding"
    path, table = folder / "text_conditioner.onnx", pretrained.get_input_embeddings()
    trace(table, {"input": ids}, {"input": (1,)}, ["embeddings"], path, part, ["token_ids"])
    if processor.clones:
        graph, voice = VoiceGraph(pretrained, prompt_parts(processor)), {"latents": torch.randn(1, 5, latents)}
        trace(graph, voice, {"latents": (1,)}, ["embeddings"], folder / "voice.onnx", "projection of voices")


def prompt_parts(processor: Any) -> list[int]:
    """Tokens before the latents of a voice. Raises ConfigError for a chat template that puts more around a text than
    the first latent behind it and a voice before it, which the exported program does not know."""
    text = "one two."
    prompt, config = processor.utterance(text, frames=1), processor.config
    voice: list[int] = []
    if processor.clones:
        latents = np.zeros((config.latent_dim, 2), np.float32)
        ids = processor.utterance(text, reference=(latents, ""), frames=1).ids
        voice = ids[: ids.index(config.audio_prompt_token_id)]
        prompt.ids = ids[len(voice) + 2 :]
    if prompt.ids != [*processor.ids(text), config.audio_bos_token_id]:
        raise ConfigError(
            "This model cannot be exported to ONNX: the chat template of its processor changes the text, or puts "
            "tokens around it that the exported program does not know."
        )
    return voice


def generation_of(bundle: Bundle) -> dict[str, Any]:
    """Settings of a Pocket TTS: its section `generation`, else those of transformers' generation config."""
    usual: dict[str, Any] = {"flow_steps": 1, "eos_threshold": -4.0, "min_frames_before_eos": 6, "temperature": 1.0}
    config = bundle.model.pretrained.generation_config.to_dict()
    config["flow_steps"] = config.get("num_flow_steps")
    chosen = bundle.family.generation.model_dump(exclude_none=True)  # type: ignore[attr-defined]
    found = {key: chosen.get(key, config.get(key)) for key in usual}
    settings = {key: usual[key] if value is None else value for key, value in found.items()}
    sampled = chosen["temperature"] > 0 if "temperature" in chosen else config.get("do_sample")
    return {**settings, "temperature": settings["temperature"] if sampled else 0.0}


def flow_facts(model: Model) -> dict[str, Any]:
    """Facts that `speak_flow.py` reads in onnx_config.json."""
    processor: Any = model.bundle.processor
    pretrained, settings = model.bundle.model.pretrained, processor.hf.settings
    prompt_parts(processor)
    texts = Generation().model_dump(include=set(OF_TEXTS)) | model.task.generation.model_dump(include=set(OF_TEXTS))  # type: ignore[attr-defined]
    frames = {
        "short_words": settings.get("short_text_max_words", 4),
        "after_short": settings.get("frames_after_eos_short_text", 4),
        "after": settings.get("frames_after_eos", 2),
    }
    return {
        "generation": {**texts, **generation_of(model.bundle), **frames},
        "mean": pretrained.latent_mean.tolist(),
        "std": pretrained.latent_std.tolist(),
        "tags": None,
        "phonemes": None,
        **dict.fromkeys(("language", "instruct", "instruct_alone"), False),
    }


@cache
def weights_of_characters() -> tuple[list[int], list[float]]:
    """Last characters of the stretches of Unicode that weigh the same in the length of a text, and their weights."""
    values = [weight(chr(point)) for point in range(0x110000)]
    lasts = [i for i, (a, b) in enumerate(zip(values, [*values[1:], None])) if a != b]
    return lasts, [values[last] for last in lasts]
