"""What holds for a model of every kind: its batches are its items, all that is trained gets a gradient, checkpoints
change none, its processor reaches loader workers, what it exports says what it said, adapters included, and a run that
was stopped goes on as if it had not been."""

import json
import pickle
import shutil
from functools import partial

import numpy
import pytest
import soundfile
import torch
import transformers
from peft import PeftModel
from tiny_families import KINDS, TERMS, TEXTS, gradients, loss, save, shake, trainable
from tiny_runs import records_of, run, write_records

from stentor.errors import ConfigError
from stentor.inference.load import from_runs
from stentor.models.base import Family, TaskRequirements
from stentor.models.pretrained.lora import is_adapter
from stentor.models.pretrained.weights import read_weights
from stentor.publish.usage import how_to_use
from tiny_configs import WHISPER

torch.set_num_threads(1)

HEARD = [name for name, kind in KINDS.items() if kind.task in ("transcribe", "who_said_what")]
ALWAYS = (("transducer", False), ("transformer", False), ("qwen3_asr", True))
"""Runs with adapters or without that are always resumed; the others, which share their code, are slow tests."""
DRAWS = {
    "whisper": {"config": {**WHISPER, "dropout": 0.1}, "full_window": 0.5},
    "transducer": {"predictor": {"hidden": 48, "dropout": 0.1}},
}
"""Keys with which more is drawn at random in training."""
FAMILIES = (
    *("qwen3_asr", "voxtral_realtime", "moonshine", "ctc_wav2vec2", "ctc_parakeet", "parakeet_tdt", "transducer"),
    *("transformer", "transformer_decoder", "speech_llm", "pocket_tts", "omnivoice"),
)
"""Kinds that stand for their families; those of the others, which share their code, are long tests."""
ON_CARDS = ("qwen3_asr", "whisper", "ctc_wav2vec2", "parakeet_tdt")
WITHOUT_CODE = {
    *("granite_speech", "granite_speech_plus", "fun_asr_nano"),  # their processors need torchaudio
    *("transducer", "transformer", "transformer_encoder", "transformer_decoder", "speech_llm"),  # our own architectures
}
"""Recognisers whose cards show no code for transformers alone."""
BASED = [name for name, kind in KINDS.items() if kind.lora is not None and kind.from_base]


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[pytest.mark.long] * (name not in FAMILIES)) for name in KINDS]
)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def kind(name):
    return KINDS[name]


@pytest.fixture(scope="module")
def origin(kind, tmp_path_factory):
    """The folder for what the kind writes, and its keys for an untrained model."""
    folder = tmp_path_factory.mktemp("origin")
    return folder, kind.origin(folder)


@pytest.fixture(scope="module")
def build(kind, origin):
    def make(**keys):
        folder, start = origin
        return kind.build(folder, **({} if "from" in keys else start), **keys)

    return make


@pytest.fixture(scope="module")
def bundle(build):
    return build()


@pytest.fixture(scope="module")
def base(build, tmp_path_factory):
    """The folder of an export whose weights have moved, and the loss of its model."""
    bundle = build()
    shake(bundle)
    return bundle, save(bundle, tmp_path_factory.mktemp("base"))


def near(bundle, kind, tolerance=1e-5):
    with torch.no_grad():
        return pytest.approx(loss(bundle, kind.items(bundle)).item(), rel=tolerance, abs=tolerance)


def told(output):
    """What an answer says: texts, and where its words and turns are."""
    parts = [*(output.get("words") or []), *(output.get("segments") or [])]
    return output["text"], [[part.get(key) for key in ("word", "text", "speaker", "start", "end")] for part in parts]


def test_a_resumed_run_keeps_what_was_made_from_its_texts(kind, build, bundle, tmp_path):
    """Other transcripts with as many letters would give the weights other meanings."""
    save(bundle, tmp_path)
    swapped = [text.translate(str.maketrans("enotz", "znöet")) for text in TEXTS]
    again, items = build(texts=swapped, made=tmp_path), kind.items(bundle)
    one, two = (b.processor.collate(items).inputs for b in (bundle, again))
    assert all(torch.equal(one[key], two[key]) for key in one if isinstance(one[key], torch.Tensor))
    assert len(again.model.state_dict()) == len(bundle.model.state_dict())


def test_a_batch_is_its_items(kind, bundle):
    items, apart = kind.items(bundle), [kind.items(bundle)[i] for i in range(len(kind.items(bundle)))]
    batch = bundle.processor.collate(kind.items(bundle))
    counts = [bundle.processor.collate([kind.items(bundle)[i]]).counts for i in range(len(items))]
    assert not batch.dropped and batch.counts == {n: sum(c[n] for c in counts) for n in batch.counts}
    with torch.no_grad():
        together, alone = loss(bundle, items).item(), [loss(bundle, [item]).item() for item in apart]
    assert together == pytest.approx(sum(alone), rel=1e-5, abs=1e-3) and min(alone) > 0
    for options in kind.decodings:
        answers = kind.predict(bundle, kind.items(bundle), **options)
        for item, answer in zip(kind.items(bundle), answers, strict=True):
            (again,) = kind.predict(bundle, [item], **options)
            assert told(again) == told(answer)
            assert again.get("log_prob", 0) == pytest.approx(answer.get("log_prob", 0), abs=1e-3)


