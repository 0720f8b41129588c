"""Whisper: its window of 30 s, its prompt with language, task and timestamps, and detection of the language.

Trained on the window that it was pretrained on and that plain transformers code gives it, or partly on shorter ones
(`full_window`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from stentor.audio.features import HOP, RATE, WINDOW, WhisperMel
from stentor.data.batch import Example, num_samples
from stentor.errors import ConfigError
from stentor.models.collate import mask_features
from stentor.models.contracts import Capabilities
from stentor.models.encoders.encode import whisper_layers
from stentor.models.encoders.geometry import Geometry, geometry
from stentor.models.parameters import is_sharded
from stentor.models.seq2seq.config import Seq2Seq
from stentor.models.seq2seq.modeling import Seq2SeqModel
from stentor.models.seq2seq.processor import Seq2SeqProcessor, language_codes
from stentor.models.seq2seq.tokenizer import generation_facts, keep_merges, whisper_tokenizer
from stentor.models.text.control_tokens import text_ids

FRAMES = WINDOW // HOP // 2
"""Encoder positions of the window."""
SILENCE = RATE
"""Samples of silence, at least, that follow the longest clip of a batch that does not fill the window."""
GRAIN = RATE // 2
"""Samples that a shorter window is a multiple of: few different shapes."""
TICK = 0.02
"""Seconds from one timestamp token to the next."""
PAUSE = 0.5
"""Seconds of silence between two words from which on they lie in two timestamped segments."""
SENTENCE_ENDS = tuple(".!?。！？")
SPACELESS = ("zh", "ja", "th", "lo", "my", "yue")
"""Languages whose texts Whisper begins without a space."""


class Processor(Seq2SeqProcessor):
    """Features, prompt tokens and labels of Whisper.

    `timestamps`: share of items with known word times (`Example.extra["times"]`, `{"word", "start", "end"}` in seconds)
    that are trained with timestamp tokens; `full_window`: share of the training batches whose features fill the window
    of 30 s.
    """

    tokenizer_class = "WhisperTokenizer"
    extractor_class = None
    positions_key = "max_target_positions"

    def __init__(self, tokenizer: Any, extractor: Any, config: Any, generation: dict[str, Any], family: Seq2Seq):
        super().__init__(tokenizer, extractor, config, generation, family)
        if config.max_source_positions != FRAMES:
            raise ConfigError(
                f"model.config.max_source_positions must be {FRAMES}: 30 s of audio, as in all Whisper models."
            )
        if family.merges is not None:
            keep_merges(tokenizer, family.merges)
        # Older generation configs do not say; OpenAI's rule is the size of the vocabulary.
        multilingual = generation.get("is_multilingual")
        self.translates = config.vocab_size >= 51865 if multilingual is None else multilingual
        self.mels = config.num_mel_bins
        self.timestamps, self.full_window = family.timestamps, family.full_window
        vocabulary = tokenizer.get_vocab()
        self.task_ids = [vocabulary.get(f"<|{task}|>") for task in ("transcribe", "translate")]
        self.plain_id: int = vocabulary["<|notimestamps|>"]
        self.codes = language_codes()
        known = {code: vocabulary[f"<|{code}|>"] for code in self.codes if f"<|{code}|>" in vocabulary}
        self.languages = known if self.translates else {}
        self.known_languages = tuple(self.languages or ("en",))
        self._mel: WhisperMel | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mel": None}

    def geometry(self, config: Any) -> Geometry:
        return geometry(config, window="30s")

    @classmethod
    def fresh_tokenizer(cls) -> Any:
        return whisper_tokenizer()

    @classmethod
    def fresh_settings(cls, tokenizer: Any) -> dict[str, Any]:
        facts = generation_facts(tokenizer)
        ids = {key: facts[key] for key in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")}
        return {"vocab_size": facts["no_timestamps_token_id"] + 1 + FRAMES + 1, **ids}

    @classmethod
    def fresh_generation(cls, tokenizer: Any, config: Any) -> dict[str, Any]:
        return {**generation_facts(tokenizer), "max_length": config.max_target_positions}

    def unknown_language(self, language: str | None) -> str | None:
        """Return the reason why a record of this language cannot be used, None when it can."""
        if not language:
            return None
        if self.code(language) in self.known_languages:
            return None
        if not self.languages:
            return f"its language is {language!r}, and this Whisper knows English only"
        return f"this Whisper does not know the language {language!r}; give a code such as en, or none to detect it"

    def prompt(self, language: str | None, translate: bool = False, timed: bool = False) -> list[int]:
        """The tokens before the text. A language to be detected is held by a second start token."""
        prompt = [self.start_id]
        if self.languages:
            code = self.code(language)
            prompt += [self.languages[code] if code else self.start_id, self.task_ids[translate]]
        return prompt if timed else [*prompt, self.plain_id]

    def previous(self, example: Example) -> list[int]:
        """The tokens of the text that is said to come before (`extra["prompt"]`), its last ones where it is long, as
        in `WhisperTokenizer.get_prompt_ids`; none without one."""
        text = (example.extra.get("prompt") or "").strip()
        if not text:
            return []
        ids = text_ids(self.tokenizer, f" {text}")
        return [self.tokenizer.get_vocab()["<|startofprev|>"], *ids[-(self.most // 2 - 1) :]]

    def named_language(self, ids: Sequence[int]) -> str | None:
        """The code of a language token."""
        return next((code for code, token in self.languages.items() if token in ids), None)

    def text_ids(self, text: str, language: str | None, translate: bool = False) -> list[int]:
        """Whisper's training texts begin with a space, where the language has spaces. Translations are into English."""
        return self._ids(text, "en" if translate else self.code(language))

    def _ids(self, text: str, code: str | None) -> list[int]:
        """Whisper was trained on texts that begin with a space, where the language has spaces."""
        text = text.strip() if code in SPACELESS else f" {text.strip()}"
        return text_ids(self.tokenizer, text) if text.strip() else []

    def timed_ids(self, text: str, times: Sequence[dict[str, Any]], code: str | None) -> list[int] | None:
        """The text as segments between timestamp tokens; None when the timed words are not those of the text.

        Segments end at sentence ends and pauses, and times are rounded to 20 ms, as Whisper writes them.
        """
        separator = "" if code in SPACELESS else " "
        pieces = text.split()
        if len(pieces) != len(times):
            pieces = [w["word"] for w in times]
            if separator or "".join(pieces) != "".join(text.split()):
                return None
        if not pieces or times[-1]["end"] > self.max_seconds:
            return None
        ids: list[int] = []
        first = 0
        for i, word in enumerate(times):
            last = i == len(times) - 1
            if last or pieces[i].endswith(SENTENCE_ENDS) or times[i + 1]["start"] - word["end"] >= PAUSE:
                segment = self._ids(separator.join(pieces[first : i + 1]), code)
                ids += [self._timestamp(times[first]["start"]), *segment, self._timestamp(word["end"])]
                first = i + 1
        return ids

    def _timestamp(self, seconds: float) -> int:
        return self.plain_id + 1 + round(seconds / TICK)

    def sequence(self, example: Example) -> tuple[list[int], int]:
        if example.rng is not None and (times := example.extra.get("times")) and not example.extra.get("translate"):
            drawn = example.rng.random() < self.timestamps
            timed = self.timed_ids(example.text or "", times, self.code(example.language)) if drawn else None
            prompt = self.prompt(example.language, timed=True)
            if timed and len(prompt) + len(timed) <= self.most:
                return [*prompt, *timed, self.eos_id], len(prompt)
        return super().sequence(example)

    def learnt_places(self, example: Example) -> list[int]:
        """The language token, where the language is known."""
        return [1] if self.languages and self.code(example.language) else []

    def features(self, examples: Sequence[Example]) -> Tensor:
        """Log-mel [B, mels, 3000] of clips of at most 30 s, equal to WhisperFeatureExtractor's to 1e-4."""
        self._mel = self._mel or WhisperMel(self.mels, pad_to_30s=True)
        features, lengths = self._mel([e.audio for e in examples if e.audio is not None])
        mask_features(features, lengths, examples)
        return features

    def window(self, examples: Sequence[Example]) -> int:
        """Samples of the encoder's input for a batch.

        All 30 s in evaluation and inference (items without `rng`) and in the share `full_window` of the training
        batches, drawn from the first item's generator; else the longest clip, `SILENCE`, and what fills up to `GRAIN`.
        """
        rng = examples[0].rng
        if rng is None or self.full_window == 1 or rng.random() < self.full_window:
            return WINDOW
        longest = max(num_samples(e) for e in examples)
        return min(WINDOW, -(-(longest + SILENCE) // GRAIN) * GRAIN)

    def audio_inputs(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        # The window is drawn last, so that augmentation is the same whatever `full_window` is.
        features = self.features(examples)
        return {"features": features[:, :, : self.window(examples) // HOP]}

    def language_inputs(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """`detect` [B]: whose language has to be detected."""
        if not self.languages:
            return {}
        return {"detect": torch.tensor([self.code(e.language) is None for e in examples])}

    def decode(self, ids: Sequence[int]) -> str:
        """Text of generated ids, without special and timestamp tokens."""
        return super().decode([i for i in ids if i <= self.plain_id])

    def save(self, folder: Path) -> None:
        from transformers import WhisperFeatureExtractor, WhisperProcessor

        WhisperProcessor(WhisperFeatureExtractor(feature_size=self.mels), self.tokenizer).save_pretrained(folder)


class Model(Seq2SeqModel):
    """Whisper, with the detection of the language: the most likely language token after the start token."""

    def __init__(self, pretrained: Any, processor: Processor):
        super().__init__(pretrained, processor)
        self.languages = sorted(processor.languages.values())
        """Ids of the language tokens; none for English-only models."""
        vocabulary = processor.tokenizer.get_vocab()
        no_speech = next((vocabulary[t] for t in ("<|nospeech|>", "<|nocaptions|>") if t in vocabulary), None)
        self.no_speech_id = no_speech if no_speech is not None and no_speech < self.config.vocab_size else None

    @property
    def capabilities(self) -> Capabilities:
        multilingual = bool(self.languages)
        silence = self.no_speech_id is not None
        return Capabilities(names_language=multilingual, detects_language=multilingual, no_speech=silence)

    def adjust(self) -> None:
        # Sinusoids, never trained; transformers' `from_pretrained` forgets that.
        self.model.encoder.embed_positions.requires_grad_(False)

    def encoder_states(self, features: Tensor, lengths: Any) -> tuple[Tensor, Tensor | None]:
        """Encode log-mel [B, mels, T], T <= 3000; the silence of the window counts."""
        encoder = self.model.encoder
        if features.shape[2] < 2 * self.config.max_source_positions:
            hidden = F.gelu(encoder.conv2(F.gelu(encoder.conv1(features))))
            return whisper_layers(encoder, hidden)[0], None
        return encoder(features).last_hidden_state, None

    def prompted(
        self, states: tuple[Tensor, Tensor | None], input_ids: Tensor, detect: Tensor | None, start: int = 0
    ) -> Tensor:
        """`input_ids` with the language token, after the start token in the column `start`, of the rows in `detect` [B]
        set to the one that it detects.

        As in transformers: the most likely language token after the start token.
        """
        if detect is None:
            return input_ids
        unknown = detect
        if not detect.any():
            if not is_sharded(self):
                return input_ids
            unknown = torch.arange(len(detect), device=detect.device) == 0  # another process may have one to detect
        with torch.no_grad():
            tokens = input_ids[unknown, start : start + 1]
            logits = self._language_logits((states[0][unknown], None), tokens)
            likeliest = torch.tensor(self.languages, device=input_ids.device)[logits.argmax(-1)]
        input_ids = input_ids.clone()
        input_ids[detect, start + 1] = likeliest[: detect.sum()]
        return input_ids

    def language_probabilities(self, features: Tensor) -> Tensor:
        """Probability of each language [B, languages], in the order of `languages`; `features` come from the
        processor's `audio_inputs`."""
        start = torch.full((len(features), 1), self.start_id, device=features.device)
        return self._language_logits(self.encode(features), start).float().softmax(-1)

    def _language_logits(self, states: tuple[Tensor, Tensor | None], tokens: Tensor) -> Tensor:
        """Logits of the languages [B, languages] behind `tokens` [B, 1], the start token."""
        state = self.decode(states, tokens, use_cache=False).last_hidden_state[:, -1]
        return self.proj_out(state)[:, torch.tensor(self.languages, device=tokens.device)]
