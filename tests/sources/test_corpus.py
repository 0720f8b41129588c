from pathlib import Path

import numpy as np
import pytest
import soundfile

from stentor.data.cut import UnusableRecord, audio_path, field_of, language_of, record_from_cut, speaker_of, text_of
from stentor.data.cut import words_of as words
from stentor.data.load_audio import load_audio
from stentor.errors import ConfigError, DataError
from stentor.sources import corpus
from stentor.sources.base import Source

REAL = (Path(__file__).parents[2] / ".." / "shared" / "data" / "librispeech").resolve()


def source(name, **options):
    return Source.model_validate({"type": "corpus", "name": name, **options})


def wav(path, seconds=0.5, rate=16000):
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = 0.1 * np.sin(np.arange(round(seconds * rate)) / 20)
    soundfile.write(path, samples, rate)


@pytest.fixture
def librispeech(tmp_path):
    chapter = tmp_path / "data" / "LibriSpeech" / "dev-clean" / "84" / "121123"
    for name in ("84-121123-0000.flac", "84-121123-0001.mp3"):
        wav(chapter / name, 1.0)
    (chapter / "84-121123.trans.txt").write_text(
        "84-121123-0000 GO DO YOU HEAR\n84-121123-0001 BUT\n84-121123-0002 X\n"
    )
    (tmp_path / "data" / "LibriSpeech" / "SPEAKERS.TXT").write_text(
        ";ID |SEX| SUBSET |MINUTES| NAME\n84   | F | dev-clean | 8.02 | Christie Nowak\n"
    )
    return tmp_path / "data"


def test_librispeech_layout_with_any_audio_format(librispeech):
    flac, mp3, gone = source("librispeech", **{"from": str(librispeech)}).cuts()
    assert [flac.id, mp3.id, gone.id] == ["84-121123-0000", "84-121123-0001", "84-121123-0002"]
    assert (text_of(flac), speaker_of(flac), language_of(flac)) == ("GO DO YOU HEAR", "84", "en")
    assert field_of(flac, "gender") == "F" and field_of(flac, "chapter") == "121123"
    assert flac.duration == 1.0 and len(load_audio(flac)) == 16000
    assert audio_path(mp3).endswith(".mp3") and len(load_audio(mp3)) == round(mp3.duration * 16000)
    assert isinstance(gone, UnusableRecord) and gone.reason == "missing"
    # Giving the LibriSpeech folder itself is fine too.
    inner = source("librispeech", **{"from": str(librispeech / "LibriSpeech")}, options={"normalize_text": "lower"})
    assert text_of(next(inner.cuts())) == "go do you hear"


def test_librispeech_alignments(librispeech, tmp_path):
    file = tmp_path / "ali" / "LibriSpeech" / "dev-clean" / "84" / "121123" / "84-121123.alignment.txt"
    file.parent.mkdir(parents=True)
    file.write_text('84-121123-0000 ",GO,,DO,YOU,HEAR," "0.1,0.2,0.3,0.4,0.5,0.6,1.0"\n')
    cut = next(
        source("librispeech", **{"from": str(librispeech)}, options={"alignments_dir": str(tmp_path / "ali")}).cuts()
    )
    assert [(w["word"], w["start"], w["end"]) for w in words(cut)] == [
        ("GO", 0.1, 0.2),
        ("DO", 0.3, 0.4),
        ("YOU", 0.4, 0.5),
        ("HEAR", 0.5, 0.6),
    ]


def test_missing_librispeech_level_is_explained(librispeech):
    (librispeech / "LibriSpeech" / "dev-clean").rename(librispeech / "dev-clean")
    (librispeech / "LibriSpeech" / "SPEAKERS.TXT").unlink()
    (librispeech / "LibriSpeech").rmdir()
    with pytest.raises(DataError) as error:
        list(source("librispeech", **{"from": str(librispeech)}, split="dev-clean").cuts())
    message = str(error.value)
    assert f"Should be:\n  {librispeech}/LibriSpeech/dev-clean/\n" in message
    assert f"NOT:\n  {librispeech}/dev-clean/  (missing LibriSpeech folder)" in message
    assert f"mv {librispeech}/dev-clean {librispeech}/LibriSpeech/" in message


