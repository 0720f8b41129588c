"""Adapters over one base: the base is in memory once, and each model answers as it does alone."""

import torch

from stentor.inference.load import load
from stentor.models.base import Family, TaskRequirements
from stentor.tasks.decode_checks import Checks

TARGETS = ["*.q_proj", "*.v_proj"]


def adapter(base, folder, seed):
    """The export of an adapter over `base`, whose matrices have moved."""
    lora = {"rank": 2, "alpha": 4, "dropout": 0.0, "targets": TARGETS}
    family = Family.model_validate({"type": "seq2seq", "from": str(base), "lora": lora})
    bundle = family.build(TaskRequirements("transcribe", ("text",)))
    torch.manual_seed(seed)
    for name, parameter in bundle.model.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(std=0.5)
    state = bundle.model.state_dict()
    family.save(bundle, {name: state[name] for name in family.exported_tensor_names(bundle)}, folder)
    return folder


def unchecked(model):
    """The model, which answers although texts of random weights fail every check."""
    model.task = model.task.model_copy(update={"checks": Checks(on=False)})
    return model


def test_the_base_is_held_once(whisper, serve, tone, tmp_path):
    runs = [whisper, *(adapter(whisper, tmp_path / f"adapter{seed}", seed) for seed in (1, 2))]
    server, audio = serve(*runs), tone("a.wav", (1.5, -10))
    models = [unchecked(served.model).bundle.model for served in server.service.registry.models.values()]
    parameters = [{name: p.data_ptr() for name, p in model.named_parameters()} for model in models]
    names = {name for each in parameters for name in each}
    shared = {name for name in names if len({each.get(name) for each in parameters}) == 1}
    changed = {name for name in names if name.endswith(("q_proj.weight", "v_proj.weight"))}
    assert changed and shared == names - changed
    assert all(len({each[name] for each in parameters}) == 3 for name in changed)

    texts = []
    for run in runs:
        alone = unchecked(load(run, "cpu")).transcribe(audio, words=False, language="en").text
        texts.append(
            server.client.audio.transcriptions.create(file=audio, model=run.name, language="en", response_format="text")
        )
        assert texts[-1] == alone + "\n"
    assert len(set(texts)) == 3
