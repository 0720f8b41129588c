"""Configs of other systems, recognised by their keys, when one is given to a command that takes a run file."""

import re
import shlex
from pathlib import Path

from stentor.config.convert.draft import expanded
from stentor.config.document import Mistakes, Node, parse, read_text
from stentor.errors import ConfigError

_KEYS = {
    "voxlm": "training.phase1 training.phase2 model.audio_encoder model.llm_model",
    "omnivoice": (
        "llm_name_or_path audio_vocab_size audio_mask_id num_audio_codebook audio_codebook_weights drop_cond_ratio "
        "prompt_ratio_range mask_ratio_range language_ratio init_from_checkpoint data_config"
    ),
    "universal": (
        "model.model_type model.global_config global_config datasets training.epochs training.optimizer "
        "training.scheduler training.loss training.batch_size training.training_dataset_map"
    ),
}
"""Keys that no run file has, one of which is enough, by the converter; in the order in which they are tried."""
_VOXTRAL = {
    *expanded("{per_device_train,train,eval}_batch_size"),
    *expanded("dataset_{jsonl,name,config}"),
    *expanded("lora_{r,alpha,dropout}"),
    *expanded("{model_checkpoint,use_lora,learning_rate,num_train_epochs,epochs,grad_accum,output_dir,save_steps}"),
}
"""Options of the Voxtral scripts, two of which are enough."""
_TITLES = {"voxlm": "VoxLM", "omnivoice": "OmniVoice", "universal": "the universal training pipeline"}
_TITLES |= {"voxtral": "the Voxtral scripts"}
_SCRIPT = re.compile(r"^[^#\n]*\btrain(_lora|_asr|_st|_multitask)?\.py\b", re.MULTILINE)


def refuse_foreign(path: Path) -> None:
    """Raise ConfigError that names the converter if a file is a config of another system."""
    text = read_text(path)
    try:
        root = parse(text, str(path), 0, [], path.suffix == ".json").value
    except Mistakes:
        root = None
    if isinstance(root, dict):
        converter = _converter(root)
    else:
        root, converter = {}, "voxtral" if _SCRIPT.search(text) else None
    if converter is None:
        return
    files = ("TRAINING_CONFIG.json " if "train" in root else "") + shlex.quote(str(path))
    raise ConfigError(
        f"{path} is a config of {_TITLES[converter]}, not a run file. Convert it: `stentor "
        f"config convert {converter} {files} --to runs.d`, and train the file that this writes."
    )


def _converter(root: dict[str, Node]) -> str | None:
    """The converter for a config with these values; None for a run file and for what is not known."""
    inner = {f"{key}.{name}" for key, node in root.items() if isinstance(node.value, dict) for name in node.value}
    if {"task", "base"} & {*root} or "model.type" in inner:
        return None
    for converter, keys in _KEYS.items():
        if {*keys.split()} & ({*root} | inner):
            return converter
    if isinstance(entries := root["train"].plain() if "train" in root else None, list) and any(
        isinstance(entry, dict) and "manifest_path" in entry for entry in entries
    ):
        return "omnivoice"
    names = {key.rpartition(".")[2].replace("-", "_") for key in ({*root} | inner)}
    return "voxtral" if len(names & _VOXTRAL) > 1 else None
