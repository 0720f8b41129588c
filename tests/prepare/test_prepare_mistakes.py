"""Mistakes on the command lines of the prepare verbs: each is one sentence, and nothing is made."""

import shlex
from pathlib import Path

import pytest

MISTAKES = [
    ("speech", 2, "Say whose texts are spoken: DATA"),
    ("speech none.txt", 3, "none.txt does not exist"),
    ("speech type=text,texts=[a] --language-model x", 2, "Say whose texts are spoken: DATA"),
    ("speech --language-model none --count 3", 2, "There is no model none"),
    ("speech --language-model none", 2, "--count 1000"),
    ("speech type=text,texts=[a] --max-wer 0.2", 2, "--max-wer requires --recognizer."),
    ("speech type=text,texts=[a] --recognizer none", 2, "There is no model none"),
    ("speech type=text,texts=[a] --instruct low", 2, "--instruct requires --model."),
    ("speech type=text,texts=[a] --voice en-us+f33", 2, "did you mean"),
    ("speech type=text,texts=[a] --voices cuont=3", 2, "did you mean 'count'"),
    ("speech type=text,texts=[a] --augment noise.snr=[3,9]", 2, "noise needs `paths` or `builtin`"),
    ("speech type=text,texts=[a] --augment noise.paths=[none]", 3, "none does not exist"),
    ("speech type=text,texts=[a] --augment spec_augment={{}}", 2, "data.augment"),
    ("speech type=text,texts=[a] --exclude none.jsonl", 3, "none.jsonl does not exist"),
    ("speech \"type=text,texts=['...']\"", 3, "There is nothing to speak in '...'"),
    ("speech type=text,texts=[a] --exclude type=text,texts=[A.]", 3, "none of 1 texts is left (1 held_out)"),
    ("words {dev}", 2, "--to out: the manifest's name must end in .jsonl."),
    ("words {dev} --to a.jsonl", 2, "Word times need --model: a transducer, CTC or Whisper model"),
    ("words {dev} --to a.jsonl --engine voice --model m", 2, "asks the built-in voice itself: leave out --model."),
    ("words {dev} --to a.jsonl --engine voice --max-wer 0.1", 2, "knows what was said: leave out --max-wer."),
    ("words {dev} --to a.jsonl --model no/such/model", 2, "There is no model no/such/model"),
    ("tokens {dev} --codec none --noisy-prompts", 2, "Noisy prompts are counted in frames of a codec"),
    ("tokens {dev} --codec mel_rvq --rate 16000", 2, "--rate is for raw audio"),
    ("tokens {dev} --codec none --min-seconds 3 --max-seconds 2", 2, "nothing would be left"),
    ("tokens {dev} --codec none --to 'a folder'", 2, "the folder's path must have none"),
    ("tokens {dev} --codec ./nowhere", 2, "nowhere"),
    ("tokens {dev} --codec mel_rvq --noise /nowhere", 3, "nowhere"),
    ("tokens type=shards,path=x,stream=true --codec none", 2, "shards are planned over all records: `stream=false`"),
    ("codec {dev} --codec mimy", 2, "--codec mimy: no such type (did you mean mimi?)"),
    ("codec {dev} --codec mimi --option from=/nowhere/mimi", 2, "the folder /nowhere/mimi does not exist"),
    ("codec {dev} --device cuda:99", 2, "99"),
    ("codec {dev} --option entires=12", 2, "unknown key 'entires'"),
    ("features", 2, "Name the data whose features are wanted"),
    ("features {dev} --option num_mel_bin=20", 2, "did you mean 'num_mel_bins'"),
    ("features --config {tiny}", 2, "reads no features that could be stored"),
    ("segments {corpus} --stage vda", 2, "unknown type 'vda'"),
    ("segments {corpus} --stage vad,second=[1,2]", 2, "did you mean 'seconds'"),
    ("segments {corpus} --stage language,languages=[klingonish]", 2, "klingonish"),
    ("segments type=audio_folder,path={corpus} --stage speakers,model=nowhere/at_all_here", 2, "nowhere/at_all_here"),
    ("segments type=audio_folder,path={corpus} --stage vad,detector=missing.onnx", 2, "missing.onnx"),
    ("mixtures", 2, "Say what to mix"),
    ("mixtures x --config {tiny}", 2, "Say what to mix"),
]


@pytest.mark.parametrize(("command", "code", "says"), MISTAKES)
def test_a_mistake_is_one_sentence(command, code, says, corpus, tiny, attempt, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words = shlex.split(command.format(corpus=corpus, dev=corpus / "dev.jsonl", tiny=tiny()))
    got, told = attempt("prepare", *words, *([] if "--to" in words else ["--to", "out"]))
    assert got == code and says in " ".join(told.split()), told
    made = [path for path in Path("out").rglob("*") if path.suffix in (".flac", ".tar", ".safetensors", ".bin")]
    manifest = Path("out") / "manifest.jsonl"
    assert not made and not (manifest.is_file() and manifest.read_bytes()) and not Path("a.jsonl").exists()
