"""The task `language`, and the source `text` that feeds it."""

import gzip
import json
import math

import pytest
import torch
from torch.nn import functional as F

from stentor.cli import main
from stentor.data.batch import Prediction
from stentor.errors import ConfigError, DataError
from stentor.models.base import Family, TaskRequirements
from stentor.sources.base import Source
from stentor.tasks.base import Task

torch.set_num_threads(1)

TEXTS = ["one two", "three", "one two three four"]
RUN = """\
task: {task}
model:
  type: transformer
  kind: {kind}
  shared: {{d_model: 16, layers: 1, heads: 2, dropout: 0.0}}
data:
  train: [{train}]
  workers: 0
  batch_tokens: 100
train: {{steps: 2, device: cpu}}
output: "{runs}"
"""


@pytest.fixture(scope="module")
def bundle():
    torch.manual_seed(0)
    section = {"type": "transformer", "kind": "decoder", "shared": {"d_model": 16, "layers": 2, "heads": 2}}
    bundle = Family.model_validate(section).build(TaskRequirements("language", ("text",), lambda: iter(TEXTS)))
    bundle.model.eval()
    torch.nn.init.normal_(bundle.model.text_head.weight)  # or all tokens would be about as likely
    return bundle


def source(**keys):
    return Source.model_validate({"type": "text", **keys})


def examples(texts):
    task = Task.model_validate("language")
    return task, [task.example(cut, None, None) for cut in source(texts=texts).cuts()]


def test_a_text_is_as_likely_as_its_tokens(bundle):
    task, items = examples(TEXTS)
    outputs = task.predict(bundle, items)
    for text, output in zip(TEXTS, outputs):
        ids = bundle.processor.ids(text)
        with torch.no_grad():
            head = bundle.model(
                tokens=torch.tensor([[bundle.processor.bos_id, *ids]]),
                targets=torch.tensor([[*ids, bundle.processor.eos_id]]),
            )["text"]
            table = F.linear(head["hidden"], head["weight"], head["bias"]).log_softmax(-1)
        expected = sum(float(table[i, token]) for i, token in enumerate([*ids, bundle.processor.eos_id]))
        assert output == {"log_prob": pytest.approx(expected, abs=1e-3), "tokens": len(ids) + 1}
    assert len({round(o["log_prob"] / o["tokens"], 2) for o in outputs}) == 3


def test_scores_are_of_the_whole_set():
    """Neither the mean of the texts' perplexities, nor per text."""
    task = Task.model_validate("language")
    predictions = [
        Prediction("a", {"text": "ab"}, {"log_prob": -3 * math.log(2), "tokens": 3}),
        Prediction("b", {"text": "abcde"}, {"log_prob": -6 * math.log(16), "tokens": 6}),
    ]
    scores = task.score(predictions)
    assert next(iter(scores)) == task.main_metric()[0] == "perplexity" and task.main_metric()[1] == "min"
    assert scores["perplexity"].value == pytest.approx(2 ** ((3 + 24) / 9))
    assert scores["bits_per_character"].value == pytest.approx((3 + 24) / 9)
    assert scores["perplexity"].details == {"tokens": 9} and scores["bits_per_character"].details == {"characters": 9}
    assert math.isnan(task.score([])["perplexity"].value)
    unlikely = Prediction("c", {"text": "a"}, {"log_prob": -1e6, "tokens": 2})
    assert task.score([unlikely])["perplexity"].value == math.inf


def test_text_source(tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("\ufeffone two\n\n  drei vier \nfünf", encoding="utf-8")
    cuts = list(source(path=str(file), language="de").cuts())
    assert [cut.supervisions[0].text for cut in cuts] == ["one two", "drei vier", "fünf"]
    assert [cut.id.rpartition(":")[2] for cut in cuts] == ["1", "3", "4"]
    assert {cut.supervisions[0].language for cut in cuts} == {"de"} and not any(cut.has_recording for cut in cuts)
    with gzip.open(tmp_path / "texts.txt.gz", "wt", encoding="utf-8") as zipped:
        zipped.write("one two\n")
    assert len(list(source(path=str(tmp_path / "texts.txt.gz")).cuts())) == 1
    listed = list(source(texts=["a", "b", "c"], skip=1, limit=1).cuts())
    assert [cut.supervisions[0].text for cut in listed] == ["b"]
    ids = {cut.id for texts in (["a"], ["b"]) for cut in source(texts=texts).cuts()}
    assert len(ids) == 2  # different lists have different ids


def test_text_source_refuses(tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(DataError, match=r"empty\.txt holds no text"):
        list(source(path=str(tmp_path / "empty.txt")).cuts())
    with pytest.raises(DataError, match=r"none\.txt does not exist"):
        list(source(path=str(tmp_path / "none.txt")).cuts())
    for keys in ({}, {"path": "a.txt", "texts": ["a"]}):
        with pytest.raises(ValueError, match="needs exactly one of `path`"):
            source(**keys)


def run(folder, task, kind, train):
    path = folder / "run.yaml"
    path.write_text(RUN.format(task=task, kind=kind, train=train, runs=folder / "runs"))
    return main(["train", str(path)])


def test_texts_of_a_manifest_are_read_without_its_audio(tmp_path):
    """A language model may be trained on transcripts: the audio, which here is none, is never opened."""
    (tmp_path / "broken.wav").write_bytes(b"no audio")
    records = [{"audio_path": "broken.wav", "duration": 2.0, "text": text, "id": text} for text in TEXTS]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n")
    train = f'{{type: jsonl, path: "{tmp_path}/train.jsonl"}}, {{type: text, texts: [four five]}}'
    assert run(tmp_path, "language", "decoder", train) == 0
    results = json.loads((tmp_path / "runs" / "run" / "results.json").read_text())
    assert results["data"]["used"] == 4 and results["data"]["dropped"] == {}
    assert results["steps"] == 2


def test_a_recogniser_cannot_be_trained_on_texts(tmp_path, capsys):
    assert run(tmp_path, "transcribe", "encoder_decoder", "{type: text, texts: [one, two]}") == 3
    assert "has no audio" in capsys.readouterr().err


def test_only_decoders_are_language_models(tmp_path, capsys):
    assert run(tmp_path, "language", "encoder", "{type: text, texts: [one, two]}") == 2
    assert "use decoder" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="trained by the term `text`"):
        Family.model_validate({"type": "transformer", "kind": "decoder"}).build(
            TaskRequirements("language", ("words",))
        )
