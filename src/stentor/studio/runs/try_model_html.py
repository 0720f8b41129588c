"""Answers of tried models (try_model.py) as HTML: side by side, with what differs, and drawn. All texts are escaped."""

from collections.abc import Sequence
from html import escape

import numpy as np

from stentor.errors import without_secrets
from stentor.metrics.format import figure
from stentor.report import drawings
from stentor.studio.runs.try_model import ModelAnswer, RunTrial, TrialClip, model_name
from stentor.studio.texts import say


def about(tried: RunTrial) -> str:
    """What a run's model is compared with."""
    if tried.original:
        sentence = say("try_compared", original=model_name(tried.original))
    elif tried.parts:
        sentence = say("try_parts", parts=", ".join(model_name(part) for part in tried.parts))
    else:
        sentence = say("try_scratch")
    return f'<p class="stentor-try-about">{escape(sentence)}</p>'


def listened(tried: RunTrial, clip: TrialClip, answers: Sequence[ModelAnswer]) -> str:
    """What is there so far of the answers about a clip."""
    sides = [_side(tried, clip, answers, tuned) for tuned in ((False, True) if tried.original else (True,))]
    parts = [f'<div class="sides">{"".join(sides)}</div>']
    fine = {a.tuned: a for a in answers if not a.wrong}
    if clip.text and any(a.total for a in answers):
        parts.append(_legend("try_above_reference"))
    elif len(fine) == 2 and tried.task != "diarize":
        parts.append(_changed(fine[False], fine[True]))
    for answer in (fine.get(True), fine.get(False)):
        if answer is not None and answer.words:
            head = say("try_times") + (f" ({_who(answer)})" if tried.original else "")
            parts.append(f"<h4>{escape(head)}</h4>{drawings.words(answer.words, clip.samples, clip.rate)}")
    return f'<div class="stentor-try">{"".join(parts)}</div>'


def spoken(tried: RunTrial, answers: Sequence[ModelAnswer]) -> str:
    """What is there so far of a text that is spoken."""
    sides = [_side(tried, None, answers, tuned) for tuned in ((False, True) if tried.original else (True,))]
    return f'<div class="stentor-try"><div class="sides">{"".join(sides)}</div></div>'


def _side(trial: RunTrial, clip: TrialClip | None, answers: Sequence[ModelAnswer], tuned: bool) -> str:
    """One model's column."""
    answer = next((a for a in answers if a.tuned == tuned), None)
    name = trial.name if tuned else model_name(trial.original or "")
    notes: list[str] = []
    if answer is None:
        first = not answers and (not tuned or trial.original is None)
        body = f'<p class="waiting">{escape(say("try_working" if first else "try_next"))}</p>'
    elif answer.wrong:
        body = f'<p class="wrong">{escape(without_secrets(answer.wrong))}</p>'
    else:
        body = drawings.sound(answer.sound, answer.rate) if clip is None else _answer_html(trial, clip, answer)
        if answer.total:
            rate = figure("wer", answer.errors / answer.total)
            notes.append(say("try_errors", errors=answer.errors, total=answer.total, rate=rate))
        if answer.sound is not None:
            notes += _level(answer.sound, answer.rate)
        notes.append(say("try_took", seconds=answer.took))
    figures = "".join(f"<span>{escape(fact)}</span>" for fact in notes)
    kind = "tuned" if tuned else "original"
    return (
        f'<section class="side {kind}"><header><b>{escape(say(f"try_{kind}"))}</b><span>{escape(name)}</span></header>'
        f"{body}<footer>{figures}</footer></section>"
    )


def _answer_html(tried: RunTrial, clip: TrialClip, answer: ModelAnswer) -> str:
    if answer.segments is not None:
        if clip.segments:
            return drawings.judged_speakers(clip.segments, answer.segments, clip.samples, clip.rate)
        return drawings.speakers(answer.segments, clip.samples, clip.rate)
    if answer.total:
        names = (say("try_reference"), _who(answer))
        return drawings.differences(clip.text, answer.text, names, tried.normalizer, clip.language)
    return f'<p class="said" dir="auto">{escape(answer.text) or escape(say("try_nothing"))}</p>'


def _changed(before: ModelAnswer, after: ModelAnswer) -> str:
    head = f"<h4>{escape(say('try_changed'))}</h4>"
    if before.text.split() == after.text.split():
        return f"{head}<p>{escape(say('try_same'))}</p>"
    return head + drawings.differences(before.text, after.text, (_who(before), _who(after))) + _legend("try_above")


def _legend(above: str) -> str:
    kinds = "".join(
        f'<span class="pair {kind}"><span class="out">{escape(say(f"try_{kind}"))}</span></span>'
        for kind in ("substitute", "insert", "delete")
    )
    return f'<div class="stentor-drawn legend"><span>{escape(say(above))}</span>{kinds}</div>'


def _level(sound: np.ndarray, rate: int) -> list[str]:
    power = float(np.mean(np.square(sound, dtype=np.float64))) if len(sound) else 0.0
    return [say("try_seconds", seconds=len(sound) / rate), say("try_level", level=10 * np.log10(max(power, 1e-12)))]


def _who(answer: ModelAnswer) -> str:
    return say("try_tuned" if answer.tuned else "try_original")
