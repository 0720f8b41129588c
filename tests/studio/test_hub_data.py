"""What a person types of the Hub, read from repositories of its stand-in that are laid out like the real ones."""

import io

import numpy as np
import pytest
import soundfile

from hub_store import Blob, Repo
from stentor.config.yaml_writer import dump
from stentor.errors import ConfigError
from stentor.sources.base import Source
from stentor.sources.hub_choice import HubChoice, hub_data, languages_of
from stentor.sources.hub_repository import _asked
from stentor.studio.runs import settings

datasets = pytest.importorskip("datasets")
FLEURS = "id num_samples path audio transcription raw_transcription gender lang_id language lang_group_id"
YODAS = "utt_id audio duration lang task text translation_en original_audio_id original_audio_offset"
VOICE = "client_id path audio sentence up_votes down_votes age gender accent locale segment variant"
VALUES = {"duration": 0.5, "language": "German", "lang": "de", "locale": "fr", "id": 7, "gender": 0, "up_votes": 2}


def parquet(columns):
    """A file of six rows with these columns, half a second of audio in each."""
    rows = [{column: VALUES.get(column, f"{column} {i}") for column in columns.split()} for i in range(6)]
    for i, row in enumerate(rows):
        sound = io.BytesIO()
        soundfile.write(sound, np.sin(np.arange(8000) * (i + 1) / 40) / 2, 16000, format="FLAC")
        row["audio"] = {"bytes": sound.getvalue(), "path": f"{i}.flac"}
    file = io.BytesIO()
    datasets.Dataset.from_list(rows).cast_column("audio", datasets.Audio()).to_parquet(file)
    return file.getvalue()


def config(name, **splits):
    """A configuration in a card: the file of each split."""
    files = "".join(f"  - split: {split}\n    path: {path}\n" for split, path in splits.items())
    return f"- config_name: {name}\n  data_files:\n{files}"


def publish(hub, name, files, branch="main"):
    repo = hub.repos.setdefault(f"datasets/{name}", Repo(name, "dataset", name.partition("/")[0]))
    tree = {path: Blob(content if isinstance(content, bytes) else content.encode()) for path, content in files.items()}
    repo.commit(branch, "data", "", "someone", tree)


@pytest.fixture
def laid_out(hub):
    """FLEURS, YODAS-Granary and Common Voice in German, as they lie on the Hub."""
    publish(hub, "google/fleurs", {"fleurs.py": "raise SystemExit", "README.md": "---\n{}\n---\n"})
    parts = {f"de_de/{split}/0000.parquet": parquet(FLEURS) for split in ("train", "validation", "test")}
    publish(hub, "google/fleurs", parts, "refs/convert/parquet")
    card = "configs:\n" + config("German", asr_only="data/de000/asr_only/*", ast="data/de000/ast/*")
    card += config("French", asr_only="data/fr000/asr_only/*")
    files = {"README.md": f"---\n{card}---\n", "data/de000/asr_only/00000000.parquet": parquet(YODAS)}
    files |= {"data/fr000/asr_only/00000000.parquet": parquet(YODAS)}
    publish(hub, "espnet/yodas-granary", {**files, "data/de000/ast/00000000.parquet": parquet(YODAS)})
    splits = {split: f"fr/{split}-*" for split in ("train", "validation", "test", "other", "invalidated")}
    files = {path.replace("*", "00000-of-00001.parquet"): parquet(VOICE) for path in splits.values()}
    files["README.md"] = f"---\nconfigs:\n{config('fr', **splits)}{config('sv-SE', train='sv-SE/train-*')}---\n"
    publish(hub, "fixie-ai/common_voice_17_0", files)
    card = "configs:\n" + config("de-DE", train="x/*") + config("fr-FR", train="x/*")
    publish(hub, "someone/many", {"README.md": f"---\n{card}---\n"})
    publish(hub, "someone/program", {"program.py": ""})
    publish(hub, "someone/copied", {"copied.py": ""})
    files = {f"default/{split}/0000.parquet": b"" for split in ("partial-train", "validation")}
    publish(hub, "someone/copied", files, "refs/convert/parquet")
    publish(hub, "someone/closed", {"README.md": ""})
    hub.repos["datasets/someone/closed"].gated = True
    _asked.cache_clear()
    return hub


