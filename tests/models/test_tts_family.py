"""The family `tts`: losses, speech and exports are those of transformers' own classes and processors."""

import json
import pickle

import numpy as np
import pytest
import torch
import transformers
from huggingface_hub import HfApi
from lhotse import MonoCut
from tiny_families import save
from tiny_tts import CONFIGS, SAID, build, examples, plain_inputs, write_csm

from stentor.data.batch import Example
from stentor.data.conditions import Spoken, draw
from stentor.dataloading.planned import ModelDrops
from stentor.errors import ConfigError
from stentor.models.base import Family, TaskRequirements
from stentor.models.codecs.neural import NeuralCodec
from stentor.tasks.speak.task import Speak

torch.set_num_threads(1)
KINDS = tuple(CONFIGS)
LORA = {"rank": 4, "alpha": 8, "dropout": 0.0}


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def bundle(kind, tmp_path_factory):
    bundle = build(kind, tmp_path_factory.mktemp(kind))
    bundle.model.eval()
    return bundle


@pytest.fixture(scope="module")
def export(bundle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "model"
    return save(bundle, folder)


@pytest.fixture(scope="module")
def plain(bundle, export):
    """(model, processor) of plain transformers."""
    model, info = getattr(transformers, bundle.processor.architecture).from_pretrained(export, output_loading_info=True)
    assert not any(info.values())
    return model.eval(), transformers.AutoProcessor.from_pretrained(export)


def clips(bundle, *seconds: float) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [(0.1 * rng.standard_normal(round(s * bundle.processor.sample_rate))).astype(np.float32) for s in seconds]


def item(bundle, text, audio, **task):
    codes = bundle.processor.codec.encode([audio])[0]
    conditions = draw(Spoken(text), Speak(drop_cond_ratio=task.get("drop", 0.0)), np.random.default_rng(0))
    return Example("x", text=text, extra={"codes": codes, "conditions": conditions, "instruct": None})


def loss_of(bundle, items):
    batch = bundle.processor.collate(items)
    with torch.no_grad():
        return float(bundle.model(**batch.inputs)["codes"]["loss"]), batch.counts["codes"]


def test_the_loss_is_the_models_own(kind, bundle, plain):
    """What transformers' processor makes of texts and recordings, and its model of that."""
    texts, audios = ["one two three", "four"], clips(bundle, 1.2, 0.48)  # whole frames
    ours, count = loss_of(bundle, [item(bundle, *pair) for pair in zip(texts, audios)])
    model, processor = plain
    with torch.no_grad():
        theirs = model(**plain_inputs(kind, processor, texts, audios)).loss
    assert ours / count == pytest.approx(float(theirs), rel=1e-6)


def test_records_that_are_longer_than_the_model_are_left_out(kind, bundle, monkeypatch):
    """Dia's text goes through the encoder and its frames through the decoder, each with a limit of its own."""
    processor, (example, *_) = bundle.processor, examples(bundle, frames=(20,))
    inputs = processor.collate([example]).inputs
    sizes = [("text and frames", "longest", inputs["input_ids"].shape[1])]
    if kind == "dia":
        assert (processor.longest, processor.longest_text) == (3072, 1024)
        sizes = [("text", "longest_text", inputs["input_ids"].shape[1])]
        sizes.append(("frames", "longest", inputs["decoder_input_ids"].shape[1]))
    cut = MonoCut("x", 0, 20 / processor.frame_rate, 0, custom={"text": example.text})
    for what, limit, size in sizes:
        monkeypatch.setattr(processor, limit, size)
        assert ModelDrops(Speak(), processor, True)(cut) is None
        monkeypatch.setattr(processor, limit, size - 1)
        reason, message = ModelDrops(Speak(), processor, True)(cut)
        assert reason == "too_long" and f"x: {size} positions of {what}; the model has {size - 1} (" in message
        monkeypatch.undo()


def test_what_is_spoken_depends_on_prompt_and_seed_alone(bundle):
    processor, model = bundle.processor, bundle.model
    codes = examples(bundle)[1].extra["codes"]
    prompts = [processor.utterance("one", reference=r, frames=4) for r in (None, (codes, ""), (codes, "five"))]
    model.options = {"do_sample": True, "temperature": 1.0}
    state = torch.get_rng_state()
    together = model.speak(prompts, seeds=[1, 2, 3], steps=4, guidance=2.0)
    alone = [model.speak([p], seeds=[s])[0] for p, s in zip(prompts, (1, 2, 3))]
    other = model.speak(prompts[:1], seeds=7)[0]
    model.options = {}
    assert torch.equal(torch.get_rng_state(), state)  # what chance there is elsewhere goes on as it did
    for a, b in zip(together, alone):
        assert a.shape[0] == processor.codebooks and 1 <= a.shape[1] <= 2 * 4 + round(processor.frame_rate)
        assert a.min() >= 0 and a.max() < processor.codec.vocabulary and np.array_equal(a, b)
    assert not np.array_equal(together[0], other)


@pytest.mark.parametrize("voice", [False, True])
def test_what_is_spoken_is_what_transformers_says(kind, bundle, plain, voice):
    """Without chance, alone and after a recording with its text."""
    (audio,) = clips(bundle, 0.56)
    codes = bundle.processor.codec.encode([audio])[0]
    reference = (codes, "four") if voice else None
    prompt = bundle.processor.utterance("one two", reference=reference, frames=6)
    bundle.model.options = {"do_sample": False}
    (ours,) = bundle.model.speak([prompt])
    bundle.model.options = {}
    model, processor = plain
    with torch.no_grad():
        theirs = SAID[kind](model, processor, "one two", ("four", audio) if voice else None, prompt.limit)
    assert np.array_equal(ours, theirs.clip(0, bundle.processor.vocabulary - 1))  # untrained, it gives special codes


def test_exports_load_again_and_hold_the_codec(bundle, export, kind):
    again = type(bundle.family).load(export)
    state = bundle.model.state_dict()
    assert {n: t.shape for n, t in again.model.state_dict().items()} == {n: t.shape for n, t in state.items()}
    assert all(torch.equal(state[name], tensor) for name, tensor in again.model.state_dict().items())
    codes = examples(bundle)[0].extra["codes"]
    spawned = pickle.loads(pickle.dumps(bundle.processor))
    for processor in (again.processor, spawned):
        assert np.array_equal(processor.codec.decode([codes])[0], bundle.processor.codec.decode([codes])[0])
        assert processor.prompt_ids("one", None) == bundle.processor.prompt_ids("one", None)
    facts = json.loads((export / "config.json").read_text())
    assert facts["model_type"] == kind and facts["architectures"] == [bundle.processor.architecture]


def test_guided_models_are_trained_without_text_too(bundle):
    (blind,) = [item(bundle, "one two", clips(bundle, 0.5)[0], drop=1.0)]
    ids = bundle.processor.text_ids(blind)
    told = bundle.processor.prompt_ids("one two", None)
    assert ids == (told if bundle.processor.blank is None else [bundle.processor.blank] * len(told))


def test_a_codec_that_is_not_the_models_is_refused(bundle, export, tmp_path):
    from stentor.models.codecs.base import Codec

    rng = np.random.default_rng(0)
    other = Codec.model_validate({"type": "mel_rvq", "codebooks": 7, "entries": 8, "rounds": 1})
    other.fit([rng.standard_normal(16000).astype(np.float32)]).save(tmp_path / "codec")
    section = {"type": bundle.model.config.model_type, "from": str(export), "codec": {"type": "mel_rvq"}}
    with pytest.raises(ConfigError, match="was not trained on"):
        build(section["type"], tmp_path, **section)
    section["codec"] = {"type": "mel_rvq", "from": str(tmp_path / "codec")}
    with pytest.raises(ConfigError, match=r"7 codebooks of 8 entries, the model .* do not fit"):
        build(section["type"], tmp_path, **section)


def test_an_export_on_the_hub_brings_its_codec(bundle, export, hub):
    api = HfApi()
    api.create_repo("tester/voice")
    api.upload_folder(repo_id="tester/voice", folder_path=export)
    section = {"type": "tts", "from": "tester/voice"}
    again = Family.model_validate(section).build(TaskRequirements("speak", ("codes",)))
    audios = clips(bundle, 0.5, 0.8)
    expected = bundle.processor.codec.encode(audios)
    assert all(np.array_equal(a, b) for a, b in zip(again.processor.codec.encode(audios), expected, strict=True))
    assert type(again.processor.codec) is NeuralCodec  # of `audio_tokenizer`, not the part of the model


@pytest.mark.parametrize("name", ["bark", "vits"])
def test_what_transformers_cannot_train_is_refused(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": name}))
    with pytest.raises(ConfigError, match=f"of the type {name}, which transformers runs but cannot train"):
        build("csm", tmp_path, **{"from": str(tmp_path)})


@pytest.mark.parametrize("kind_of_them", KINDS)
def test_former_and_short_names(kind_of_them):
    section = {"type": kind_of_them, "config": {"hidden_size": 8}, "tokenizer": "somewhere"}
    family = Family.model_validate(section)
    assert family.type == "tts" and family.config["model_type"] == kind_of_them == family.recipe_name()


def test_a_new_csm_has_no_codec(tmp_path):
    section = {"type": "csm", "config": CONFIGS["csm"], "tokenizer": str(write_csm(tmp_path))}
    with pytest.raises(ConfigError, match=r"inside a new CSM is untrained, all its codes are 0: add `codec:"):
        Family.model_validate(section).build(TaskRequirements("speak", ("codes",)))
