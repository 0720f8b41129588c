"""What a server answers to many at once is what `stentor transcribe` answers to each alone: a Whisper with random
weights, whose texts follow every bit of the audio, its checks and its sampling included. Adapters over one base answer
as alone, too, and the base is in memory once."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from stentor.inference.load import load
from stentor.models.base import Family, TaskRequirements
from stentor.tasks.decode_checks import Checks

PARTS = (
    [(0.6, -10)],
    [(1.2, -11)],
    [(0.5, -12), (32, None), (0.7, -14)],  # two windows
    [(0.9, -13)],
    [(0.4, -15), (0.3, None), (0.5, -16)],
)


@pytest.fixture
def clips(tone):
    return [
        tone(f"{n}.{'wav' if n % 2 else 'flac'}", *parts, rate=16000 if n % 3 else 22050)
        for n, parts in enumerate(PARTS)
    ]


def few_attempts(model):
    """The model, which tries two temperatures: an answer of random weights fails every check."""
    checks = model.task.checks.model_copy(update={"temperatures": [0.0, 0.6]})
    model.task = model.task.model_copy(update={"checks": checks})
    return model


FIELDS = [{"language": "en"}, {"language": "de", "temperature": 0.4}, {}]


def test_many_at_once(whisper, serve, clips):
    """On one device and on two."""
    model = few_attempts(load(whisper, "cpu"))
    alone = [model.transcribe(clip, words=False, **FIELDS[n % 3]) for n, clip in enumerate(clips)]
    for devices in (["cpu"], ["cpu", "cpu"]):
        server = serve(whisper, names=[f"whisper-1={whisper}"], devices=devices)
        few_attempts(server.service.registry.models[whisper.name].model)
        with ThreadPoolExecutor(len(clips)) as threads:
            answers = threads.map(lambda n, server=server: asked(server, clips[n], n), range(len(clips)))
        for answer, expected in zip(answers, alone, strict=True):
            assert (answer.text, answer.duration) == (expected.text, expected["duration"])
            assert [(s.start, s.end, s.text, s.temperature) for s in answer.segments] == [
                (s["start"], s["end"], s["text"], s.get("temperature", 0.0)) for s in expected.segments
            ]


def asked(server, clip, n):
    ask = server.client.audio.transcriptions.create
    return ask(file=clip, model="whisper-1", response_format="verbose_json", **FIELDS[n % 3])


def test_translations(whisper, serve, clips):
    server = serve(whisper)
    name = whisper.name
    few_attempts(server.service.registry.models[name].model)
    alone = few_attempts(load(whisper, "cpu")).transcribe(clips[0], words=False, translate=True, prompt="Good morning")
    answer = server.client.audio.translations.create(file=clips[0], model=name, prompt="Good morning")
    assert answer.text == alone.text
    answer = server.client.audio.translations.create(file=clips[0], model=name, response_format="verbose_json")
    assert answer.language == "english" and answer.duration == 0.6


def adapter(base, folder, seed):
    """The export of an adapter over `base`, whose matrices have moved."""
    lora = {"rank": 2, "alpha": 4, "dropout": 0.0, "targets": ["*.q_proj", "*.v_proj"]}
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