def test_a_run_on_what_was_typed(laid_out, cli, tmp_path):
    """The studio's own run file on each of the three, trained for a step: three of six recordings are in the limit."""
    texts = ("google/fleurs de_de", "espnet/yodas-granary German", "mozilla-foundation/common_voice_17_0 fr")
    data = [hub_data(HubChoice(text, hours=1.5 / 3600)) for text in texts]
    run = settings.start("transcribe", settings.known()["small_transducer"], "full", data[0])
    run["data"] |= {"train": [d.train for d in data], "eval": {f"set{i}": d.held_out for i, d in enumerate(data)}}
    (tmp_path / "run.yaml").write_text(dump(run))
    options = (f"output={tmp_path}", "train.steps=1", "train.device=cpu", "callbacks=[]")
    said = cli("train", tmp_path / "run.yaml", "name=run", *options, **laid_out.fresh).stdout
    assert said.count("were read from the beginning (`first_hours`)") == 6 and "Training on 8 records" in said
    assert [f"set{i}: wer" in said for i in range(3)] == [True] * 3
    again = cli("train", tmp_path / "run.yaml", "name=again", *options, **{**laid_out.fresh, "HF_HUB_OFFLINE": "1"})
    assert "Training on 8 records" in again.stdout  # from the cache


@pytest.mark.parametrize(
    ("text", "train", "held_out"),
    [
        ("fleurs german", "fleurs de", "validation"),
        ("  google / fleurs   de_de ", "fleurs de", "validation"),
        ("https://huggingface.co/datasets/google/fleurs/viewer/de_de/train?row=3", "fleurs de", "validation"),
        ("load_dataset('google/fleurs', 'cmn_hans_cn')", "fleurs zh", "validation"),
        ("Common Voice Svenska", "common_voice sv", "validation"),
        ("fsicoli/common_voice_21_0 zh-TW test", "common_voice zh-tw test", "validation"),
        ("nvidia/Granary de_ytc", "granary yodas de", None),
        ("openslr/librispeech_asr other", "librispeech other en", "validation"),
        ("mls Castellano", "mls european es", "dev"),
        ("facebook/multilingual_librispeech en", "mls english en", "dev"),
        ("datasets/x/y", "x/y", None),
    ],
)
def test_what_is_typed(text, train, held_out, monkeypatch):
    monkeypatch.setattr("stentor.sources.hub_choice.hub_repository", lambda name: None)
    data = hub_data(HubChoice(text))
    assert (data.name, data.held_out.get("split"), data.train["first_hours"]) == (train, held_out, 10)
    assert (data.train.get("part") == "train") is (held_out is None)
    Source.model_validate(data.train)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("fleurs", "FLEURS needs a language: choose it"),
        ("google/fleurs germn", r"no language 'germn'. Did you mean German \(Deutsch\), de\? It has: de, af,"),
        ("granary Maltese", "Granary has only transcripts in this language"),
        ("huggingface.co/openai/whisper-tiny", "leads to no data set"),
        ("./recordings", "is no data set of the Hub: choose"),
        ("googel/fleurs de", "no data set googel/fleurs on the Hub.* Did you mean google/fleurs?"),
        ("someone/closed", "is gated: accept its conditions on https://huggingface.co/datasets/someone/closed"),
        ("someone/program", "is a program, which is never run: look for"),
        ("someone/many", "has several configurations: write one of these after its name: de-DE, fr-FR"),
        ("someone/many Finnish", "has no configuration 'Finnish'"),
        ("someone/many de other", "has no configuration 'de other'"),
    ],
)
def test_what_does_not_fit(laid_out, text, problem):
    with pytest.raises(ConfigError, match=problem):
        hub_data(HubChoice(text))


def test_other_repositories(laid_out):
    many = hub_data(HubChoice("someone/many Deutsch"))
    assert (many.train["config"], many.train["part"], many.held_out["part"]) == ("de-DE", "train", "validation")
    copied = hub_data(HubChoice("someone/copied", hours=None))
    assert copied.train == {
        "type": "hub",
        "name": "someone/copied",
        "revision": "refs/convert/parquet",
        "data_files": "default/*train/*.parquet",
    }
    assert copied.held_out["data_files"] == "default/*validation/*.parquet" and "never run" in copied.notes[0]


def test_the_page_asks_for_what_the_text_does_not_say():
    from stentor.studio.steps.hub_field import hub_chosen, hub_shown

    data, (options, language, split, told) = hub_shown(hub_chosen("fleurs", None, None, 10.0))
    assert data is None and "needs a language" in told and options.visible and language.visible and split.visible
    assert ("German (Deutsch)", "de") in language.choices and split.choices[0][1] == "train"
    data, (_, language, _, told) = hub_shown(hub_chosen("google/fleurs Deutsch", "fr", "test", 2.0))
    assert data.name == "fleurs de test" and "first 2 hours of fleurs de test" in told and not language.visible
    assert hub_chosen(" ", "fr", None, None) is None and not hub_shown(None)[1][0].visible
    labels = [text for text, _ in languages_of("common_voice")]
    assert len(set(labels)) == len(labels) == 124
