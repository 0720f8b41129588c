"""Examples to batches for encoder-decoder recognisers. Holds no torch module, so that loader workers can get it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from lhotse.cut import Cut
from torch import Tensor

from stentor.data.batch import Batch, Example, num_samples
from stentor.data.cut import language_of, text_of
from stentor.errors import ConfigError
from stentor.models.collate import Contents, encoder_inputs, usable_batch
from stentor.models.contracts import Processor
from stentor.models.encoders.geometry import SAMPLE_RATE, Geometry
from stentor.models.seq2seq.config import MODELS, Seq2Seq
from stentor.models.text.control_tokens import text_ids
from stentor.text.languages import among


class Seq2SeqProcessor(Processor):
    """Features, prompt tokens and labels of one model. Another model overrides `geometry`, `prompt`, and what else of
    the hooks is not as here; it declares the attributes below them.

    `tokenizer` and `extractor`: transformers', which an export holds (`extractor` None where features are made here);
    `config`: the model's transformers config; `generation`: keys of its generation config; `family`: the section.
    """

    tokenizer_class: ClassVar[str] = "AutoTokenizer"
    extractor_class: ClassVar[str | None] = "AutoFeatureExtractor"
    """transformers' classes that read the tokenizer and the extractor of a model's folder. None: nothing is read."""
    processor_class: ClassVar[str]
    """transformers' processor, as which both are written."""
    positions_key: ClassVar[str] = "max_position_embeddings"
    """Key of the config that holds how many positions the decoder has."""
    sample_rate = SAMPLE_RATE
    max_seconds: float

    def __init__(self, tokenizer: Any, extractor: Any, config: Any, generation: dict[str, Any], family: Seq2Seq):
        self.tokenizer, self.extractor = tokenizer, extractor
        self.token_rate = family.token_rate
        self.title, self.translates = MODELS[config.model_type].title, MODELS[config.model_type].translates
        self.seconds_limit = f"this {self.title} reads at most {{:g}} s"
        self.shape = self.geometry(config)
        self.eos_id = int(tokenizer.eos_token_id)
        start = config.decoder_start_token_id
        self.start_id = int(config.bos_token_id if start is None else start)
        self.most: int = getattr(config, self.positions_key)
        """Decoder positions."""
        self.max_seconds = (self.shape.max_samples or 0) / SAMPLE_RATE
        self.languages: dict[str, int] = {}
        """Tokens of the languages that prompts name, by code."""
        self.codes: dict[str, str] = {}
        """Codes by what a record may call a language."""

    # Hooks: how a model is made, from its config and for a config without weights

    def geometry(self, config: Any) -> Geometry:
        """Shapes and limits of the encoder."""
        raise NotImplementedError

    @classmethod
    def fresh_tokenizer(cls) -> Any:
        """The tokenizer of an untrained model."""
        raise NotImplementedError

    @classmethod
    def fresh_extractor(cls, config: Any) -> Any:
        """The feature extractor of an untrained model; None where features are made here."""
        return None

    @classmethod
    def fresh_settings(cls, tokenizer: Any) -> dict[str, Any]:
        """Keys of an untrained model's config that come from its tokenizer."""
        ends = {key: getattr(tokenizer, key) for key in ("pad_token_id", "bos_token_id", "eos_token_id")}
        return {"vocab_size": len(tokenizer), "decoder_start_token_id": ends["bos_token_id"], **ends}

    @classmethod
    def complete(cls, config: Any) -> None:
        """Fill in what transformers asks of an untrained model's config but has no key for."""

    @classmethod
    def fresh_generation(cls, tokenizer: Any, config: Any) -> dict[str, Any]:
        """Keys of an untrained model's generation config."""
        keys = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
        return {**{key: getattr(config, key) for key in keys}, "max_length": getattr(config, cls.positions_key)}

    # Hooks: languages, prompts and texts

    def code(self, language: str | None) -> str | None:
        """The code of a language that a record names by code, locale (`en-US`) or English name; None when it names none
        or one that is not among `codes`."""
        name = among(language, tuple(self.codes))
        return None if name is None else self.codes[name]

    def unknown_language(self, language: str | None) -> str | None:
        """Return why a record of this language cannot be used, or None. Models that name no language take any."""
        return None

    def prompt(self, language: str | None, translate: bool = False) -> list[int]:
        """The tokens before the text, from the start token."""
        return [self.start_id]

    def previous(self, example: Example) -> list[int]:
        """Tokens before the start token: those of a text that is said to come before (`extra["prompt"]`)."""
        return []

    def text_ids(self, text: str, language: str | None, translate: bool = False) -> list[int]:
        """The tokens of a text."""
        return text_ids(self.tokenizer, text.strip())

    def ids(self, text: str) -> list[int]:
        """The tokens of a text of no certain language."""
        return self.text_ids(text, None)

    def learnt_places(self, example: Example) -> list[int]:
        """Places of prompt tokens that are learnt, as the text is."""
        return []

    def audio_inputs(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """Inputs of the model from the audio: `features`, log-mel [B, mels, T] or audio [B, T], and `lengths` [B]."""
        features, lengths = encoder_inputs(self.shape, self.extractor, examples)
        return {"features": features, "lengths": lengths}

    def language_inputs(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """Further inputs of the model."""
        return {}

    def decode(self, ids: Sequence[int]) -> str:
        """Text of generated ids, without special tokens."""
        return self.tokenizer.decode(ids, skip_special_tokens=True)  # type: ignore[no-any-return]

    # What is shared

    def frames(self, samples: int) -> int:
        """Encoder positions of a clip of so many samples, with the silence that fills its window."""
        return int(self.shape.frames(self.shape.steps(max(samples, self.shape.window or 0))))

    def tokens(self, cut: Cut, seconds: float) -> int:
        """Positions of encoder and decoder, the most that a batch can be given, from metadata alone."""
        language = language_of(cut)
        text = self.text_ids(text_of(cut) or "", language)
        return self.frames(round(seconds * SAMPLE_RATE)) + len(self.prompt(language)) + len(text)

    def max_new_tokens(self, seconds: float) -> int:
        """Most tokens that generation may write for so much audio."""
        return min(int(seconds * self.token_rate) + 16, self.most - len(self.prompt(next(iter(self.languages), None))))

    def sequence(self, example: Example) -> tuple[list[int], int]:
        """The tokens of a training item, end token included, and how many of them are its prompt."""
        prompt = self._prompt(example)
        text = self.text_ids(example.text or "", example.language, bool(example.extra.get("translate")))
        return [*prompt, *text, self.eos_id], len(prompt)

    def _prompt(self, example: Example) -> list[int]:
        translate = bool(example.extra.get("translate"))
        if translate and not self.translates:
            raise ConfigError(f"task.translate: this {self.title} transcribes and does not translate.")
        return self.prompt(example.language, translate)

    def collate(self, examples: Sequence[Example], packed: bool = False, labels: bool = True) -> Batch:
        """A batch for training (`labels`) or for generation. The tokens of the prompt are given, not learnt, but for
        `learnt_places`."""
        return usable_batch(self, examples, labels, self._contents)

    def _contents(self, examples: Sequence[Example], labels: bool) -> Contents:
        rows = [self.sequence(e) if labels else (self._given(e), 0) for e in examples]
        inputs = self.audio_inputs(examples)
        fed = [ids[:-1] if labels else ids for ids, _ in rows]
        width = max(map(len, fed))
        inputs["input_ids"] = torch.tensor([[*ids, *[self.eos_id] * (width - len(ids))] for ids in fed])
        inputs |= self.language_inputs(examples)
        counts = {}
        if labels:
            index: list[int] = []
            targets: list[int] = []
            for row, ((ids, prompt), example) in enumerate(zip(rows, examples)):
                for place in (*self.learnt_places(example), *range(prompt, len(ids))):
                    index.append(row * width + place - 1)
                    targets.append(ids[place])
            inputs["label_index"], inputs["targets"] = torch.tensor(index), torch.tensor(targets)
            counts["text"] = len(targets)
        tokens = sum(int(self.shape.frames(self.shape.steps(num_samples(e)))) for e in examples) + sum(map(len, fed))
        return inputs, counts, tokens, len(examples) * (int(self.shape.frames(inputs["features"].shape[-1])) + width)

    def _given(self, example: Example) -> list[int]:
        """The tokens that generation begins with."""
        return self.previous(example) + self._prompt(example)

    def refusal(self, example: Example, labels: bool) -> tuple[str, str] | None:
        if reason := super().refusal(example, labels):
            return reason
        if unknown := self.unknown_language(example.language):
            return "unknown_language", f"{example.id}: {unknown}."
        tokens = len(self._prompt(example) if labels else self._given(example))
        text = (example.text or "") if labels else ""
        if tokens + len(text.encode()) + 1 > self.most:  # a token is at least a byte: others need not be tokenised
            tokens += len(self.text_ids(text, example.language, bool(example.extra.get("translate"))))
        if tokens <= self.most:
            return None
        return "text_too_long", (
            f"{example.id}: prompt and text are {tokens} tokens; this {self.title} has {self.most} positions "
            f"(`{self.positions_key}` of the model): shorten the text, or cut the record into shorter ones."
        )

    def save(self, folder: Path) -> None:
        """Write what transformers' processor reads: tokenizer and feature extractor."""
        import transformers

        getattr(transformers, self.processor_class)(self.extractor, self.tokenizer).save_pretrained(folder)


def language_codes() -> dict[str, str]:
    """Codes of the languages that Whisper's tokenizer knows, by code and English name."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES, TO_LANGUAGE_CODE

    return {code: code for code in LANGUAGES} | TO_LANGUAGE_CODE