def test_the_processor_travels_to_loader_workers(kind, bundle):
    again = pickle.loads(pickle.dumps(bundle.processor)).collate(kind.items(bundle)).inputs
    here = bundle.processor.collate(kind.items(bundle)).inputs
    assert again.keys() == here.keys()
    assert all(torch.equal(again[n], t) if isinstance(t, torch.Tensor) else again[n] == t for n, t in here.items())


def test_all_that_is_trained_gets_a_gradient_which_checkpoints_do_not_change(kind, build):
    plain, saving = build(), build(gradient_checkpointing=True)
    expected, saved = (gradients(b, kind.items(b)) for b in (plain, saving))
    assert expected.keys() == saved.keys() == {n for n in trainable(plain) if not n.endswith(kind.idle)}
    for name, gradient in expected.items():
        torch.testing.assert_close(saved[name], gradient, rtol=1e-4, atol=1e-5, msg=name)


def test_adapters_get_gradients(kind, build):
    if kind.lora is None:
        with pytest.raises(ValueError, match="lora"):
            build(lora={"rank": 2})
        return
    bundle = build(lora=kind.lora, gradient_checkpointing=kind.checkpointed)
    got = gradients(bundle, kind.items(bundle))
    assert got.keys() == trainable(bundle)
    second = [n for n in got if is_adapter(n) and "lora_B" in n]
    assert second and all(got[n].any() for n in second)


def test_an_export_says_what_the_model_said(kind, base):
    bundle, folder = base
    expected = near(bundle, kind)
    config = json.loads((folder / "config.json").read_text())
    assert [f for f in Family.choices().values() if f.can_load(config)] == [type(bundle.family)]
    for training in (False, True):
        again = type(bundle.family).load(folder, trainable=training)
        assert again.model.training == training and trainable(again) == (trainable(bundle) if training else set())
        again.model.eval()
        assert near(again, kind) == expected


def test_a_run_starts_from_an_export(kind, build, base):
    """Its tokens and letters stay, whatever the new texts are: the weights have a row for each of them."""
    bundle, folder = base
    started = build(init=str(folder), seed=3, texts=("quite other words: xyz",))
    assert near(started, kind) == near(bundle, kind) and trainable(started) == trainable(bundle)
    with pytest.raises(ConfigError, match=r"nowhere"):
        build(init="./nowhere")


@pytest.mark.long
@pytest.mark.parametrize("name", BASED, indirect=True)
def test_adapters_on_a_base_come_back(kind, build, base, tmp_path):
    """Alone, or folded in where the family does so; merged, gone on with, and folded in by a model without any."""
    plain, folder = base
    start = {"from": str(folder)}
    bundle = build(**start, lora=kind.lora)
    assert near(bundle, kind) == near(plain, kind)
    shake(bundle)
    bundle.model.eval()
    expected = near(bundle, kind, 1e-4)
    assert near(plain, kind) != expected
    export = save(bundle, tmp_path / "run" / "export")
    (tmp_path / "run" / "resolved.yaml").touch()
    weights = {path.name for path in export.glob("*.safetensors")}
    assert weights == {"adapter_model.safetensors" if kind.apart else "model.safetensors"}
    if kind.apart:
        assert json.loads((export / "adapter_config.json").read_text())["base_model_name_or_path"] == str(folder)
        assert type(bundle.family).load(export, trainable=True).model.training
    bundle.family.save_merged(bundle, tmp_path / "merged")
    of_run = from_runs(bundle.family.model_copy(update={"source": str(tmp_path / "run"), "lora": None}))
    for again in (
        type(bundle.family).load(export),
        type(bundle.family).load(tmp_path / "merged"),
        build(**start, lora=kind.lora, init=str(export)),
        build(**start, init=str(export)),
        of_run.build(TaskRequirements(kind.task, kind.terms, lambda: iter(TEXTS))),
    ):
        again.model.eval()
        assert near(again, kind, 1e-4) == expected


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.long] * (n not in FAMILIES)) for n in BASED if KINDS[n].apart],
    indirect=True,
)
def test_peft_folds_the_adapters(kind, build, base, tmp_path):
    """What plain transformers and PEFT make of an export of adapters on its base is the model that was exported."""
    bundle = shake(build(**{"from": str(base[1])}, lora=kind.lora))
    bundle.model.eval()
    folder = save(bundle, tmp_path / "adapters")
    (architecture,) = json.loads((base[1] / "config.json").read_text())["architectures"]
    plain = getattr(transformers, architecture).from_pretrained(base[1])
    shutil.copytree(base[1], tmp_path / "folded")
    PeftModel.from_pretrained(plain, folder).merge_and_unload().save_pretrained(tmp_path / "folded")
    assert near(type(bundle.family).load(tmp_path / "folded"), kind, 1e-4) == near(bundle, kind, 1e-4)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.long] * (n not in ON_CARDS)) for n in HEARD if n not in WITHOUT_CODE],
    indirect=True,
)
def test_the_code_of_a_card_runs_as_written(kind, build, base, tmp_path, monkeypatch, capsys):
    if shutil.which("ffmpeg") is None:
        pytest.skip("transformers reads files with ffmpeg, which is not installed")
    shutil.copytree(base[1], tmp_path / "whole")
    folders = [tmp_path / "whole"]
    if kind.lora is not None and kind.from_base and kind.apart:
        adapted = build(**{"from": str(base[1])}, lora=kind.lora)
        folders.append(save(adapted, tmp_path / "adapters"))
    monkeypatch.chdir(tmp_path)
    soundfile.write("speech.wav", 0.1 * numpy.random.default_rng(0).standard_normal(16000), 16000)
    for folder in folders:
        card = how_to_use({"name": folder.name, "task": {"type": "transcribe"}, "model": {}}, folder)
        code = card[card.index("With Stentor:") - 1].removeprefix("```python\n").removesuffix("```")
        assert "stentor" not in code and (folder.name == "whole") != ("PeftModel" in code)
        code = code.replace("max_new_tokens=400", "max_new_tokens=5")
        exec(code, {})
        assert capsys.readouterr().out.endswith("\n")


