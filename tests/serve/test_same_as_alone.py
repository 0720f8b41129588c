"""What a server answers to many at once is what `stentor transcribe` answers to each alone: a Whisper with random
weights, whose texts follow every bit of the audio, its checks and its sampling included."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from stentor.inference.load import load

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


def test_weights_of_one_base_are_held_once(whisper, serve, tmp_path):
    import shutil

    other = tmp_path / "other"
    shutil.copytree(whisper, other)
    server = serve(whisper, other)
    first, second = (served.model.bundle.model for served in server.service.registry.models.values())
    pairs = list(zip(first.parameters(), second.parameters(), strict=True))
    assert pairs and all(a.data_ptr() == b.data_ptr() for a, b in pairs)
