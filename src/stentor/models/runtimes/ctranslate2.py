"""Whisper in CTranslate2: what the tasks ask of the torch model, in batches, with its prompts and log-probabilities.

Greedy texts and beam searches are CTranslate2's own, over the same tokens. What it draws at a temperature comes from
its own random state, which no call can set (4.8): second attempts are other draws than the torch model's.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stentor.errors import ConfigError, require
from stentor.models.base import Bundle
from stentor.models.contracts import GenerationOutput, Recognizer
from stentor.models.decoding.bias import Bias
from stentor.models.decoding.search import COLDEST, ranked, token_limits
from stentor.models.runtimes.graph import OnCPU, place
from stentor.models.seq2seq import whisper

WORKERS = 2
"""Batches that run together on one copy of the weights: a short request does not wait for a batch of a long one."""
WEIGHTS = "model.bin"
RAW: dict[str, Any] = {"beam_size": 1, "suppress_blank": False, "suppress_tokens": [], "return_logits_vocab": True}
"""Options of greedy decoding whose logits are those of all tokens."""
_open: weakref.WeakValueDictionary[tuple[Any, ...], Any] = weakref.WeakValueDictionary()
"""Models in use, by file."""


class CT2Whisper(OnCPU, Recognizer):
    """The methods of `stentor.models.seq2seq.whisper.Model` that inference calls."""

    capabilities: Any = whisper.Model.capabilities

    def __init__(self, folder: Path, facts: dict[str, Any], bundle: Bundle):
        nn.Module.__init__(self)
        model, self.processor = bundle.model, bundle.processor
        self.place, self.whisper = place(), opened(folder, "Whisper")
        self.languages, self.start_id, self.most = model.languages, model.start_id, model.most
        self.no_speech_id, self.suppressed = model.no_speech_id, set(model.suppressed)
        self.suppressed_first = self.suppressed | set(model.suppressed_first)

    def language_probabilities(self, features: Tensor) -> Tensor:
        """Probability of each language [B, languages], in the order of `languages`."""
        return self._language_probabilities(self.encode(features))

    def encode(self, features: Tensor) -> np.ndarray:
        """Encoder states [B, frames, width] of log-mel [B, mels, T]: one by one, as the attention of a window of 30 s
        fits into the processor's cache and that of a batch does not (a tenth faster)."""
        rows = [self.whisper.encode(view(row.float().numpy())) for row in features.split(1)]
        return np.concatenate([np.asarray(row) for row in rows])

    def _language_probabilities(self, states: np.ndarray) -> Tensor:
        if not self.whisper.is_multilingual:
            raise ConfigError(
                "This export was written by an older Stentor, with which CTranslate2 does not detect languages: export "
                "the model again, or name the language."
            )
        names = {token: f"<|{code}|>" for code, token in self.processor.languages.items()}
        rows = [dict(row) for row in self.whisper.detect_language(view(states))]
        return torch.tensor([[row[names[token]] for token in self.languages] for row in rows])

    @torch.no_grad()
    def generate(
        self,
        inputs: dict[str, Tensor],
        max_new_tokens: int | list[int],
        eos_ids: set[int],
        beams: int = 1,
        temperature: float = 0.0,
        num_answers: int = 1,
        bias: Bias | None = None,
        **_: Any,
    ) -> list[GenerationOutput]:
        """See `Seq2SeqModel.generate`; of the `generators` for sampling none are used. Raises ConfigError for a
        `bias`."""
        if bias is not None:
            raise ConfigError(
                "CTranslate2's search takes no hotwords and no language model: leave them out, or give the run or its "
                "export in ONNX."
            )
        rows, width = inputs["input_ids"].shape
        limits = [min(limit, self.most - width) for limit in token_limits(max_new_tokens, rows)]
        states = self.encode(inputs["features"])
        start = int((inputs["input_ids"][0] == self.start_id).int().argmax())
        ids, detect = inputs["input_ids"].clone(), inputs.get("detect")
        if detect is not None and detect.any():
            likeliest = self._language_probabilities(states[detect.numpy()]).argmax(-1)
            ids[detect, start + 1] = torch.tensor(self.languages)[likeliest]
        asked: dict[str, Any] = {"beam_size": beams}
        if temperature > 0:
            asked = {"beam_size": 1, "sampling_topk": 0, "sampling_temperature": max(temperature, COLDEST)}
        if num_answers > 1:
            asked["num_hypotheses"] = num_answers if temperature > 0 else beams
        decode = self._greedy if asked == {"beam_size": 1} else self._search
        outputs = decode(states, ids.tolist(), limits, asked)
        languages = ids[:, start + 1 : start + 2].tolist() if self.languages else [None] * rows
        return [output._replace(language=i) for output, i in zip(outputs, languages, strict=True)]

    def _greedy(
        self, states: np.ndarray, prompts: list[list[int]], limits: list[int], asked: dict[str, Any]
    ) -> list[GenerationOutput]:
        """The likeliest tokens. Only where one that may not be written would be is the search told which may not: then
        the logits that it gives are without them."""
        results = self._decode(states, prompts, limits, **RAW)
        texts = [result.sequences_ids[0][:limit] for result, limit in zip(results, limits)]
        outputs = [
            GenerationOutput(text, _log_probs(result, text), no_speech=self._silence(result))
            for text, result in zip(texts, results)
        ]
        first = self.suppressed_first
        wrong = [i for i, t in enumerate(texts) if not t or t[0] in first or not self.suppressed.isdisjoint(t)]
        if wrong:
            few = self._search(states[wrong], [prompts[i] for i in wrong], [limits[i] for i in wrong], asked)
            for i, output in zip(wrong, few):
                outputs[i] = output
        return outputs

    def _search(
        self, states: np.ndarray, prompts: list[list[int]], limits: list[int], asked: dict[str, Any]
    ) -> list[GenerationOutput]:
        """The answers of CTranslate2's search; their probabilities are read from another run, which is given them."""
        results = self._decode(states, prompts, limits, **asked)
        answers = [[ids[:n] for ids in result.sequences_ids] for result, n in zip(results, limits)]
        rows = [row for row, few in enumerate(answers) for _ in few]
        texts = [text for few in answers for text in few]
        told = [[*prompts[row], *text] for row, text in zip(rows, texts)]
        likely = self._decode(states[rows], told, [len(text) for text in texts], len(prompts[0]), **RAW)
        scored = iter([GenerationOutput(text, _log_probs(r, text)) for text, r in zip(texts, likely)])
        outputs = []
        for result, few in zip(results, answers):
            own = [next(scored)._replace(no_speech=self._silence(result)) for _ in few]
            outputs.append(ranked(own) if len(own) > 1 else own[0])
        return outputs

    def _decode(
        self, states: np.ndarray, prompts: list[list[int]], limits: list[int], width: int = 0, **options: Any
    ) -> Any:
        """Results of CTranslate2 for prompts of `width` tokens (0: as long as they are) and what is known of the text
        behind them. It writes half of `max_length` tokens, and no more than that with the prompt."""
        most = max(1, *limits)
        longest = max(2 * most, (width or len(prompts[0])) - 1 + most)
        silence = self.no_speech_id is not None
        return self.whisper.generate(
            view(states), prompts, max_length=longest, return_no_speech_prob=silence, **options
        )

    def _silence(self, result: Any) -> float | None:
        return None if self.no_speech_id is None else float(result.no_speech_prob)