@pytest.mark.parametrize("name", FAMILIES, indirect=True)
def test_names_that_there_are_not_are_refused(kind, build):
    with pytest.raises(ConfigError, match=r"model\.freeze: 'nothing\.\*' matches nothing"):
        build(freeze=["nothing.*"])
    if kind.lora is not None:
        with pytest.raises(ConfigError, match=r"model\.lora\.targets: '\*\.q_prj' matches nothing"):
            build(lora={"targets": ["*.q_prj"]})
    if kind.from_base:
        with pytest.raises(ConfigError, match=r"/no/where"):
            build(**{"from": "/no/where"})


@pytest.fixture(scope="module")
def spoken(corpus, tmp_path_factory):
    """A manifest of four clips, each word of which is a turn of one of two speakers."""
    records = records_of(corpus / "train.jsonl")[:4]
    for record in records:
        turns = [{**word, "text": word["word"], "speaker": "ab"[i % 2]} for i, word in enumerate(record["words"])]
        record |= {"audio_path": str(corpus / record["audio_path"]), "language": "en", "segments": turns}
    return write_records(tmp_path_factory.mktemp("spoken") / "train.jsonl", records)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "lora"),
    [
        pytest.param(name, lora, marks=[pytest.mark.slow] * ((name, lora) not in ALWAYS))
        for name in HEARD
        for lora in (False, True)
        if KINDS[name].lora or not lora
    ],
    indirect=["name"],
)
def test_a_run_goes_on_as_if_it_had_not_stopped(name, lora, kind, origin, spoken, tmp_path, rows):
    model = {**kind.keys, **origin[1], **DRAWS.get(name, {})}
    if lora:
        model["lora"] = {**kind.lora, "dropout": 0.1}
    options = {
        "task.type": kind.task,
        "losses": json.dumps({term: TERMS.get(term, "cross_entropy") for term in kind.terms}),
        "data.augment.speed": "[0.9, 1.0, 1.1]",
        "train.save_every": 2,
        "train.use": "last",  # the best may be that of step 2
    }
    if kind.task == "transcribe":
        options["data.augment.spec_augment"] = "{time_masks: 1, freq_masks: 1}"
    straight = run(tmp_path, "straight", model, spoken, steps=4, lr=1e-3, **options)
    run(tmp_path, "stopped", model, spoken, steps=2, lr=1e-3, **options)
    stopped = run(tmp_path, "stopped", model, spoken, steps=4, lr=1e-3, **options)
    assert "Resuming from step 2" in (stopped / "log.txt").read_text()
    losses = [[(row["step"], row["train/loss"], row["grad_norm"]) for row in rows(f)] for f in (straight, stopped)]
    assert losses[0] == losses[1] and len(losses[0]) == 4
    one, two = (
        {**weights, **adapters} for weights, adapters in (read_weights(f / "export") for f in (straight, stopped))
    )
    assert set(one) == set(two) and all(one[name].equal(two[name]) for name in one)


def test_names_of_control_tokens_in_a_text_are_text(bundle, name):
    """Alone, and in a prompt, which has no more control tokens than around an ordinary text."""
    processor, tokenizer = bundle.processor, bundle.traits.tokenizer
    if tokenizer is None or name.startswith("voxtral"):
        pytest.skip("its tokenizer never makes control tokens of a text")
    added = tokenizer.added_tokens_decoder
    control = {i for i, token in added.items() if token.special} - {tokenizer.unk_token_id}
    spoken = " ".join(added[i].content for i in sorted(control) if added[i].content not in ("|", "▁"))
    if name == "omnivoice":
        encode = partial(processor.text_ids, instruct=spoken)
    elif KINDS[name].task == "speak":
        encode = partial(processor.prompt_ids, instruct=None)
    else:
        encode = processor.ids
    named, usual = ([i for i in encode(text) if i in control] for text in (f"one {spoken}", "one"))
    assert named == usual
    assert encode is not processor.ids or not usual
