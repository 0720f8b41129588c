"""What enters a round and what does not, and the run file that trains on it."""

import json

import pytest

from stentor.commands.improve import material, training
from stentor.commands.improve.material import Entry, gather, prepared
from stentor.commands.improve.training import Material, round_config, train_run
from stentor.config.improve import Improve, MixRatio
from stentor.config.load import load_text
from stentor.config.prepare.steps import SpeechStep
from stentor.data.cut import cut_from_record
from stentor.dataloading.mixing import Pool
from stentor.errors import ConfigError, DataError
from stentor.pipeline.journal import OtherSettings
from stentor.section import ConfigConflict


def recording(folder, path, seconds=60.0, **keys):
    return cut_from_record({"id": path, "audio_path": path, "duration": seconds, **keys}, folder, "here")


def label(path, at, seconds=2.0, **keys):
    """A record of a step `labels`, which points into its recording."""
    place = {"audio_path": f"../{path}", "start": at}
    return {"id": f"{path}@{at:.3f}", "recording": path, "offset": at, "duration": seconds} | place | keys


def step(folder, records):
    folder.mkdir()
    for name, lines in (("manifest", records), ("rejects", [])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def entry(*people):
    return Entry(people, min_seconds=0.5, max_seconds=30)


def gathered(tmp_path, folders, rule):
    """The ids that entered, and how many records were left out by reason."""
    entered, left = gather(folders, tmp_path / "pseudo.jsonl", rule)
    records = [json.loads(line) for line in (tmp_path / "pseudo.jsonl").read_text().splitlines()]
    assert entered["records"] == len(records)
    return records, {reason: amounts["records"] for reason, amounts in left.items()}


def test_what_a_person_has_transcribed_does_not_enter_as_a_label(tmp_path):
    """Also where the label is a file of its own; the other side of a call is another speech."""
    rule = entry(recording(tmp_path, "a.wav", 5.0, start=10), recording(tmp_path, "call.wav", channel=0))
    own = {"audio_path": "audio/0.flac", "start": None}
    records = [label("a.wav", 9.0, **own), label("a.wav", 20.0, **own)]
    records += [label("call.wav", 3.0, channel=side) for side in (0, 1)]
    pools = {cut.id: cut for cut in (recording(tmp_path, "a.wav"), recording(tmp_path, "call.wav", channel=1))}
    entered, left = gathered(tmp_path, {step(tmp_path / "labels-1", records[:2]): pools}, rule)
    assert [r["offset"] for r in entered] == [20.0] and left == {"human": 1}
    entered, left = gathered(tmp_path, {step(tmp_path / "labels-2", records[2:]): {}}, rule)
    assert [r["channel"] for r in entered] == [1] and left == {"human": 1}


def test_ids_of_two_sources_may_be_the_same_and_places_may_not(tmp_path):
    first = step(tmp_path / "labels-1", [label("001.wav", 0.0)])
    second = step(tmp_path / "labels-2", [label("001.wav", 0.0, audio_path="/other/001.wav"), label("001.wav", 0.0)])
    entered, left = gathered(tmp_path, {first: {}, second: {}}, entry())
    assert [r["id"] for r in entered] == ["001.wav@0.000", "labels-2/001.wav@0.000"] and left == {"same_place": 1}


def test_what_training_would_drop_does_not_enter(tmp_path):
    folder = step(tmp_path / "labels-1", [label("a.wav", 40.0 * i, s) for i, s in enumerate((0.2, 35.0, 3.0))])
    entered, left = gathered(tmp_path, {folder: {}}, entry())
    assert [r["duration"] for r in entered] == [3.0] and left == {"too_short": 1, "too_long": 1}


def test_a_step_that_made_something_is_done_and_one_of_other_settings_is_named(tmp_path, monkeypatch):
    speech = SpeechStep(to=tmp_path / "round-1" / "speech")

    def fail(error):
        def prepare(*_):
            raise error

        monkeypatch.setattr(material, "prepare_run", prepare)

    fail(DataError("1 of 63 records cannot be used."))
    with pytest.raises(DataError, match="1 of 63"):
        prepared([speech], [])
    speech.to.mkdir(parents=True)
    (speech.to / "summary.json").write_text("{}")
    assert prepared([speech], []) == [speech.to]
    fail(OtherSettings("give another folder as --to"))
    with pytest.raises(ConfigError, match=f"delete {tmp_path / 'round-1'} to do"):
        prepared([speech], [])


def test_the_run_file_of_a_round_takes_what_there_is(corpus, tiny_text, tmp_path):
    """Sources without a record have no share in a ratio; a kind that the ratio leaves out is no material."""
    text = tiny_text.format(folder=corpus, runs=tmp_path, dropout=0.0)
    source = f"{{type: jsonl, path: {corpus}/train.jsonl"
    text = text.replace(
        'train.jsonl"}]', f"train.jsonl\"}}, {source}, exclude: {{text: ['']}}}}, {source}, limit: 2}}]"
    )
    config = load_text(text, "tiny.yaml").config
    (pseudo := tmp_path / "pseudo.jsonl").write_text("{}\n")
    (synthetic := tmp_path / "synthetic.jsonl").touch()
    made = Material({"pseudo": pseudo, "synthetic": synthetic})
    pools = [Pool([0] * 6, 1.0, None), Pool([], 1.0, None), Pool([0] * 2, 1.0, None)]
    sources = round_config(config, pools, made, MixRatio(human=2))["data"]["train"]
    assert [s["weight"] for s in sources] == [1.5, 0.5, 1.0] and sources[1]["limit"] == 2
    assert made.kinds(None).keys() == made.kinds(MixRatio()).keys() == {"pseudo"}
    assert not made.kinds(MixRatio(pseudo=0))


def test_translations_are_not_compared_in_rounds(corpus, tiny_text, tmp_path):
    text = tiny_text.format(folder=corpus, runs=tmp_path, dropout=0.0).replace("  eval: {", "  test: {")
    config = load_text(text, "tiny.yaml").config
    config.task.translate = True
    with pytest.raises(ConfigConflict, match="which compares word error rates"):
        Improve(rounds=0).check(config.task, config.data, None)


def test_other_processes_load_the_plugins_too(tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(training, "launch", lambda number, command: commands.append((number, command)) or 0)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "results.json").write_text("{}")
    assert train_run({}, tmp_path / "run", 2, [tmp_path / "mine.py"]) == {}
    assert commands == [(2, ["train", f"{tmp_path}/run.yaml", f"--plugin={tmp_path}/mine.py"])]