def _log_probs(result: Any, text: Sequence[int]) -> list[float]:
    """Log-probability of each token of a text that was decoded with its logits."""
    if not text:
        return []
    logits = torch.from_numpy(np.stack([np.asarray(step).reshape(-1) for step in result.logits[0][: len(text)]]))
    return logits.log_softmax(-1).gather(1, torch.tensor(text)[:, None])[:, 0].tolist()


def view(array: np.ndarray) -> Any:
    """An array as CTranslate2 takes it."""
    import ctranslate2

    return ctranslate2.StorageView.from_array(np.ascontiguousarray(array))


def opened(folder: Path, kind: str) -> Any:
    """CTranslate2's model of a folder, of its class `kind`. Raises ConfigError for one that it cannot read."""
    require("ct2", f"{folder} (a CTranslate2 export)")
    import ctranslate2

    path, threads = folder / WEIGHTS, torch.get_num_threads()
    try:
        status = path.stat()
        key = (path.resolve(), status.st_mtime_ns, status.st_size, threads)
        model = _open.get(key)
        if model is None:
            settings = {"compute_type": "default", "inter_threads": WORKERS, "intra_threads": threads}
            model = _open[key] = vars(ctranslate2.models)[kind](str(folder), device="cpu", **settings)
        return model
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read by CTranslate2 ({' '.join(str(error).split())}): copy the whole folder again, or "
            "export the model again."
        ) from error
