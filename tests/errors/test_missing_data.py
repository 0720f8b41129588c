"""Recipes whose data is not there: which key of which line asks for it, and which command gets it."""

from pathlib import Path

import pytest

from stentor.config.load import load
from stentor.config.missing_data import located
from stentor.errors import DataError

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


def test_a_converted_file_without_its_corpus(attempt, tmp_path, monkeypatch):
    """The key, its line and the command, whether the folder, LibriSpeech or one split in it is missing."""
    from stentor.config.convert.voxlm import convert

    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs.yaml").write_text("model: {name: voxlm-edge}\ndata: {data_dir: ./corpora}\n")
    (tmp_path / "run.yaml").write_text(convert(tmp_path / "theirs.yaml").text)
    lines = (tmp_path / "run.yaml").read_text().splitlines()

    def check(key: str, split: str) -> None:
        for plan in ((), ("--plan-only",)):
            code, shown = attempt("train", tmp_path / "run.yaml", "prepare=[]", *plan)
            place, says = shown.partition("stentor: ")[2].split(f": '{key}' is ./corpora: ")
            assert code == 3 and 'from: "./corpora"' in lines[int(place.rpartition(":")[2]) - 1]
            get = (
                f"corpus librispeech --from ./corpora --download --split {split} --to ./corpora/manifests` downloads it"
            )
            assert f"`stentor prepare {get}. Put your data there, or give its path: `{key}=PATH`" in says

    check("data.train.0.from", "train-clean-100")
    (tmp_path / "corpora").mkdir()
    check("data.train.0.from", "train-clean-100")
    (tmp_path / "corpora" / "LibriSpeech" / "dev-other").mkdir(parents=True)
    check("data.train.0.from", "train-clean-100")
    loaded = load(tmp_path / "run.yaml", ["prepare=[]"])
    with pytest.raises(DataError, match=r"'data.eval.dev-clean.from' is ./corpora: The part 'dev-clean' .* is not th"):
        with located(loaded.root):
            list(loaded.config.data.eval["dev-clean"].cuts())


def test_a_download_that_fails_names_the_step(attempt, tmp_path, monkeypatch):
    import lhotse.recipes

    def away(target_dir, dataset_parts=None):
        raise OSError("no network")

    monkeypatch.setattr(lhotse.recipes, "download_librispeech", away)
    monkeypatch.chdir(tmp_path)
    for verb in (("train",), ("prepare", "run")):
        code, shown = attempt(*verb, RECIPES / "voxlm_05b.yaml")
        assert code == 3 and "voxlm_2b.yaml:27: 'prepare.0.from' is ./data: lhotse's away(" in shown, shown
        assert "no network. Put your data there, or give its path: `prepare.0.from=PATH`" in shown


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
