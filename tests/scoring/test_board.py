"""Boards of the Open ASR Leaderboard on a local copy of stand-in data sets, and the files that its scripts read."""

import json
import re

import pytest
import yaml

from stentor.cli import main
from stentor.commands.evaluate.board import of_whole_sessions
from stentor.data.batch import Prediction
from stentor.data.cut import language_of, text_of
from stentor.dataloading.mixing import DropCounter
from stentor.sources.base import Source
from stentor.sources.hub_presets import PRESETS
from stentor.sources.open_asr import boards
from stentor.text.normalize import normalize

datasets = pytest.importorskip("datasets")
kaldialign = pytest.importorskip("kaldialign")


SETS = {
    "hf-audio/open-asr-leaderboard": {
        ("ami_cleaned", "test"): ["one two", "Mr. Brown's colour"],
        ("librispeech", "test.clean"): ["one two three"],
        ("gigaspeech_cleaned", "test"): ["uh, um.", "four", "ignore time segment in scoring"],
    },
    "hf-audio/open-asr-leaderboard-multilingual-datasets": {("fleurs_de", "test"): ["Zehn Häuser, 21 Türen.", "eins"]},
    "hf-audio/asr-leaderboard-longform": {("earnings21", "test"): ["one two three", "four five"]},
    "bezzam/coraal": {("ATL", "test"): ["one"], ("VLD", "test"): ["two three"]},
    "ArtificialAnalysis/Earnings22-Cleaned-AA": {("default", "test"): ["One, two three.", "Go down, stay here."]},
}
"""Texts of the data sets of the boards that the tests use, by configuration and split."""


