"""Model folders of OmniVoice: published checkpoints, exports, adapters, stages."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_families import save
from tiny_omnivoice import BOOKS, ENTRIES, LLMS, TEXTS, build, enlarge, examples, sums

from stentor.errors import ConfigError
from stentor.inference.load import from_runs
from stentor.models.base import Bundle, Family, TaskRequirements
from stentor.models.codecs.base import Codec
from stentor.models.omnivoice.config import OmniVoice
from stentor.models.pretrained.load import NotAtHand
from stentor.models.skeleton import skeleton
from stentor.models.text.tokenizers import characters

torch.set_num_threads(1)
PUBLISHED = {
    "architectures",
    "model_type",
    "audio_vocab_size",
    "audio_mask_id",
    "num_audio_codebook",
    "audio_codebook_weights",
    "llm_config",
}
SPECIAL = "<|denoise|> <|lang_start|> <|lang_end|> <|instruct_start|> <|instruct_end|> <|text_start|> <|text_end|>"
LORA = {"rank": 2, "alpha": 4, "dropout": 0.0}
WEIGHTS = [8, 4, 2, 1]


@pytest.fixture(scope="module")
def codec(tmp_path_factory) -> Path:
    """The folder of a codec that fits the tiny model."""
    rng = np.random.default_rng(0)
    audio = [(0.1 * rng.standard_normal(16000)).astype(np.float32) for _ in range(4)]
    section = Codec.model_validate({"type": "mel_rvq", "codebooks": BOOKS, "entries": ENTRIES, "mels": 20, "rounds": 2})
    folder = tmp_path_factory.mktemp("codec")
    section.fit(audio, seed=0).save(folder)
    return folder


@pytest.fixture(scope="module")
def published(tmp_path_factory, codec) -> Path:
    """A checkpoint as k2-fsa publishes it, written without any of our code: a Qwen3 under `llm.`, the tables, the
    tokenizer's files with the special tokens, and the codec."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3Model

    folder = tmp_path_factory.mktemp("published")
    letters = ["<pad>", "<unk>", *sorted(set("".join(TEXTS)) | set("None en"))]
    inner = Tokenizer(models.WordLevel({c: i for i, c in enumerate(letters)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    inner.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL.split()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>")
    tokenizer.save_pretrained(folder)
    settings = {**LLMS["qwen3"], "vocab_size": len(tokenizer)}
    settings.pop("model_type")
    torch.manual_seed(3)
    llm = Qwen3Model(Qwen3Config(**settings))
    enlarge(llm)
    rows = BOOKS * (ENTRIES + 1)
    tensors = {f"llm.{name}": tensor for name, tensor in llm.state_dict().items()}
    tensors["audio_embeddings.weight"] = 0.3 * torch.randn(rows, 32)
    tensors["audio_heads.weight"] = 0.3 * torch.randn(rows, 32)
    tensors["codebook_layer_offsets"] = torch.arange(BOOKS) * (ENTRIES + 1)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["OmniVoice"],
        "audio_codebook_weights": WEIGHTS,
        "audio_mask_id": ENTRIES,
        "audio_vocab_size": ENTRIES + 1,
        "model_type": "omnivoice",
        "num_audio_codebook": BOOKS,
        "dtype": "float32",
        "llm_config": json.loads(llm.config.to_json_string(use_diff=False)),
        "transformers_version": "5.3.0",
    }
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copytree(codec, folder / "audio_tokenizer")
    return folder


def of(source: Path | str, **keys) -> Bundle:
    needs = TaskRequirements("speak", ("codes",), lambda: iter(TEXTS), codebook_weights=keys.pop("weights", None))
    return OmniVoice.model_validate({"type": "omnivoice", "from": str(source), **keys}).build(needs)


@torch.no_grad()
def loss(bundle: Bundle) -> list[float]:
    bundle.model.eval()
    return [float(v) for v in sums(bundle, examples()).values()]


def test_a_published_checkpoint_loads_and_exports_to_the_same(published, tmp_path):
    bundle = of(published)
    assert bundle.codebooks == BOOKS and bundle.model.mask_id == ENTRIES
    assert bundle.processor.codec.type == "mel_rvq"
    folder = save(bundle, tmp_path / "export")
    before, after = load_file(published / "model.safetensors"), load_file(folder / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    configs = [json.loads((f / "config.json").read_text()) for f in (published, folder)]
    assert set(configs[1]) >= PUBLISHED
    for key in PUBLISHED - {"llm_config"}:
        assert configs[0][key] == configs[1][key], key
    # Nothing of the causal mask that was taken away reaches the file.
    for key, value in configs[1]["llm_config"].items():
        assert configs[0]["llm_config"].get(key) == value, key
    assert {p.name for p in folder.iterdir()} >= {"tokenizer.json", "tokenizer_config.json", "stentor.json"}
    assert {p.name for p in (folder / "audio_tokenizer").iterdir()} == {"config.json", "model.safetensors"}
    # and the export is a checkpoint again, without what is ours
    (folder / "stentor.json").unlink()
    assert loss(of(folder)) == loss(bundle) == loss(OmniVoice.load(published))


def test_special_tokens_are_the_published_ones_in_their_order(published):
    built = build().processor.tokenizer
    assert built.convert_ids_to_tokens(range(len(built) - 7, len(built))) == SPECIAL.split()
    for tokenizer in (built, of(published).processor.tokenizer):
        ids = tokenizer("<|text_start|>one<|text_end|>", add_special_tokens=False)["input_ids"]
        assert tokenizer.convert_ids_to_tokens(ids) == ["<|text_start|>", *"one", "<|text_end|>"]
    ids = of(published).processor.text_ids("one", "en", None, denoise=True)
    assert "".join(tokenizer.convert_ids_to_tokens(ids)) == (
        "<|denoise|><|lang_start|>en<|lang_end|><|instruct_start|>None<|instruct_end|><|text_start|>one<|text_end|>"
    )


def test_a_model_from_scratch_is_the_same_when_it_was_save(tmp_path, codec):
    bundle = build(codec={"type": "mel_rvq", "from": str(codec)}, codebooks=None, entries=None)
    folder = save(bundle, tmp_path / "export")
    again = Family.choices()["omnivoice"].load(folder)
    assert loss(again) == loss(bundle)
    assert not any(p.requires_grad for p in again.model.parameters())
    assert again.processor.codec.codebooks == BOOKS and again.processor.vocabulary == ENTRIES
    config = json.loads((folder / "config.json").read_text())
    assert config["audio_codebook_weights"] == [8, 6, 4, 2] and config["audio_vocab_size"] == ENTRIES + 1
    other = save(of(folder, weights=[4.0, 3.0, 2.0, 1.0]), tmp_path / "other")
    assert json.loads((other / "config.json").read_text())["audio_codebook_weights"] == [4.0, 3.0, 2.0, 1.0]


# Adapters


def trained(bundle: Bundle) -> Bundle:
    """A few steps on one batch."""
    optimizer = torch.optim.SGD([p for p in bundle.model.parameters() if p.requires_grad], 1e-2)
    for _ in range(2):
        sum(sums(bundle, examples()).values()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return bundle


def test_adapters_are_exported_alone_with_what_is_trained_whole(published, tmp_path):
    from peft import PeftModel

    bundle = of(published, lora=LORA)
    names = {n for n, p in bundle.model.named_parameters() if p.requires_grad}
    assert {n for n in names if ".lora_" not in n} == {"audio_embeddings.weight", "audio_heads.weight"}
    projections = {n.split(".lora_")[0].rpartition(".")[2] for n in names if ".lora_" in n}
    assert projections == {f"{p}_proj" for p in ("q", "k", "v", "o", "gate", "up", "down")}
    trained(bundle)
    folder = save(bundle, tmp_path / "export")
    assert not (folder / "model.safetensors").exists()
    adapters = load_file(folder / "adapter_model.safetensors")
    peft = json.loads((folder / "adapter_config.json").read_text())
    assert peft["modules_to_save"] == ["audio_embeddings", "audio_heads"] and peft["r"] == 2
    assert "base_model.model.audio_heads.weight" in adapters
    assert "base_model.model.llm.layers.0.self_attn.q_proj.lora_A.weight" in adapters
    plain = OmniVoice.load(published)
    before = loss(plain)
    plain.model = PeftModel.from_pretrained(plain.model, folder).eval()  # names and targets are PEFT's own
    for again in (OmniVoice.load(folder), OmniVoice.load(folder, trainable=True), of(folder), plain):
        assert loss(again) == pytest.approx(loss(bundle), rel=1e-5) != before
    assert peft["base_model_name_or_path"] == str(published)
    bundle.family.save_merged(bundle, tmp_path / "merged")
    assert not (tmp_path / "merged" / "adapter_model.safetensors").exists()
    assert loss(OmniVoice.load(tmp_path / "merged")) == pytest.approx(loss(bundle), rel=1e-5)
    assert set(load_file(tmp_path / "merged" / "model.safetensors")) == set(load_file(published / "model.safetensors"))


def test_an_untrained_backbone_is_written_beside_its_adapters(tmp_path):
    bundle = trained(build(lora=LORA))
    folder = save(bundle, tmp_path / "export")
    assert all(name.startswith(("llm.", "codebook")) for name in load_file(folder / "model.safetensors"))
    assert loss(OmniVoice.load(folder)) == pytest.approx(loss(bundle), rel=1e-5)


def test_a_language_model_is_the_base_of_adapters(published, tmp_path):
    """`llm: {from: ...}`: the tokenizer gets the special tokens, and what is frozen stays with the base."""
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    base = tmp_path / "qwen"
    tokenizer = AutoTokenizer.from_pretrained(published)
    settings = {k: v for k, v in LLMS["qwen3"].items() if k != "model_type"}
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**settings, vocab_size=len(tokenizer) + 20)).save_pretrained(base)
    tokenizer.save_pretrained(base)
    keys = {"llm": {"from": str(base)}, "text": None}
    plain = build(**keys)
    assert len(plain.model.llm.embed_tokens.weight) == len(plain.processor.tokenizer) == len(tokenizer)
    bundle = trained(build(**keys, lora=LORA))
    folder = save(bundle, tmp_path / "export")
    assert not (folder / "model.safetensors").exists()
    assert loss(OmniVoice.load(folder)) == pytest.approx(loss(bundle), rel=1e-5)
    full = save(trained(plain), tmp_path / "whole")
    assert "llm.embed_tokens.weight" in load_file(full / "model.safetensors")
    assert loss(OmniVoice.load(full)) == loss(plain)


# Stages


def test_init_goes_on_with_the_same_adapters_and_folds_others(published, tmp_path):
    first = trained(of(published, lora=LORA))
    folder = save(first, tmp_path / "first")
    same = of(published, lora=LORA, init=str(folder))
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(same.model.state_dict()[name], tensor), name
    other = of(published, lora={**LORA, "rank": 3}, init=str(folder))
    plain = of(published, init=str(folder))
    assert loss(same) == loss(first)
    for bundle in (other, plain):
        assert loss(bundle) == pytest.approx(loss(first), rel=1e-5)
    # What was folded in is no longer the base's: the next export must hold it.
    again = save(trained(other), tmp_path / "second")
    assert loss(OmniVoice.load(again)) == pytest.approx(loss(other), rel=1e-5)


# What is wrong


def without_norm(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("llm.norm.weight")
    save_file(tensors, folder / "model.safetensors")


def with_two_codebooks(folder: Path) -> None:
    facts = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**facts, "num_audio_codebook": 2}))