def test_wrong_splits_folders_and_options(librispeech):
    with pytest.raises(DataError, match=r"'dev-other' of the corpus librispeech is not there; it has: dev-clean"):
        list(source("librispeech", **{"from": str(librispeech)}, split="dev-other").cuts())
    with pytest.raises(DataError, match=r"did you mean .*/data"):
        list(source("librispeech", **{"from": str(librispeech.parent / "date")}).cuts())
    with pytest.raises(ConfigError, match="normalize_text: upper"):
        list(source("librispeech", **{"from": str(librispeech)}, options={"normalize_text": "upper"}).cuts())
    with pytest.raises(ConfigError, match="needs `from`"):
        list(source("librispeech").cuts())


def test_prepared_once_then_read_from_to(librispeech, tmp_path, monkeypatch):
    config = {"from": str(librispeech), "to": str(tmp_path / "prepared"), "split": "dev-clean"}
    first = list(source("librispeech", **config).cuts())
    monkeypatch.setattr(corpus.Corpus, "_prepare", lambda self: pytest.fail("prepared again"))
    again = list(source("librispeech", **config).cuts())
    assert [record_from_cut(c) for c in again[:2]] == [record_from_cut(c) for c in first[:2]]
    assert again[2] == first[2]  # the unusable one is still counted
    monkeypatch.setattr(corpus.Corpus, "_prepare", lambda self: iter(()))
    assert list(source("librispeech", **config, options={"normalize_text": "lower"}).cuts()) == []


def test_recipe_with_one_part(tmp_path):
    rows = [("LJ001-0001", "Printing, in 1440", "Printing, in fourteen forty"), ("LJ001-0002", "in being", "in being")]
    for name, _, _ in rows:
        wav(tmp_path / "lj" / "wavs" / f"{name}.wav", rate=22050)
    (tmp_path / "lj" / "metadata.csv").write_text("".join("|".join(row) + "\n" for row in rows))
    one, _ = source("ljspeech", **{"from": str(tmp_path / "lj")}).cuts()
    assert (one.id, text_of(one), language_of(one)) == ("LJ001-0001", "Printing, in 1440", "en")
    assert field_of(one, "normalized_text") == "Printing, in fourteen forty" and field_of(one, "gender") == "female"
    assert len(load_audio(one, 22050)) == 11025


def test_recipe_with_several_parts(tmp_path):
    for i in range(60):
        wav(tmp_path / "waves" / ("_".join(f"{i:08b}") + ".wav"), 0.2, 8000)
    with pytest.raises(DataError, match="set `split` to one of train, test"):
        list(source("yesno", **{"from": str(tmp_path / "waves")}).cuts())
    cuts = list(source("yesno", **{"from": str(tmp_path / "waves")}, split="test").cuts())
    assert len(cuts) == 30 and text_of(cuts[0]) == "NO NO NO NO NO NO NO YES" and language_of(cuts[0]) == "he"
    with pytest.raises(DataError, match="'dev' of the corpus yesno is not there; it has: train, test"):
        list(source("yesno", **{"from": str(tmp_path / "waves")}, split="dev").cuts())


@pytest.mark.long
def test_recipe_by_language_that_writes_manifests(tmp_path):
    clips = tmp_path / "cv" / "sv-SE" / "clips"
    for i in range(2):
        wav(clips / f"clip{i}.mp3", 1.0)
    header = ["client_id", "path", "sentence", "age", "gender", "accents", "variant"]
    lines = [[f"spk{i}", f"clip{i}.mp3", f"hej {i}", "", "", "", ""] for i in range(2)]
    (tmp_path / "cv" / "sv-SE" / "train.tsv").write_text("\n".join("\t".join(r) for r in [header, *lines]) + "\n")
    config = {"from": str(tmp_path / "cv"), "options": {"languages": ["sv-SE"], "splits": ["train"]}}
    with pytest.raises(ConfigError, match="say where with `to`"):
        list(source("commonvoice", **config).cuts())
    config["to"] = str(tmp_path / "prepared")
    cuts = list(source("commonvoice", **config, split="sv-SE/train").cuts())
    assert [text_of(c) for c in cuts] == ["hej 0", "hej 1"] and speaker_of(cuts[0]) == "spk0"
    assert [c.id for c in source("commonvoice", **config, split="train").cuts()] == [c.id for c in cuts]