@pytest.fixture(scope="module")
def copies(tmp_path_factory, corpus):
    """A folder OWNER/NAME for each data set, in the Hub's layout: parquet files, and the names of its configurations in
    the README."""
    folder = tmp_path_factory.mktemp("copies")
    clips = [(corpus / f"dev{i}.wav").read_bytes() for i in range(4)]
    for name, splits in SETS.items():
        configs, ids = [], "ab" if name.endswith("AA") else [f"clip {i}" for i in range(4)]
        for (config, split), texts in splits.items():
            audio = [{"bytes": clips[i], "path": f"{i}.wav"} for i in range(len(texts))]
            rows = [
                {"audio": a, "text": t, "id": ids[i], "file_name": f"a/{i}.wav"}
                for i, (a, t) in enumerate(zip(audio, texts, strict=True))
            ]
            path = folder / name / config / f"{split}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            datasets.Dataset.from_list(rows).cast_column("audio", datasets.Audio()).to_parquet(path)
            files = [{"split": split, "path": f"{config}/{split}.parquet"}]
            configs.append({"config_name": config, "data_files": files})
        (folder / name / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': configs})}---\n")
    chunked = folder / "ArtificialAnalysis/Earnings22-Cleaned-AA-chunked"
    (chunked / "audio").mkdir(parents=True)
    lines = []
    for i, (parent, chunk) in enumerate([("b", 1), ("a", 0), ("b", 0), ("b", 2)]):
        (chunked / "audio" / f"{i}.wav").write_bytes(clips[i])
        lines.append({"file_name": f"{i}.wav", "parent_id": parent, "chunk_index": chunk})
    (chunked / "test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = {"configs": [{"config_name": "default", "data_files": [{"split": "test", "path": "test.jsonl"}]}]}
    (chunked / "README.md").write_text(f"---\n{yaml.safe_dump(config)}---\n")
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """`datasets` takes a folder for one that it has cached when their names and READMEs are the same."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def says(whisper, monkeypatch):
    """Makes the model of the board answer with the table's text for a record's reference, which is itself else."""
    from stentor.tasks.transcribe import Transcribe

    def answer(table):
        def predict(task, bundle, examples, checked=None):
            rest = {"words": [], "log_prob": -0.1, "failed": [], "temperature": 0.0}
            if not warm:  # the first call
                warm.append(True)
                return [{"text": "", **rest} for _ in examples]
            said = table if callable(table) else lambda example: table.get(example.text, example.text)
            return [{"text": said(example), **rest} for example in examples]

        warm = []
        monkeypatch.setattr(Transcribe, "predict", predict)

    answer.model = whisper
    return answer


def evaluate(whisper, copies, board, *more):
    return main(["evaluate", str(whisper), "--board", board, "--copies", str(copies), *map(str, more)])


def read_back(path, normalizer="open_asr", language="en"):
    """(model, set, WER in percent, RTFx) of a manifest, read as the board's normalizer/eval_utils.py reads it."""
    model, _, test = path.name.removeprefix("MODEL_").removesuffix(".jsonl").partition("_DATASET_")
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    duration, time = (sum(row[key] for row in rows) for key in ("duration", "time"))
    if "parent_id" in rows[0]:
        rows.sort(key=lambda row: (row["parent_id"], row["chunk_index"]))
        rows = [
            {"text": chunks[0]["text"], "pred_text": " ".join(chunk["pred_text"].strip() for chunk in chunks)}
            for chunks in ([r for r in rows if r["parent_id"] == name] for name in {r["parent_id"] for r in rows})
        ]
    sides = [[normalize(row[key], normalizer, language).split() for row in rows] for key in ("text", "pred_text")]
    rate = kaldialign.batch_error_rate(*sides, merge_compounds=True)["err_rate"]
    return model.replace("-", "/", 1), test, round(100 * rate, 2), duration / time


def test_a_board_and_the_files_that_its_scripts_read(says, copies, tmp_path, capsys, monkeypatch):
    out = tmp_path / "scores.json"
    names = "ami_cleaned,librispeech_test_clean,gigaspeech_cleaned,earnings22_cleaned_aa_chunked"
    sets = {"english": {name: boards()["english"][name] for name in names.split(",")}}
    monkeypatch.setattr("stentor.commands.evaluate.board.boards", lambda: sets)
    says({"one two": "one too", "Mr. Brown's colour": "mister browns color", "one two three": "one two three"})
    assert evaluate(says.model, copies, "english", "--json", out) == 0
    table = capsys.readouterr().out
    figures = json.loads(out.read_text("utf-8"))
    wers = {name: round(100 * row["wer"]["value"], 2) for name, row in figures["sets"].items()}
    # "one too" is two errors for 12; "brown s" and "browns" are the same written together.
    assert wers["ami_cleaned"] == 40 and wers["librispeech_test_clean"] == 0 and wers["gigaspeech_cleaned"] == 0
    assert figures["average_wer"] == round(sum(wers.values()) / 4, 2)
    assert "AMI-Cleaned" in table and f"{figures['average_wer']:.2f} %" in table
    assert figures["sets"]["gigaspeech_cleaned"]["dropped"] == {"no_reference": 2} and "no_reference" in table

    manifests = sorted(out.with_suffix("").glob("*.jsonl"))
    read = {test: (model, wer, speed) for model, test, wer, speed in map(read_back, manifests)}
    assert set(read) == {
        "hf-audio-open-asr-leaderboard_ami_cleaned_test",
        "hf-audio-open-asr-leaderboard_librispeech_test.clean",
        "hf-audio-open-asr-leaderboard_gigaspeech_cleaned_test",
        "ArtificialAnalysis-Earnings22-Cleaned-AA-chunked_earnings22_cleaned_aa_chunked_test",
    }
    for name, row in figures["sets"].items():
        file = next(key for key in read if name.removesuffix("_clean").replace("_test", "_test.") in key or name in key)
        model, wer, speed = read[file]
        assert model == f"local/{says.model.name}" and wer == wers[name]
        assert speed == pytest.approx(row["audio_seconds"] / row["inference_seconds"])
    first = json.loads(manifests[1].read_text("utf-8").splitlines()[0])
    assert first["audio_filepath"] == "clip 0" and first["text"] == "one two"  # raw, in the order of the set

    entries = yaml.safe_load((out.with_suffix("") / ".eval_results/open_asr_leaderboard.yaml").read_text("utf-8"))
    assert [(e["dataset"]["id"], e["dataset"]["task_id"], e["value"]) for e in entries] == [
        ("hf-audio/open-asr-leaderboard", "mean_wer", figures["average_wer"]),
        ("hf-audio/open-asr-leaderboard", "rtfx", figures["rtfx"]),
    ]


def test_chunks_are_put_together_in_their_order(says, copies, tmp_path):
    out = tmp_path / "scores.json"
    said = {"0": "down", "1": "one, two, three", "2": "Go", "3": "stay hear"}  # by the last figure of the id
    says(lambda example: said[example.id[-1]])
    assert evaluate(says.model, copies, "english:earnings22_cleaned_aa_chunked", "--json", out) == 0
    (manifest,) = out.with_suffix("").glob("*.jsonl")
    rows = [json.loads(line) for line in manifest.read_text("utf-8").splitlines()]
    assert [(r["parent_id"], r["chunk_index"], r["text"]) for r in rows] == [
        ("b", 1, "Go down, stay here."),
        ("a", 0, "One, two three."),
        ("b", 0, "Go down, stay here."),
        ("b", 2, "Go down, stay here."),
    ]
    sets = json.loads(out.read_text("utf-8"))["sets"]
    assert sets["earnings22_cleaned_aa_chunked"]["records"] == 4
    wer = sets["earnings22_cleaned_aa_chunked"]["wer"]
    assert (wer["errors"], wer["total"], wer["details"]["items"]) == (1, 5, 2)  # one two three is 123


def test_boards_in_other_languages_and_of_long_recordings(says, copies, tmp_path):
    pytest.importorskip("num2words")
    out = tmp_path / "scores.json"
    says({"Zehn Häuser, 21 Türen.": "zehn Häuser ein und zwanzig Türen", "eins": "zwei"})
    assert evaluate(says.model, copies, "multilingual:fleurs_de", "--json", out) == 0
    wer = json.loads(out.read_text("utf-8"))["sets"]["fleurs_de"]["wer"]
    assert (wer["errors"], wer["total"]) == (1, 5)
    (manifest,) = out.with_suffix("").glob("*.jsonl")
    assert manifest.name.endswith("DATASET_hf-audio-open-asr-leaderboard-multilingual-datasets_fleurs_de_test.jsonl")
    assert [json.loads(line)["audio_filepath"] for line in manifest.read_text("utf-8").splitlines()] == [
        "0.wav",
        "1.wav",
    ]


def test_the_mean_of_a_group_is_one_entry_of_the_average(says, copies, tmp_path):
    out = tmp_path / "scores.json"
    says(lambda example: "one")
    assert evaluate(says.model, copies, "long_form:earnings21,coraal_ATL,coraal_VLD", "--json", out) == 0
    figures = json.loads(out.read_text("utf-8"))
    earnings, *coraal = (round(100 * row["wer"]["value"], 2) for row in figures["sets"].values())
    assert figures["average_wer"] == round((earnings + sum(coraal) / 2) / 2, 2)
    assert figures["rtfx"] > 0


@pytest.mark.parametrize(("options", "records"), [(["english", "--limit", 1], 1), (["english:ami_cleaned"], 2)])
def test_results_for_a_repository_are_of_a_whole_board(says, copies, tmp_path, capsys, monkeypatch, options, records):
    names = "ami_cleaned", "librispeech_test_clean"
    sets = {"english": {name: boards()["english"][name] for name in names}}
    monkeypatch.setattr("stentor.commands.evaluate.board.boards", lambda: sets)
    says({})
    assert evaluate(says.model, copies, *options, "--json", tmp_path / "scores.json") == 0
    assert "open_asr_leaderboard.yaml is not written: it is about all" in capsys.readouterr().out
    assert not (tmp_path / "scores" / ".eval_results").exists()
    assert json.loads((tmp_path / "scores.json").read_text("utf-8"))["sets"]["ami_cleaned"]["records"] == records


def test_limit_of_a_set_in_chunks_counts_recordings(says, copies, tmp_path):
    """The first one is b, with the chunks 0, 2 and 3 of the list."""
    out = tmp_path / "scores.json"
    said = {"0": "down", "2": "Go", "3": "stay here"}
    says(lambda example: said[example.id[-1]])
    assert evaluate(says.model, copies, "english:earnings22_cleaned_aa_chunked", "--limit", 1, "--json", out) == 0
    row = json.loads(out.read_text("utf-8"))["sets"]["earnings22_cleaned_aa_chunked"]
    assert (row["records"], row["wer"]["errors"], row["wer"]["total"]) == (3, 0, 4)


def test_recordings_are_scored_whole():
    def answer(parent):
        return Prediction(parent, {}, {}, 1.0, {"parent_id": parent, "chunks": 2}), 0.1

    dropped = DropCounter()
    answered = [answer(parent) for parent in "aba"]
    assert of_whole_sessions(answered, dropped) == [answered[0], answered[2]]
    assert dropped.reasons == {"incomplete": 1} and dropped.named["incomplete"][0].startswith("b: ")


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (
            ["--board", "german"],
            2,
            "there is no board 'german'; known are: english, multilingual, long_form, seedtts_en",
        ),
        (["--board", "english:ami"], 2, "english has no set 'ami'; it has: ami_cleaned,"),
        (
            ["--board", "english", "--task", "words"],
            2,
            "--task is for the task of a model and --stream, not for --board",
        ),
        (["--board", "english", "--scoring", "open_asr"], 2, "--scoring is for the task of a model, not for --board"),
        (["--board", "english:spgispeech"], 3, "spgispeech"),
        (["--data", "x.jsonl", "--scoring", "sclite"], 2, "there is no such scoring; known are: levenshtein,"),
        (["--data", "x.jsonl", "--limit", "3"], 2, "--limit is for --board and --board of speech synthesis, not for"),
        ([], 2, "give it with --data"),
    ],
)
def test_wrong_options(whisper, copies, more, code, message, capsys):
    here = ["--copies", str(copies)] if "--board" in more else []
    assert main(["evaluate", str(whisper), *more, *here]) == code
    assert message in re.sub(r"[\s│]+", " ", capsys.readouterr().err)


