from pathlib import Path

import pytest

from corpora_in_miniature import Sound, cuts_of, lay_out, unusable, utterances
from stentor.data.cut import UnusableRecord, audio_path, field_of, language_of, record_from_cut, speaker_of, text_of
from stentor.data.cut import words_of as words
from stentor.data.load_audio import load_audio
from stentor.errors import ConfigError, DataError
from stentor.sources import corpus
from stentor.sources.base import Source

REAL = (Path(__file__).parents[2] / ".." / "shared" / "data" / "librispeech").resolve()
CHAPTER = "LibriSpeech/dev-clean/84/121123"


@pytest.fixture
def librispeech(tmp_path):
    files = {
        f"{CHAPTER}/84-121123-0000.flac": 1.0,
        f"{CHAPTER}/84-121123-0001.mp3": 1.0,
        f"{CHAPTER}/84-121123.trans.txt": "84-121123-0000 GO DO YOU HEAR\n84-121123-0001 BUT\n84-121123-0002 X\n",
        "LibriSpeech/SPEAKERS.TXT": ";ID |SEX| SUBSET |MINUTES| NAME\n84   | F | dev-clean | 8.02 | Christie Nowak\n",
    }
    return lay_out(tmp_path / "data", files)


def test_librispeech_layout_with_any_audio_format(librispeech):
    lay_out(librispeech, {"LibriSpeech/test-clean/1/2/1-2.trans.txt": "1_2_0000 X\n"})
    flac, mp3, gone = cuts_of("librispeech", librispeech, split="dev-clean")
    assert [flac.id, mp3.id, gone.id] == ["84-121123-0000", "84-121123-0001", "84-121123-0002"]
    assert (text_of(flac), speaker_of(flac), language_of(flac)) == ("GO DO YOU HEAR", "84", "en")
    assert field_of(flac, "gender") == "F" and field_of(flac, "chapter") == "121123"
    assert flac.duration == 1.0 and len(load_audio(flac)) == 16000
    assert audio_path(mp3).endswith(".mp3") and len(load_audio(mp3)) == round(mp3.duration * 16000)
    assert gone.reason == "missing"
    ((reason, message),) = unusable("librispeech", librispeech, split="test-clean").values()
    assert reason == "unreadable" and "1-2.trans.txt:1: the id '1_2_0000' does not fit" in message
    # Giving the LibriSpeech folder itself is fine too.
    inner = cuts_of("librispeech", librispeech / "LibriSpeech", split="dev-clean", options={"normalize_text": "lower"})
    assert text_of(inner[0]) == "go do you hear"


def test_librispeech_alignments(librispeech, tmp_path):
    line = '84-121123-0000 ",GO,,DO,YOU,HEAR," "0.1,0.2,0.3,0.4,0.5,0.6,1.0"\n'
    folder = lay_out(tmp_path / "ali", {f"{CHAPTER}/84-121123.alignment.txt": line})
    expected = [("GO", 0.1, 0.2), ("DO", 0.3, 0.4), ("YOU", 0.4, 0.5), ("HEAR", 0.5, 0.6)]
    for case, spelling in (("none", str.upper), ("lower", str.lower)):
        options = {"alignments_dir": str(folder), "normalize_text": case}
        cut, *_ = cuts_of("librispeech", librispeech, options=options)
        there = [(w["word"], w["start"], w["end"]) for w in words(cut)]
        assert there == [(spelling(word), start, end) for word, start, end in expected]


def test_missing_librispeech_level_is_explained(librispeech):
    (librispeech / "LibriSpeech" / "dev-clean").rename(librispeech / "dev-clean")
    (librispeech / "LibriSpeech" / "SPEAKERS.TXT").unlink()
    (librispeech / "LibriSpeech").rmdir()
    with pytest.raises(DataError) as error:
        cuts_of("librispeech", librispeech, split="dev-clean")
    message = str(error.value)
    assert f"Should be:\n  {librispeech}/LibriSpeech/dev-clean/\n" in message
    assert f"NOT:\n  {librispeech}/dev-clean/  (missing LibriSpeech folder)" in message
    assert f"mv {librispeech}/dev-clean {librispeech}/LibriSpeech/" in message


def test_wrong_splits_folders_and_options(librispeech):
    with pytest.raises(DataError, match=r"'dev-other' of the corpus librispeech is not there; it has: dev-clean"):
        cuts_of("librispeech", librispeech, split="dev-other")
    with pytest.raises(DataError, match=r"did you mean .*/data"):
        cuts_of("librispeech", librispeech.parent / "date")
    with pytest.raises(ConfigError, match="normalize_text: upper"):
        cuts_of("librispeech", librispeech, options={"normalize_text": "upper"})
    with pytest.raises(ConfigError, match=r"The recipe for librispeech has no option 'case'; it has: .*normalize_text"):
        cuts_of("librispeech", librispeech, options={"case": "upper"})
    with pytest.raises(ConfigError, match="needs `from`"):
        cuts_of("librispeech", None)


def test_prepared_once_then_read_from_to(librispeech, tmp_path, monkeypatch):
    keys = {"to": str(tmp_path / "prepared"), "split": "dev-clean"}
    first = cuts_of("librispeech", librispeech, **keys)
    monkeypatch.setattr(corpus.Corpus, "_prepare", lambda self: pytest.fail("prepared again"))
    again = cuts_of("librispeech", librispeech, **keys)
    assert [record_from_cut(c) for c in again[:2]] == [record_from_cut(c) for c in first[:2]]
    assert again[2] == first[2]  # the unusable one is still counted
    monkeypatch.setattr(corpus.Corpus, "_prepare", lambda self: iter(()))
    assert cuts_of("librispeech", librispeech, **keys, options={"normalize_text": "lower"}) == []


