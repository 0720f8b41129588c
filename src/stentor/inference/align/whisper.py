"""Whisper alignment: word times from the cross-attention of a Whisper decoder.

The text is given to the decoder; the cross-attention of a few heads follows the audio (Radford et al. 2022,
arXiv:2212.04356, and OpenAI's word timestamps). Their weights are standardised over the tokens, smoothed by a median
filter and averaged; dynamic time warping (Sakoe and Chiba 1978) finds the path through them. Words are put together
from tokens by the tokenizer's own character offsets.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stentor.audio.features import WhisperMel
from stentor.data.word_units import units
from stentor.errors import ConfigError
from stentor.inference.align.base import Aligned, Clip, Word
from stentor.inference.align.long_audio import by_windows
from stentor.inference.vad import Window
from stentor.models.base import Bundle
from stentor.models.pretrained.load import load_pretrained
from stentor.models.pretrained.weights import ADAPTER_FILE, fold, read_section, read_weights
from stentor.models.seq2seq.config import Seq2Seq
from stentor.text.languages import among

FILTER = 7
"""Frames (of 20 ms) of the median filter."""
FRAME = 0.02
"""Seconds between the encoder's frames."""
LONGEST = 30.0
"""Seconds of audio that Whisper takes at a time."""
TOKEN_RATE = 12
"""Most tokens a second that the model may write."""
UNLIKELY = -3.5
"""Mean log-probability of the tokens under which a text is not what was said."""


class WhisperAligner:
    """Word times of known texts from `WhisperForConditionalGeneration`.

    `lag` is how many seconds the attention of this model's heads is late, as measured on data with word times.
    """

    def __init__(self, folder: Path, device: torch.device, lag: float = 0.0):
        from transformers import AutoTokenizer, WhisperForConditionalGeneration
        from transformers.utils import logging

        logging.disable_progress_bar()

        def read(name: str | Path, at: dict[str, Any]) -> Any:  # only the eager kernel gives attention weights
            how: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "eager", "use_safetensors": True}
            return WhisperForConditionalGeneration.from_pretrained(name, trust_remote_code=False, **how, **at)

        try:
            if (folder / ADAPTER_FILE).is_file():
                family, _ = read_section(Seq2Seq, folder)
                model = load_pretrained(family, f"{folder}: model", read)
                fold(Bundle(model, None, family), read_weights(folder)[1], folder)
            else:
                model = read(folder, {})
            self.tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"{folder} is not a Whisper model that transformers can load: {error}") from error
        if not self.tokenizer.is_fast:
            raise ConfigError(f"{folder} has no tokenizer.json, whose character offsets are needed for word times.")
        self.model = model.to(device).eval()
        self.device, self.rate, self.longest, self.lag = device, 16000, LONGEST, lag
        self.mel = WhisperMel(model.config.num_mel_bins)
        self.heads = alignment_heads(model)
        # English-only models have one token less, by which OpenAI knows them too.
        self.multilingual = model.generation_config.to_dict().get("is_multilingual", model.config.vocab_size >= 51865)

    @torch.no_grad()
    def align(self, clips: Sequence[Clip], transcribe: bool = False) -> list[Aligned]:
        """See `align.base.Aligner`; the confidence of a word is the mean probability of its tokens."""
        return [by_windows(clip, self.longest, self._piece, self._recognize, transcribe) for clip in clips]

    def _encoded(self, clip: Clip, window: Window) -> tuple[Any, int]:
        audio = clip.recording.read(window.start, window.end)
        frames = max(1, round(len(audio) / self.rate / FRAME))
        features, _ = self.mel([np.pad(audio, (0, max(0, round(LONGEST * self.rate) - len(audio))))])
        return self.model.model.encoder(features.to(self.device)), frames

    def _prompt(self, language: str | None) -> list[int]:
        """The tokens before the text. They are looked up in the tokenizer: the generation config of a fine-tuned model
        may lack them."""
        known = self.tokenizer.get_vocab()
        ids = [known["<|startoftranscript|>"]]
        names = ["en"]
        if self.multilingual:
            names = sorted(token[2:-2] for token in known if re.fullmatch(r"<\|[a-z]{2,3}\|>", token))
        if (token := among(language or "en", tuple(names))) is None:
            raise ConfigError(f"This Whisper model does not know the language {language!r}; known: {', '.join(names)}.")
        if self.multilingual:
            ids += [known[f"<|{token}|>"], known["<|transcribe|>"]]
        return [*ids, known["<|notimestamps|>"]]

    def _recognize(self, clip: Clip, window: Window) -> str:
        encoded, _ = self._encoded(clip, window)
        prompt = self._prompt(clip.language)
        seconds = (window.end - window.start) / self.rate
        room = min(self.model.config.max_target_positions - len(prompt), 16 + round(TOKEN_RATE * seconds))
        return str(self.tokenizer.decode(self._greedy(encoded, prompt, room), skip_special_tokens=True)).strip()

    def _greedy(self, encoded: Any, prompt: list[int], room: int) -> list[int]:
        """The most likely tokens, one after the other. transformers' `generate` for Whisper adds windows,
        timestamps and fallbacks."""
        config = self.model.generation_config
        never = [i for i in config.suppress_tokens or [] if i != config.eos_token_id]
        tokens: list[int] = []
        ids, past = prompt, None
        while len(tokens) < room:
            out = self.model(
                encoder_outputs=encoded,
                decoder_input_ids=torch.tensor([ids], device=self.device),
                past_key_values=past,
                use_cache=True,
            )
            past, scores = out.past_key_values, out.logits[0, -1]
            scores[never] = -torch.inf
            if not tokens:  # an empty answer is not forbidden here: there may be nothing to hear
                scores[[i for i in config.begin_suppress_tokens or [] if i != config.eos_token_id]] = -torch.inf
            best = int(scores.argmax())
            if best == config.eos_token_id:
                break
            tokens.append(best)
            ids = [best]
        return tokens

    def _piece(self, clip: Clip, window: Window, text: str) -> Aligned:
        """Word times of a stretch of audio, in seconds from its start."""
        words = units(text, clip.language)
        if not words:
            return Aligned([], reason="no_words")
        encoding = self.tokenizer(" " + text, add_special_tokens=False, return_offsets_mapping=True)
        tokens, spans = encoding["input_ids"], [(a - 1, b - 1) for a, b in encoding["offset_mapping"]]
        prompt = self._prompt(clip.language)
        limit = self.model.config.max_target_positions - len(prompt)
        encoded, frames = self._encoded(clip, window)
        if len(tokens) >= limit or len(tokens) > frames:
            return Aligned([], reason="too_long_text")
        ids = torch.tensor([[*prompt, *tokens]], device=self.device)
        out = self.model(encoder_outputs=encoded, decoder_input_ids=ids, output_attentions=True)
        # The position before a token predicts it, and attends to its sound; the last one predicts the end.
        first = len(prompt) - 1
        weights = torch.stack([out.cross_attentions[layer][0, head] for layer, head in self.heads])
        path = warp(sharpened(weights[:, first:, :frames]).cpu().numpy())
        log_probs = out.logits[0, first:-1].float().log_softmax(-1).cpu()
        token_log_probs = log_probs.gather(1, torch.tensor(tokens)[:, None])[:, 0].numpy()
        length = (window.end - window.start) / self.rate
        times = []
        for word in words:
            positions = tokens_of(spans, *word["span"])
            start = min(max(float(path[positions[0]]) * FRAME - self.lag, 0.0), length)
            end = min(max(float(path[positions[-1] + 1]) * FRAME - self.lag, start), length)
            confidence = float(np.exp(token_log_probs[positions]).mean())
            times.append(Word(word["word"], start, end, confidence, low=0.0))  # low where it would write another case
        mean = token_log_probs.mean()
        return Aligned(times, cost=-float(mean), reason="mismatch" if mean < UNLIKELY else None)