MANY = ["".join(map(chr, range(65, 200)))]
WRONG = {
    "holds no model: it has no config.json": lambda folder: (folder / "config.json").unlink(),
    r"1 weights of .* do not fit its config.json, for example llm.norm.weight": without_norm,
    r"\(\*.safetensors\) cannot be read: a file is damaged or cut short": lambda folder: os.truncate(
        folder / "model.safetensors", 5000
    ),
    "audio_tokenizer holds no codec": lambda folder: (folder / "audio_tokenizer" / "config.json").unlink(),
    r"has \d+ tokens and the model \d+ text embeddings": lambda folder: build(
        texts=MANY
    ).processor.tokenizer.save_pretrained(folder),
    r"has no <\|denoise\|>: it is not that of an OmniVoice model": lambda folder: characters(["abc"]).save_pretrained(
        folder
    ),
    "has 4 codebooks of 12 entries, the model 2 of 12: they do not fit": with_two_codebooks,
}


@pytest.mark.parametrize(("message", "change"), WRONG.items())
def test_what_is_wrong_with_a_folder_is_said(message, change, published, tmp_path):
    folder = Path(shutil.copytree(published, tmp_path / "copy"))
    change(folder)
    with pytest.raises(ConfigError, match=message):
        of(folder)


def test_what_is_no_model_is_said(published, tmp_path, codec):
    with pytest.raises(ConfigError, match=r"the folder .*nowhere does not exist"):
        of(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="of the type mel_rvq, not omnivoice"):
        of(codec)
    with pytest.raises(ConfigError, match="trained with one loss term named `codes`, not text"):
        build(terms=("codes", "text"))
    bare = Path(shutil.copytree(published, tmp_path / "bare"))
    shutil.rmtree(bare / "audio_tokenizer")
    assert of(bare).processor.codec is None  # enough for token shards