def test_the_sets_are_sources(copies, tmp_path):
    source = {"type": "hub", "preset": "open_asr_english", "subset": "librispeech_test_clean", "cache": tmp_path}
    place = copies / "hf-audio/open-asr-leaderboard"
    (cut,) = Source.model_validate(source | {"name": str(place)}).cuts()
    assert (text_of(cut), language_of(cut), cut.id) == ("one two three", "en", "clip 0")
    counts = {name: len(sets) for name, sets in boards().items()}
    assert counts == {"english": 7, "multilingual": 13, "long_form": 10}
    assert PRESETS["open_asr_multilingual"]["mls_pt"].languages == {"pt": "pt"}


def test_any_data_is_scored_as_on_the_leader_board(whisper, corpus, tmp_path, monkeypatch):
    from stentor.tasks.transcribe import Transcribe

    monkeypatch.setattr(Transcribe, "predict", lambda task, bundle, examples, *_: [{"text": "uh On E"}] * len(examples))
    out = tmp_path / "scores.json"
    data = ["--data", str(corpus / "dev.jsonl"), "--json", str(out)]
    rates = {}
    for more in ([], ["--scoring", "open_asr"], ["--scoring", "levenshtein"]):
        assert main(["evaluate", str(whisper), *data, *more]) == 0
        rates[tuple(more)] = json.loads(out.read_text("utf-8"))["eval"]["wer"]
    plain, board, same = rates.values()
    assert plain == same and plain["details"]["normalizer"] != "open_asr" and "compounds" not in plain["details"]
    assert board["details"]["normalizer"] == "open_asr" and board["details"]["compounds"] == "merged"
    assert board["errors"] < plain["errors"]
