"""VoxLM's checkpoints: the imported model gives the logits that VoxLM's own computation gives, by a reference here."""

import json
import sys
import types

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from torch.nn import functional as F
from transformers import Qwen2Config, Qwen2ForCausalLM, WhisperConfig, WhisperFeatureExtractor, WhisperModel

from stentor.data.batch import Example
from stentor.errors import ConfigError
from stentor.inference.load import load
from stentor.models.base import TaskRequirements
from stentor.models.speech_llm.config import SpeechLLM
from stentor.models.text.tokenizers import bpe

torch.set_num_threads(1)

WIDTH, RANK, ALPHA = 32, 4, 12
TEXT = "three blue boats"
INSTRUCTION = "Transcribe the following audio."
AUDIO = 0.1 * np.random.default_rng(0).standard_normal(20_000).astype(np.float32)
TOKENS = ["<|audio|>", "<|/audio|>", "<|transcribe|>"]


class Theirs:
    """A small VoxLM: its parts, its checkpoint's tensors, and the logits that they stand for."""

    def __init__(self, folder, factor=4, lora=True, tied=True, pad_is_eos=False, dtype=torch.float32):
        torch.manual_seed(0)
        self.folder, self.factor, self.dtype = folder, factor, dtype
        self.tokenizer = bpe([f"{TEXT} {INSTRUCTION}"] * 9, 290)
        if pad_is_eos:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.tokenizer.save_pretrained(folder / "llm")
        sizes = {"hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = Qwen2Config(vocab_size=400, num_key_value_heads=2, tie_word_embeddings=tied, **sizes)
        config.initializer_range, config.pad_token_id = 0.3, None
        config.save_pretrained(folder / "llm")
        added = [*(["<|pad|>"] if pad_is_eos else []), *TOKENS]
        config.vocab_size = len(self.tokenizer) + len(added)
        self.llm = Qwen2ForCausalLM(config).eval()
        for parameter in self.llm.parameters():
            parameter.data = parameter.data.to(dtype).float()
        self.embeddings = self.llm.get_input_embeddings()
        if lora:
            targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
            self.llm = get_peft_model(self.llm, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets)).eval()
            for name, parameter in self.llm.named_parameters():
                if "lora_" in name:
                    parameter.data = 0.3 * torch.randn(parameter.shape)
        self.transcribe = config.vocab_size - 1
        ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 0)
        layers = {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
        config = WhisperConfig(d_model=16, encoder_ffn_dim=32, decoder_ffn_dim=8, vocab_size=9, **layers, **ids)
        config.init_std = 0.3
        config.save_pretrained(folder / "whisper")
        self.whisper = WhisperModel(config).eval()
        made = {"0": (WIDTH, 16), "3": (WIDTH, WIDTH)}
        self.tensors = {"audio_start_embed": torch.randn(WIDTH), "audio_end_embed": torch.randn(WIDTH)}
        self.tensors |= {f"audio_projection.projection.{n}.weight": 0.3 * torch.randn(s) for n, s in made.items()}
        self.tensors |= {f"audio_projection.projection.{n}.bias": torch.randn(WIDTH) for n in made}
        if factor > 1:
            self.tensors["audio_projection.downsample.weight"] = 0.1 * torch.randn(WIDTH, WIDTH, factor)
            self.tensors["audio_projection.downsample.bias"] = torch.randn(WIDTH)

    def state(self):
        """All tensors by VoxLM's names: the encoder twice, PEFT's wrapping of the language model, its own parts."""
        state = {f"audio_encoder.whisper.{n}": t for n, t in self.whisper.state_dict().items()}
        state |= {f"audio_encoder.encoder.{n}": t for n, t in self.whisper.encoder.state_dict().items()}
        for name, tensor in self.llm.state_dict().items():
            state[f"llm.{name}"] = tensor if "lora_" in name else tensor.to(self.dtype)
        return state | self.tensors | {"alignment_module.query_proj.weight": torch.zeros(2, 2)}

    def settings(self):
        parts = {"audio_encoder": str(self.folder / "whisper"), "llm_model": str(self.folder / "llm")}
        return parts | {"lora_alpha": ALPHA}

    @torch.no_grad()
    def logits(self):
        """At each position that predicts a token of the text and its end."""
        mel = WhisperFeatureExtractor(feature_size=80)(AUDIO, sampling_rate=16000, return_tensors="pt").input_features
        layers = [
            [self.tensors[f"audio_projection.projection.{n}.{kind}"] for kind in ("weight", "bias")] for n in "03"
        ]
        audio = self.whisper.encoder(mel).last_hidden_state
        audio = F.linear(F.gelu(F.linear(audio, *layers[0])), *layers[1])
        if self.factor > 1:
            joined = [self.tensors[f"audio_projection.downsample.{kind}"] for kind in ("weight", "bias")]
            audio = F.conv1d(audio.transpose(1, 2), *joined, stride=self.factor).transpose(1, 2)
        start, end = (self.tensors[f"audio_{side}_embed"][None].to(self.dtype).float() for side in ("start", "end"))
        text = [*self.tokenizer(TEXT).input_ids, self.tokenizer.eos_token_id]
        words = [torch.tensor(ids) for ids in (self.tokenizer(INSTRUCTION).input_ids, [self.transcribe], text)]
        before, transcribe, after = map(self.embeddings, words)
        sequence = torch.cat([before, start, audio[0], end, transcribe, after])
        return self.llm(inputs_embeds=sequence[None]).logits[0, -len(text) - 1 : -1]


def ours(bundle):
    batch = bundle.processor.collate([Example(id="a", audio=AUDIO, text=TEXT)])
    with torch.no_grad():
        head = bundle.model.eval()(**batch.inputs)["text"]
    return F.linear(head["hidden"], head["weight"])


def checkpoint(theirs, layout, monkeypatch):
    """The checkpoint as VoxLM's training, or one of its two ways to publish, writes it."""
    state, settings = theirs.state(), theirs.settings()
    if layout == "published":
        save_file({n: t.clone().contiguous() for n, t in state.items()}, theirs.folder / "model.safetensors")
        (theirs.folder / "config.json").write_text(json.dumps({"model_type": "voxlm", **settings}))
        return theirs.folder
    content = {"epoch": 1, "model_state_dict": state, "val_loss": 0.5}
    if layout == "uploaded":
        settings["whisper_model"] = settings.pop("audio_encoder")
        (theirs.folder / "config.json").write_text(json.dumps(settings))
        torch.save(content, theirs.folder / "model.pt")
        return theirs.folder
    module = types.ModuleType("src.config")
    module.VoxLMConfig = type("VoxLMConfig", (), {"__module__": "src.config"})
    monkeypatch.setitem(sys.modules, "src", types.ModuleType("src"))
    monkeypatch.setitem(sys.modules, "src.config", module)
    content["config"] = module.VoxLMConfig()
    vars(content["config"]).update(settings)
    state = {f"_orig_mod.{name}": tensor for name, tensor in state.items()}  # of torch.compile
    torch.save(content | {"model_state_dict": state}, theirs.folder / "best_phase2.pt")
    return theirs.folder / "best_phase2.pt"


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        ("trained", {}),
        ("published", {"tied": False, "factor": 2, "dtype": torch.bfloat16}),
        ("uploaded", {"lora": False, "factor": 1, "pad_is_eos": True}),
    ],
)
def test_the_logits_are_those_of_voxlm(tmp_path, attempt, monkeypatch, layout, options):
    theirs = Theirs(tmp_path, **options)
    source = checkpoint(theirs, layout, monkeypatch)
    code, shown = attempt("import", "voxlm", source, "--to", tmp_path / "ours")
    assert code == 0 and "Not imported: the alignment module" in shown, shown
    if layout != "uploaded":
        with pytest.raises(ConfigError, match=r"`?stentor import voxlm"):
            load(source, "cpu")
    bundle = load(tmp_path / "ours", "cpu").bundle
    expected = theirs.logits()
    torch.testing.assert_close(ours(bundle), expected, rtol=1e-4, atol=2e-5)
    # The section that it prints trains on from there; adapters continue.
    family = bundle.family.model_copy(update={"init": str(tmp_path / "ours")})
    further = family.build(TaskRequirements("transcribe", ("text",)))
    torch.testing.assert_close(ours(further), expected, rtol=1e-4, atol=2e-5)
    trained = {name.partition(".")[0] for name, p in further.model.named_parameters() if p.requires_grad}
    assert trained == {"projector", "llm"} and isinstance(theirs.llm, PeftModel) == (family.lora is not None)
    assert SpeechLLM.model_validate(family.model_dump(by_alias=True)) == family