@pytest.mark.parametrize(
    "keys, message",
    [
        ({}, "needs exactly one of `from`"),
        ({"from": "x", "llm": {"from": "y"}}, "needs exactly one of `from`"),
        ({"from": "x", "text": "characters"}, "the model of `from` has its own"),
        ({"from": "x", "codebooks": 8}, "the model of `from` has its own"),
        ({"llm": {"config": LLMS["qwen3"]}}, "set `model.text: {type: characters}`"),
        ({"llm": {"from": "x"}, "text": "characters"}, "comes with its own tokenizer"),
        ({"llm": {"config": {"hidden_size": 3}}, "text": "bpe"}, "`config` needs `model_type`"),
    ],
)
def test_settings_that_do_not_go_together(keys, message):
    with pytest.raises(ValueError, match=message):
        OmniVoice.model_validate({"type": "omnivoice", **keys})


def test_a_codec_that_does_not_fit_is_refused(published, tmp_path):
    rng = np.random.default_rng(0)
    section = Codec.model_validate({"type": "mel_rvq", "codebooks": 2, "entries": 8, "mels": 20, "rounds": 1})
    section.fit([rng.standard_normal(16000).astype(np.float32)]).save(tmp_path / "codec")
    with pytest.raises(ConfigError, match=r"model.codec: .* has 2 codebooks of 8 entries, the model 4 of 12"):
        of(published, codec={"type": "mel_rvq", "from": str(tmp_path / "codec")})
    with pytest.raises(ConfigError, match="nowhere does not exist"):
        of(published, codec={"type": "mel_rvq", "from": str(tmp_path / "nowhere")})