def test_an_output_folder_is_given_to_recipes_that_take_one(tmp_path, monkeypatch):
    """Some recipes (FLEURS, VoxPopuli, mTEDx) fail without the folder that they call optional."""
    import lhotse.recipes

    def prepare_yesno(corpus_dir, output_dir=None):
        assert not list((output_dir / "en").glob("*")), "manifests of another run"
        (output_dir / "en").mkdir(exist_ok=True)
        (output_dir / "en" / "yesno_recordings_train.jsonl.gz").touch()
        wav(tmp_path / "a.wav")
        return {"train": {"recordings": lhotse.RecordingSet.from_dir(tmp_path, "a.wav")}}

    monkeypatch.setattr(lhotse.recipes, "prepare_yesno", prepare_yesno)
    with pytest.raises(ConfigError, match="The recipe for yesno writes manifests: say where with `to`"):
        list(source("yesno", **{"from": str(tmp_path)}).cuts())
    for options in ({}, {"split": "train"}, {"split": "train", "empty": True}):  # each prepares again
        config = {"from": str(tmp_path), "to": str(tmp_path / "to"), "utterances": False, **options}
        assert [c.id for c in source("yesno", **config).cuts()] == ["a"]


def test_unknown_corpora_and_options():
    with pytest.raises(ConfigError, match="did you mean librispeech"):
        list(source("librispech", **{"from": "."}).cuts())
    with pytest.raises(ConfigError, match=r"known are: .*yesno"):
        list(source("qqqqqq", **{"from": "."}).cuts())
    with pytest.raises(ConfigError, match="has no option 'languages'; it has: none"):
        list(source("ljspeech", **{"from": "."}, options={"languages": ["en"]}).cuts())
    with pytest.raises(ConfigError, match="also needs transcript_dir; give"):
        list(source("callhome_egyptian", **{"from": "."}).cuts())
    with pytest.raises(ConfigError, match="cannot download switchboard"):
        list(source("switchboard", **{"from": "."}, download=True).cuts())
    with pytest.raises(DataError, match=r"prepare_ljspeech\(.*\) failed: No such file: .*metadata.csv"):
        list(source("ljspeech", **{"from": "."}).cuts())


def test_every_recipe_can_be_called_with_one_folder_or_says_what_it_needs(tmp_path):
    for name in corpus.names():
        prepare = corpus.recipe("prepare", name)
        try:
            arguments = source(name, **{"from": "."}, to=str(tmp_path))._arguments(prepare, tmp_path)
        except ConfigError as error:
            assert "also needs" in str(error), name
        else:
            assert tmp_path in arguments.values(), name


def test_download_is_asked_for_what_is_needed(tmp_path, monkeypatch):
    import lhotse.recipes

    asked = {}

    def download_librispeech(target_dir, dataset_parts="mini", force_download=False):
        asked.update(target_dir=target_dir, dataset_parts=dataset_parts)
        wav(Path(target_dir) / "LibriSpeech" / "dev-clean" / "1" / "2" / "1-2-0000.flac")
        (Path(target_dir) / "LibriSpeech" / "dev-clean" / "1" / "2" / "1-2.trans.txt").write_text("1-2-0000 HI\n")
        return Path(target_dir) / "LibriSpeech"

    monkeypatch.setattr(lhotse.recipes, "download_librispeech", download_librispeech)
    (cut,) = source("librispeech", to=str(tmp_path), split="dev-clean", download=True).cuts()
    assert asked == {"target_dir": tmp_path / "download", "dataset_parts": ["dev-clean"]} and text_of(cut) == "HI"


def test_config_round_trips_with_its_yaml_keys():
    dumped = source("librispeech", **{"from": "data", "split": "dev-clean"}).model_dump(mode="json")
    assert dumped["from"] == "data" and "from_" not in dumped
    assert Source.model_validate(dumped).model_dump(mode="json") == dumped


@pytest.mark.skipif(not REAL.exists(), reason="../shared/data/librispeech is not here")
def test_real_librispeech_in_mp3():
    cuts = list(source("librispeech", **{"from": str(REAL)}, split="dev-clean", limit=40).cuts())
    assert len(cuts) == 40 and not any(isinstance(c, UnusableRecord) for c in cuts)
    assert cuts[0].id == "1272-128104-0000" and text_of(cuts[0]).lower().startswith("mister quilter is the apostle")
    assert len(load_audio(cuts[0])) == round(cuts[0].duration * 16000)
