"""Letters that an alphabet lacks: refused, or written as others and counted, as `accents` says."""

import unicodedata

import pytest
from tiny_families import KINDS, save

from stentor.commands.prepare.check import model_texts
from stentor.data.cut import cut_from_record
from stentor.inference.load import load
from stentor.models.audio_llm.kinds.vibevoice_asr import VibeVoiceAsr
from stentor.models.audio_llm.turns import TurnsProcessor
from stentor.models.contracts import Processor
from stentor.models.text.control_tokens import as_text, template_ids, text_ids
from stentor.models.text.spelling import SPECIALS, from_transcripts, from_vocabulary, spelling, written
from stentor.models.text.tokenizers import bpe, characters
from stentor.text.letters import changed_letters, same_letter

CAPITALS = from_vocabulary({c: i for i, c in enumerate([*SPECIALS, *"ABCDEFGHIJKLMNOPQRSTUVWXYZ'"])})


def said(text, accents, tokenizer=CAPITALS):
    letters = spelling(tokenizer, accents)
    classes, missing = letters.encode(text)
    return letters.decode(classes), missing


@pytest.mark.parametrize(
    ("text", "stripped", "refused"),
    [
        ("sjön Ångström", "SJON ANGSTROM", "öÅö"),
        ("cafe\u0301", "CAFE", "é"),
        ("việt x\u0302y", "VIET XY", "ệ\u0302"),
        ("straße", "STRASSE", "ß"),
        ("ısı İz", "ISI IZ", "ııİ"),
        ("it's a-b.", "IT'S A B", ""),
    ],
)
def test_accents_are_stripped_or_refused(text, stripped, refused):
    assert said(text, "strip") == said(text, None) == (stripped, "")
    assert said(text, "keep")[1] == refused


@pytest.mark.parametrize("text", ["łódź", "æra", "øl", "किताब", "がぎ", "йод", "άλφα"])
def test_what_is_no_accent_is_refused_in_both(text):
    assert said(text, "strip")[1] and said(text, "keep")[1]


def test_kana_and_greek_keep_what_makes_the_letter():
    assert said("が", "strip", from_transcripts(["かき"]))[1] == "が"
    assert said("Άσας ά", "keep", from_transcripts(["ά α σ"])) == ("άσασ ά", "")
    assert said("άé", "strip", from_transcripts(["άé"], "strip")) == ("αe", "")
    assert all(same_letter(*pair) for pair in ("aA", "ςΣ", ("é", "E\u0301")))
    assert not any(same_letter(*pair) for pair in (("ß", "SS"), "ıI", "öo", ("ł", "")))


def test_changed_letters_are_counted_by_text():
    spelled = spelling(CAPITALS)
    changed = changed_letters(["ö ö", "så ö", "no", "5 %"], lambda letter: written(spelled, letter))
    assert (changed.records, changed.of) == (3, 4)
    assert changed.letters == {"ö": "O", "å": "A", "5": "", "%": ""}
    assert str(changed).startswith("3 of 4 texts: ö -> O, ")
    assert changed_letters(["No"], lambda letter: written(spelled, letter)) is None
    decomposed = unicodedata.normalize("NFD", "ö")
    assert changed_letters([decomposed], lambda letter: written(spelled, letter)).letters == {decomposed: "O"}


@pytest.mark.parametrize("make", [lambda: characters(["<s>abc pad</s>"]), lambda: bpe(["a <pad> b"] * 4, 300)])
def test_tokens_of_ordinary_texts_are_those_of_transformers(make, tmp_path):
    tokenizer = make()
    for text in ("abc", " a  b", "", "pad"):
        assert text_ids(tokenizer, text) == template_ids(tokenizer, text)
        assert text_ids(tokenizer, text) == tokenizer(text, add_special_tokens=False)["input_ids"]
    ids = text_ids(tokenizer, "a<pad></s>")
    assert tokenizer.decode(ids) == "a<pad></s>" and not set(ids) & set(tokenizer.all_special_ids)
    prompt = template_ids(tokenizer, f"<s>{as_text(tokenizer, 'a<pad>')}</s>")
    assert prompt == [tokenizer.bos_token_id, *text_ids(tokenizer, "a<pad>"), tokenizer.eos_token_id]
    hidden = as_text(tokenizer, "\ufdd0<\ufdd1pad>")  # the marks of this module in a text mark nothing
    assert template_ids(tokenizer, hidden) == text_ids(tokenizer, "<pad>")


def test_pieces_of_a_unigram_model_are_no_control_tokens_of_a_text(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = [("<pad>", 0.0), ("<unk>", 0.0), ("<x>", 0.0), *((c, -2.0) for c in "▁<>padxab")]
    inner = Tokenizer(models.Unigram(pieces, unk_id=1))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>")
    assert tokenizer.convert_ids_to_tokens(text_ids(tokenizer, "a<pad> <x>")) == list("▁a<pad>▁<x>")


@pytest.mark.parametrize("name", ["whisper", "ctc_wav2vec2", "ctc_parakeet", "parakeet_tdt", "qwen3_asr", "transducer"])
def test_the_check_reads_models_without_their_weights(name, tmp_path):
    (tmp_path / "o").mkdir()
    folder = save(KINDS[name].build(tmp_path / "o"), tmp_path / "export")
    bare = load(folder, weights=False)
    assert any(p.is_meta for p in bare.bundle.model.parameters())
    model = model_texts(str(folder))
    record = {"id": "a", "audio_path": "a.wav", "duration": 2.0, "text": "one two " * 200, "language": "tlh"}
    dropped = model.drop_reason(cut_from_record(record, tmp_path, "m.jsonl:1"))
    assert (dropped is None) == (name in ("parakeet_tdt", "transducer"))  # any text fits a transducer
    assert model.processor.written("o").lower() == "o"


def test_answers_with_turns_say_what_of_a_letter_is_written():
    for kind in (TurnsProcessor, VibeVoiceAsr):
        assert kind.written is Processor.written, "a quotation mark would be taken for a broken answer"
