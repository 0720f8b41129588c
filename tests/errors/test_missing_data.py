"""Recipes whose data is not there: which key of which line asks for it, and which command gets it."""

from pathlib import Path

import pytest

RECIPES = Path(__file__).parent.parent.parent / "recipes"
LIBRISPEECH = "`stentor prepare corpus librispeech --download --to data/librispeech` downloads it"


@pytest.mark.parametrize(
    ("recipe", "key", "says"),
    [
        ("librispeech", "data.train.0.path", LIBRISPEECH),
        (
            "digits",
            "data.train.0.source.path",
            "Put your data there, or give its path: `data.train.0.source.path=PATH` (docs/",
        ),
        ("encoder_diarize", "data.train.0.source.path", LIBRISPEECH),
        ("diarize_simple", "data.train.0.path", "Put your data there, or give its path"),
        ("decoder_language", "data.train.0.path", "data/text/train.txt"),
    ],
)
def test_a_recipe_without_its_data(attempt, tmp_path, monkeypatch, recipe, key, says):
    monkeypatch.chdir(tmp_path)
    lines = (RECIPES / f"{recipe}.yaml").read_text().splitlines()
    code, shown = attempt("train", RECIPES / f"{recipe}.yaml")
    [message] = [line for line in shown.splitlines() if line.startswith("stentor: ")]
    assert code == 3 and says in message, message
    place, _, rest = message.removeprefix("stentor: ").partition(": ")
    line = int(place.rpartition(":")[2])
    assert (
        rest.startswith(f"'{key}' is data/")
        and "The folder data does not exist" in rest
        and "path: data/" in lines[line - 1]
    )
    code, shown = attempt("train", RECIPES / f"{recipe}.yaml", f"{key}=nowhere/x.jsonl", "--plan-only")
    assert (
        code == 3
        and f"override `{key}=nowhere/x.jsonl`: '{key}' is nowhere/x.jsonl: The folder nowhere does not exist" in shown
    )


def test_token_shards_that_are_not_there(attempt, tiny):
    code, shown = attempt("train", tiny(), "data.train.0={type: shards, path: data/tokens/train/data.lst}")
    assert (
        code == 3
        and "Create token shards with `stentor prepare tokens MANIFEST --codec CODEC --to data/tokens/train`" in shown
    )


@pytest.mark.parametrize("kind", ["eval", "test"])
def test_a_set_without_records_is_named_by_its_key(attempt, tiny, corpus, kind):
    takes = f"{{type: jsonl, path: '{corpus}/dev.jsonl', where: {{speaker: [nobody]}}}}"
    code, shown = attempt("train", tiny(), f"data.{kind}={{takes: {takes}}}")
    assert code == 3 and f"stentor: data.{kind}.takes: no usable record (no record has the speaker nobody" in shown
