"""Who speaks when, and when each word of a text is said: the same as the commands have it."""

import json

import pytest

import stentor
from stentor.models.base import TaskRequirements

TURNS = [(0, 0.5, 5), (1, 6, 12), (0, 13, 19)]


def test_the_turns_of_the_command(diarizer, serve, talk, run):
    folder, path = diarizer(), talk("a.wav", 20, TURNS)
    server = serve(folder, diarizer=str(folder))
    alone = stentor.load(folder, "cpu").diarize(path)

    def ask(**fields):
        with open(path, "rb") as file:
            return server.http.post("/v1/audio/diarizations", files={"file": file}, data=fields)

    for fields in ({}, {"model": "diarizer"}, {"num_speakers": "2"}):
        answer = ask(**fields).json()
        assert answer["segments"] == alone.segments and answer["duration"] == alone["duration"]
    assert ask(response_format="rttm").text == alone.rttm("a")
    for fields in ({"num_speakers": "0"}, {"response_format": "srt"}, {"min_speakers": "3", "max_speakers": "2"}):
        assert ask(**fields).status_code == 400
    assert ask(model="other").status_code == 404


def test_a_server_without_a_diarizer(talks, talk):
    with open(talk("a.wav", 20, TURNS), "rb") as file:
        answer = talks.http.post("/v1/audio/diarizations", files={"file": file})
    assert answer.status_code == 400 and "--diarizer" in answer.json()["error"]["message"]


@pytest.fixture
def words(tmp_path, tiny_family):
    """An untrained model for the task words, with an alignment module."""
    family = tiny_family(aligner={"layers": 1, "heads": 2, "width": 32})
    needs = TaskRequirements("words", ("text", "ctc", "alignment"), texts=lambda: ["one two three four five six"])
    bundle = family.build(needs)
    folder = tmp_path / "words"
    family.save(bundle, bundle.model.state_dict(), folder)
    (folder / "training_config.json").write_text(json.dumps({"task": {"type": "words"}}))
    return folder


def test_the_words_of_the_command(words, serve, talk, run):
    server, path = serve(words), talk("a.wav", 6, [(0, 0.5, 2), (1, 3, 5)])

    def ask(**fields):
        with open(path, "rb") as file:
            return server.http.post("/v1/audio/alignments", files={"file": file}, data={"model": "words", **fields})

    for name in ("json", "srt", "vtt"):
        code, out, _ = run("align", words, path, "six five  four", "--format", name, "--device", "cpu")
        answer = ask(text="six five  four", response_format=name)
        assert (code, answer.status_code) == (0, 200)
        if name != "json":
            assert answer.text == out
            continue
        assert answer.json()["words"] == json.loads(out)["words"] and len(answer.json()["words"]) == 3
    assert ask(text=" ").status_code == ask().status_code == 400
    assert ask(text="–").json()["error"]["message"].startswith("The text '–' has no words")