def test_a_codec_is_not_fitted_anew_for_a_model_that_has_one(published, tmp_path):
    """Its codes would mean something else."""
    bundle = of(published, codec={"type": "mel_rvq"})
    assert bundle.processor.codec.vocabulary == ENTRIES
    bare = Path(shutil.copytree(published, tmp_path / "bare"))
    shutil.rmtree(bare / "audio_tokenizer")
    with pytest.raises(ConfigError, match=r"would give codes that the model of `from` was not trained on"):
        of(bare, codec={"type": "mel_rvq"})
    first = save(build(), tmp_path / "first")
    with pytest.raises(ConfigError, match=r"first has no audio_tokenizer folder"):
        build(codec={"type": "mel_rvq"}, init=str(first))


def test_frozen_weights_may_be_kept_in_bfloat16(published, tmp_path):
    bundle = trained(of(published, lora=LORA, dtype="bfloat16"))
    kinds = {p.dtype for n, p in bundle.model.named_parameters() if n.startswith("llm.") and ".lora_" not in n}
    assert kinds == {torch.bfloat16}
    assert {p.dtype for p in bundle.model.parameters() if p.requires_grad} == {torch.float32}
    again = OmniVoice.load(save(bundle, tmp_path / "export"))
    assert loss(again) == pytest.approx(loss(bundle), rel=2e-2)


def test_a_model_starts_from_a_run_folder():
    """The check of a config leaves it to the build of the model, which takes the export of the run."""
    run = Path(__file__).parents[1] / "frozen" / "runs" / "omnivoice" / "run"
    family = OmniVoice.model_validate({"type": "omnivoice", "from": str(run)})
    with pytest.raises(NotAtHand):
        skeleton(family, TaskRequirements("speak", ("codes",)))
    assert from_runs(family).source == str(run / "checkpoints" / "step-000002" / "export")