class Trap:
    def __reduce__(self):
        return print, ("run",)


def test_a_wrong_checkpoint_is_refused_in_a_sentence(tmp_path, attempt, monkeypatch):
    theirs = Theirs(tmp_path)

    def refusal(source=tmp_path):
        code, shown = attempt("import", "voxlm", source, "--to", tmp_path / "ours")
        assert code == 2 and not (tmp_path / "ours").exists()
        return shown

    assert "holds none of model.safetensors, model.pt" in refusal()
    (tmp_path / "model.pt").write_bytes(b"not a checkpoint")
    assert "cannot be read as a checkpoint of torch" in refusal()
    torch.save({"model_state_dict": {}, "config": Trap()}, tmp_path / "model.pt")
    assert "model.pt holds objects that may run code and are never loaded: builtins.print" in refusal()
    torch.save({"model_state_dict": {"a": torch.zeros(1)}}, tmp_path / "model.pt")
    assert "is no checkpoint of VoxLM" in refusal()
    (tmp_path / "config.json").write_text("{")
    assert "config.json is damaged (" in refusal()
    (tmp_path / "config.json").unlink()
    torch.save({"model_state_dict": theirs.state()}, tmp_path / "model.pt")
    assert "audio_encoder and llm_model are not known: write them to" in refusal()
    source = checkpoint(theirs, "uploaded", monkeypatch)
    state = theirs.state()
    for change, says in (
        ({"llm.base_model.model.lm_head.weight": torch.zeros(7, WIDTH)}, "it writes 7 tokens, and the tokenizer of"),
        ({"audio_encoder.encoder.conv1.weight": torch.zeros(1)}, "is not of"),
        (
            {"audio_encoder.encoder.conv9.weight": torch.zeros(1)},
            "1 tensors differ, such as encoder.conv9.weight: [1] there, missing here.",
        ),
    ):
        torch.save({"model_state_dict": state | change}, source / "model.pt")
        assert says in refusal(source)