def test_recipe_with_several_parts(tmp_path):
    lay_out(tmp_path, {"_".join(f"{i:08b}") + ".wav": Sound(0.2, rate=8000) for i in range(60)})
    with pytest.raises(DataError, match="set `split` to one of train, test"):
        cuts_of("yesno", tmp_path)
    cuts = cuts_of("yesno", tmp_path, split="test")
    assert len(cuts) == 30 and text_of(cuts[0]) == "NO NO NO NO NO NO NO YES" and language_of(cuts[0]) == "he"
    with pytest.raises(DataError, match="'dev' of the corpus yesno is not there; it has: train, test"):
        cuts_of("yesno", tmp_path, split="dev")


@pytest.mark.long
def test_recipe_by_language_that_writes_manifests(tmp_path):
    header = ["client_id", "path", "sentence", "age", "gender", "accents", "variant"]
    rows = [header, *([f"spk{i}", f"clip{i}.mp3", f"hej {i}", "", "", "", ""] for i in range(2))]
    table = "".join("\t".join(row) + "\n" for row in rows)
    clips = {f"sv-SE/clips/clip{i}.mp3": 1.0 for i in range(2)}
    folder = lay_out(tmp_path / "cv", {"sv-SE/train.tsv": table, **clips})
    options = {"languages": ["sv-SE"], "splits": ["train"]}
    with pytest.raises(ConfigError, match="say where with `to`"):
        cuts_of("commonvoice", folder, options=options)
    for split in ("sv-SE/train", "train"):
        cuts = cuts_of("commonvoice", folder, options=options, to=str(tmp_path / "prepared"), split=split)
        assert [text_of(c) for c in cuts] == ["hej 0", "hej 1"] and speaker_of(cuts[0]) == "spk0"


def test_an_output_folder_is_given_to_recipes_that_take_one(tmp_path, monkeypatch):
    """Some recipes (FLEURS, VoxPopuli, mTEDx) fail without the folder that they call optional."""
    import lhotse.recipes

    def prepare_yesno(corpus_dir, output_dir=None):
        assert not list((output_dir / "en").glob("*")), "manifests of another run"
        lay_out(output_dir, {"en/yesno_recordings_train.jsonl.gz": ""})
        return {"train": {"recordings": lhotse.RecordingSet.from_dir(tmp_path, "a.wav")}}

    lay_out(tmp_path, {"a.wav": 0.5})
    monkeypatch.setattr(lhotse.recipes, "prepare_yesno", prepare_yesno)
    with pytest.raises(ConfigError, match="The recipe for yesno writes manifests: say where with `to`"):
        cuts_of("yesno", tmp_path)
    for keys in ({}, {"split": "train"}, {"split": "train", "empty": True}):  # each prepares again
        cuts = cuts_of("yesno", tmp_path, to=str(tmp_path / "to"), utterances=False, **keys)
        assert [c.id for c in cuts] == ["a"]


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("librispech", {}, "did you mean librispeech"),
        ("qqqqqq", {}, "known are: .*yesno"),
        ("ljspeech", {"options": {"languages": ["en"]}}, "has no option 'languages'; it has: none"),
        ("callhome_egyptian", {}, "also needs transcript_dir; give"),
        ("switchboard", {"download": True}, "cannot download switchboard"),
        ("ljspeech", {}, r"prepare_ljspeech\(.*\) failed: No such file: .*metadata.csv"),
    ],
)
def test_unknown_corpora_and_options(name, keys, message):
    with pytest.raises((ConfigError, DataError), match=message):
        cuts_of(name, ".", **keys)


def test_every_recipe_can_be_called_with_one_folder_or_says_what_it_needs(tmp_path):
    for name in corpus.names():
        prepare = corpus.recipe("prepare", name)
        try:
            arguments = corpus.Corpus(name=name, to=tmp_path)._arguments(prepare, tmp_path)
        except ConfigError as error:
            assert "also needs" in str(error), name
        else:
            assert tmp_path in arguments.values(), name


def test_download_is_asked_for_what_is_needed(tmp_path, monkeypatch):
    import lhotse.recipes

    asked = {}

    def download_librispeech(target_dir, dataset_parts="mini", force_download=False):
        asked.update(target_dir=target_dir, dataset_parts=dataset_parts)
        chapter = "LibriSpeech/dev-clean/1/2/1-2"
        return lay_out(target_dir, {f"{chapter}-0000.flac": 0.5, f"{chapter}.trans.txt": "1-2-0000 HI\n"})

    monkeypatch.setattr(lhotse.recipes, "download_librispeech", download_librispeech)
    assert utterances("librispeech", None, to=str(tmp_path), split="dev-clean", download=True) == {"1-2-0000": "HI"}
    assert asked == {"target_dir": tmp_path / "download", "dataset_parts": ["dev-clean"]}


def test_config_round_trips_with_its_yaml_keys():
    config = {"type": "corpus", "name": "librispeech", "from": "data", "split": "dev-clean"}
    dumped = Source.model_validate(config).model_dump(mode="json")
    assert dumped["from"] == "data" and "from_" not in dumped
    assert Source.model_validate(dumped).model_dump(mode="json") == dumped


@pytest.mark.skipif(not REAL.exists(), reason="../shared/data/librispeech is not here")
def test_real_librispeech_in_mp3():
    cuts = cuts_of("librispeech", REAL, split="dev-clean", limit=40)
    assert len(cuts) == 40 and not any(isinstance(c, UnusableRecord) for c in cuts)
    assert cuts[0].id == "1272-128104-0000" and text_of(cuts[0]).lower().startswith("mister quilter is the apostle")
    assert len(load_audio(cuts[0])) == round(cuts[0].duration * 16000)