def alignment_heads(model: Any) -> list[tuple[int, int]]:
    """(layer, head) of the heads that follow the audio: those that the model names, else all of the upper half of its
    layers, as OpenAI takes them."""
    if listed := model.generation_config.to_dict().get("alignment_heads"):
        return [(int(layer), int(head)) for layer, head in listed]
    layers, heads = model.config.decoder_layers, model.config.decoder_attention_heads
    return [(layer, head) for layer in range(layers // 2, layers) for head in range(heads)]


def sharpened(weights: Tensor) -> Tensor:
    """Attention of heads [H, N, T] to one score [N, T]: standardised over the N tokens, median of `FILTER` frames, mean
    over heads."""
    weights = weights.float()
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-9)
    deviation = weights.std(1, keepdim=True, correction=0).clamp(min=1e-9)
    weights = (weights - weights.mean(1, keepdim=True)) / deviation
    reach = min(FILTER // 2, weights.shape[2] - 1)
    if reach:
        padded = torch.nn.functional.pad(weights, (reach, reach), mode="reflect")
        weights = padded.unfold(-1, 2 * reach + 1, 1).median(-1).values
    return weights.mean(0)


def warp(scores: np.ndarray) -> np.ndarray:
    """The first frame of each row, int64 [N], on the path from the first to the last corner of [N, T] with the highest
    sum, whose steps go one row, one column or both further."""
    rows, columns = scores.shape
    total = np.cumsum(scores, 1, dtype=np.float64)
    before = np.concatenate([np.zeros((rows, 1)), total[:, :-1]], 1)  # of the frames before each one
    best = total[0]
    begun = np.zeros((rows, columns), np.int64)
    for i in range(1, rows):
        # A row is entered at a frame from the same frame or the one before of the row above.
        entered = np.maximum(best, np.concatenate([[-np.inf], best[:-1]])) - before[i]
        highest = np.maximum.accumulate(entered)
        begun[i] = np.maximum.accumulate(np.where(entered == highest, np.arange(columns), 0))
        above, best = best, highest + total[i]
        # Which of the two it came from, folded into one table: -1 - frame for the same frame.
        begun[i] = np.where(
            above[begun[i]] > np.concatenate([[-np.inf], above[:-1]])[begun[i]], -1 - begun[i], begun[i]
        )
    starts = np.zeros(rows, np.int64)
    at = columns - 1
    for i in range(rows - 1, 0, -1):
        entry = begun[i, at]
        starts[i] = -1 - entry if entry < 0 else entry
        at = starts[i] if entry < 0 else starts[i] - 1
    return starts


def tokens_of(spans: Sequence[tuple[int, int]], start: int, end: int) -> list[int]:
    """The tokens that have characters [start, end) of the text, by their spans; the nearest when there are none."""
    positions = [k for k, (a, b) in enumerate(spans) if a < end and b > start]
    return positions or [next((k for k, (_, b) in enumerate(spans) if b > start), len(spans) - 1)]
