"""Texts that a model reads as phonemes."""

import pytest
from pydantic import ValidationError
from tiny_omnivoice import TEXTS, build

from stentor.audio.synth import phonemes
from stentor.inference.speak.utterance import spelled
from stentor.models.base import Family, TaskRequirements
from stentor.models.omnivoice.config import OmniVoice


def test_phonemes_of_a_text():
    """Checked against `espeak-ng -q --ipa -v en-us`; numbers are read, clauses are kept apart."""
    assert phonemes("the garden gate") == "ðə ɡˈɑːɹdən ɡˈeɪt"
    assert phonemes("garden, 2 gates") == "ɡˈɑːɹdən, tˈuː ɡˈeɪts"
    assert phonemes("night\x01 `") == phonemes("knight") != phonemes("night", "de")
    assert phonemes("-") == phonemes("") == ""


def test_a_model_reads_phonemes_and_so_does_its_export(tmp_path):
    bundle = build(text={"type": "characters", "phonemes": "en-us"})
    processor = bundle.processor
    assert processor.text_ids("8") == processor.text_ids("eight") != processor.text_ids("five")
    assert spelled("Don't say: 4!", bundle) == ("Don't say: 4!", "")
    bundle.family.save(bundle, bundle.model.state_dict(), tmp_path)
    exported = OmniVoice.load(tmp_path).processor
    assert exported.phonemes == "en-us" and exported.text_ids(TEXTS[3]) == processor.text_ids(TEXTS[3])
    further = Family.model_validate({"type": "omnivoice", "from": str(tmp_path)})
    assert further.build(TaskRequirements("speak", ("codes",))).processor.phonemes == "en-us"


def test_an_unknown_voice_of_phonemes_is_refused():
    with pytest.raises(ValidationError, match="Unknown voice 'english'"):
        build(text={"type": "characters", "phonemes": "english"})
