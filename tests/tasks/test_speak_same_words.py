"""A text is read by the model in use just as it was in training, nonverbal tags included (the reference implementation
splits tags off in use alone)."""

import pytest
import torch
from tiny_omnivoice import build, codes_of

from stentor.data.batch import Example
from stentor.data.conditions import Spoken, draw
from stentor.data.seeding import rng
from stentor.tasks.speak.task import Speak

TEXTS = ("well [laughter] i never", "[sigh]so[question-ah] it is[laughter]", "plain words")
STYLES = ({}, {"language": "en"}, {"instruct": "female, low pitch"}, {"language": "zh", "instruct": "male"})
PROMPTED = Speak(drop_cond_ratio=0, language_ratio=1, only_instruct_ratio=0, prompt_ratio_range=(0.3, 0.3))


@pytest.fixture(scope="module", params=["characters", "bpe"])
def bundle(request):
    letters = "abcdefghijklmnopqrstuvwxyz [](),-"
    return build(text={"type": request.param}, texts=(*TEXTS, letters))


@pytest.mark.parametrize("style", STYLES, ids=lambda s: "-".join(s) or "no style")
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("clean_from", [None, 4])
def test_a_sample_and_an_utterance_begin_alike(bundle, text, style, clean_from):
    codes, processor = codes_of(0, 20), bundle.processor
    record = Spoken(text, clean_from=clean_from, **style)
    generator = rng("test")
    example = Example(
        "a", text=text, rng=generator, extra={"conditions": draw(record, PROMPTED, generator), "codes": codes}
    )
    batch = processor.collate([example])
    frames = 6 if clean_from is None else 4
    utterance = processor.utterance(
        text, **style, reference=(codes[:, :frames], ""), frames=20 - frames, denoise=clean_from is not None
    )
    (sample,) = batch.inputs["input_ids"]
    length = utterance.ids.shape[1]
    assert sample.shape[1] == length + utterance.frames
    assert torch.equal(sample[:, :length], utterance.ids)
    assert torch.equal(batch.inputs["audio_mask"][0, :length], utterance.audio_mask)


def test_a_references_text_and_the_text_are_read_as_one(bundle):
    processor, codes = bundle.processor, codes_of(0, 5)
    single = processor.utterance("well [laughter] i never", reference=(codes, ""), frames=9)
    parts = processor.utterance("i never", reference=(codes, "well [laughter]"), frames=9)
    assert torch.equal(single.ids, parts.ids)
