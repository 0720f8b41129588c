"""POST /v1/audio/transcriptions as the unmodified openai client calls it."""

import json

import openai
import pytest

from stentor.inference.load import load

SPEECH = ((3, -10), (1, None), (2, -20))


def test_the_text_is_that_of_transcribe(talks, tone):
    path = tone("a.wav", (2, -10), (40, None), (2, -20), (30, None), (3, -30))
    alone = load(talks.service.registry.models["model"].model.folder).transcribe(path, words=False)
    with open(path, "rb") as file:
        answer = talks.client.audio.transcriptions.create(file=file, model="model")
    assert answer.text == alone.text == "level 10 level 20 level 30"
    assert (answer.usage.type, answer.usage.seconds) == ("duration", 77)


def test_formats_that_are_text(talks, tone, run):
    path, folder = tone("a.wav", *SPEECH), talks.service.registry.models["model"].model.folder
    for name, ending in (("text", "txt"), ("srt", "srt"), ("vtt", "vtt")):
        answer = talks.client.audio.transcriptions.create(file=path, model="model", response_format=name)
        _, printed, _ = run("transcribe", folder, path, "--format", ending)
        assert answer.rstrip("\n") == printed.rstrip("\n")


def test_subtitles_follow_the_word_times(worded, tone, run):
    path, folder = tone("a.wav", *SPEECH), worded.service.registry.models["model"].model.folder
    answer = worded.client.audio.transcriptions.create(file=path, model="model", response_format="srt")
    _, printed, _ = run("transcribe", folder, path, "--words", "--format", "srt")
    assert answer.rstrip("\n") == printed.rstrip("\n") and "00:00:00,100 --> " in answer
    fields = {"response_format": "vtt", "extra_body": {"cues": "words", "highlight_words": True, "cue_gap": 0.2}}
    answer = worded.client.audio.transcriptions.create(file=path, model="model", **fields)
    flags = ("--cues", "words", "--highlight-words", "--cue-gap", 0.2)
    _, printed, _ = run("transcribe", folder, path, "--words", "--format", "vtt", *flags)
    assert answer.rstrip("\n") == printed.rstrip("\n")


def test_verbose_json(talks, tone):
    path = tone("a.wav", (2, -10), (40, None), (2, -20))
    folder = talks.service.registry.models["model"].model.folder
    alone = load(folder).transcribe(path, words=False, language="de")
    answer = talks.client.audio.transcriptions.create(
        file=path, model="model", response_format="verbose_json", language="de", temperature=0
    )
    assert (answer.task, answer.language, answer.duration) == ("transcribe", "german", alone["duration"])
    assert answer.text == alone.text and answer.words is None
    assert [(s.start, s.end, s.text, s.avg_logprob) for s in answer.segments] == [
        (s["start"], s["end"], s["text"], s["log_prob"]) for s in alone.segments
    ]
    assert [s.id for s in answer.segments] == [0, 1] and answer.segments[0].tokens == []


def test_granularities_of_verbose_json(worded, tone):
    path = tone("a.wav", (2, -10), (40, None), (2, -20))
    alone = load(worded.service.registry.models["model"].model.folder).transcribe(path)
    words = [{k: w[k] for k in ("end", "start", "word")} for w in alone.words]
    for kinds in (["word"], ["segment"], ["word", "segment"]):
        answer = worded.client.audio.transcriptions.create(
            file=path, model="model", response_format="verbose_json", timestamp_granularities=kinds
        )
        assert (answer.segments is not None) == ("segment" in kinds)
        assert (answer.words and [w.model_dump() for w in answer.words]) == (words if "word" in kinds else None)


def test_log_probabilities(talks, tone):
    ask = talks.client.audio.transcriptions.create
    path = tone("a.wav", (2, -10), (40, None), (2, -20))
    answer = ask(file=path, model="model", include=["logprobs"])
    assert "".join(t.token for t in answer.logprobs) == "level 10level 20"
    assert {t.logprob for t in answer.logprobs} == {-0.1} and answer.logprobs[0].bytes == [ord("l")]
    events = list(ask(file=path, model="model", include=["logprobs"], stream=True))
    tokens = [t.token for e in events[:-1] for t in e.logprobs]
    assert tokens == [t.token for t in events[-1].logprobs] == [t.token for t in answer.logprobs]
    assert ask(file=path, model="model").logprobs is None


def test_who_speaks(speakers, talk):
    path = talk("a.wav", 20, [(0, 0.5, 5), (1, 6, 12), (0, 13, 19)])
    who = load(speakers.service.registry.diarizer.model.folder)
    alone = load(speakers.service.registry.models["model"].model.folder).transcribe(path, words=False, diarizer=who)
    answer = speakers.client.audio.transcriptions.create(
        file=path, model="model", response_format="diarized_json", chunking_strategy="auto"
    )
    assert [(s.start, s.end, s.text) for s in answer.segments] == [
        (s["start"], s["end"], s["text"]) for s in alone.segments
    ]
    assert [s.speaker for s in answer.segments] == ["A", "B", "A"]
    assert answer.text == alone.text and answer.segments[0].id == "seg_000"


def test_known_speakers(speakers, talk, monkeypatch):
    import base64

    monkeypatch.setattr(speakers.tones, "voices", True)
    path = talk("a.wav", 20, [(0, 0.5, 5), (1, 6, 12), (0, 13, 19)])
    sample = base64.b64encode(talk("bob.wav", 3, [(1, 0.2, 2.8)]).read_bytes()).decode()
    ask = speakers.client.audio.transcriptions.create
    fields = {"file": path, "model": "model", "response_format": "diarized_json", "known_speaker_names": ["Bob"]}
    answer = ask(**fields, known_speaker_references=[f"data:audio/wav;base64,{sample}"])
    unnamed = ask(file=path, model="model", response_format="diarized_json")
    assert [s.speaker for s in answer.segments] == ["A", "Bob", "A"]
    assert [(s.start, s.end, s.text) for s in answer.segments] == [(s.start, s.end, s.text) for s in unnamed.segments]
    short = base64.b64encode(talk("short.wav", 1, [(1, 0.2, 0.8)]).read_bytes()).decode()
    for url in ("https://example.org/a.wav", "data:audio/wav;base64,!!", f"data:audio/wav;base64,{short}"):
        with pytest.raises(openai.BadRequestError) as refusal:
            ask(**fields, known_speaker_references=[url])
        assert refusal.value.param == "known_speaker_references"


def test_events(talks, tone):
    path = tone("a.wav", (2, -10), (40, None), (2, -20), (30, None), (3, -30))
    events = list(talks.client.audio.transcriptions.create(file=path, model="model", stream=True))
    assert {e.type for e in events[:-1]} == {"transcript.text.delta"}
    assert events[-1].type == "transcript.text.done"
    assert "".join(e.delta for e in events[:-1]) == events[-1].text == "level 10 level 20 level 30"


def test_events_of_speakers(speakers, talk):
    path = talk("a.wav", 20, [(0, 0.5, 5), (1, 6, 12), (0, 13, 19)])
    events = list(
        speakers.client.audio.transcriptions.create(
            file=path, model="model", stream=True, response_format="diarized_json"
        )
    )
    assert [e.speaker for e in events if e.type == "transcript.text.segment"] == ["A", "B", "A"]
    segments = {e.id: e.text for e in events if e.type == "transcript.text.segment"}
    deltas = [e for e in events if e.type == "transcript.text.delta"]
    assert {e.segment_id: e.delta.strip() for e in deltas} == segments
    assert "".join(e.delta for e in deltas) == events[-1].text


VERBOSE = {"response_format": "verbose_json"}
WRONG = [
    ({"model": "other"}, 404, "model", "known: model"),
    ({"response_format": "json", "timestamp_granularities": ["word"]}, 400, "timestamp_granularities", "verbose_json"),
    (VERBOSE | {"timestamp_granularities": ["word"]}, 400, "timestamp_granularities", "no word"),
    ({"response_format": "docx"}, 400, "response_format", "'json', 'text'"),
    ({"response_format": "diarized_json"}, 400, "response_format", "--diarizer"),
    ({"response_format": "srt", "stream": True}, 400, "response_format", "not streamed"),
    ({"language": "klingonian"}, 400, "language", "There is no language"),
    ({"language": "İ"}, 400, "language", "There is no language"),
    ({"languages": ["en", "de"]}, 400, "languages", "one language"),
    ({"temperature": 1.5}, 400, "temperature", "must be a number from 0 to 1 or null, not 1.5"),
    ({"include": ["logprobs"], "response_format": "text"}, 400, "include", "response_format=json"),
    ({"known_speaker_names": ["Ann"]}, 400, "known_speaker_references", "needs one"),
    ({"extra_body": {"cue_gap": 1}}, 400, None, "cue_gap: only for subtitles, so add response_format srt"),
    ({"extra_body": {"max_line_width": 0}}, 400, "max_line_width", "must be a whole number"),
    ({"extra_body": {"languag": "en"}}, 400, "languag", "did you mean 'language'?"),
]


@pytest.mark.parametrize(("fields", "status", "param", "words"), WRONG, ids=lambda v: None)
def test_what_is_refused(talks, tone, fields, status, param, words):
    arguments = {"file": tone("a.wav", *SPEECH), "model": "model", **fields}
    with pytest.raises(openai.APIStatusError) as refusal:
        list(talks.client.audio.transcriptions.create(**arguments))
    assert (refusal.value.status_code, refusal.value.param) == (status, param)
    assert words in refusal.value.message


@pytest.mark.parametrize("content", [b"RIFF no audio", b"", b"\x00" * 50_000])
def test_what_is_no_audio(talks, tone, content):
    with pytest.raises(openai.BadRequestError) as refusal:
        talks.client.audio.transcriptions.create(file=("talk.wav", content), model="model")
    assert refusal.value.param == "file" and "/tmp" not in refusal.value.message
    assert "talk.wav" in refusal.value.message or not content
    answer = talks.client.audio.transcriptions.create(file=tone("a.wav", *SPEECH), model="model")
    assert answer.text == "level 10 level 20"


def test_what_is_there_of_a_file_that_is_cut_short(talks, tone):
    content = tone("a.wav", *SPEECH).read_bytes()
    files = {"file": ("a.wav", content[: len(content) // 2])}
    refused = talks.http.post("/v1/audio/transcriptions", data={"model": "model"}, files=files)
    assert refused.status_code == 400 and "partial=true in the form reads what is there" in refused.text
    answer = talks.http.post("/v1/audio/transcriptions", data={"model": "model", "partial": "true"}, files=files)
    assert answer.status_code == 200 and answer.json()["text"] == "level 10"


def test_speech_is_found_as_the_request_says(talks, tone):
    path = tone("a.wav", *SPEECH)
    vad = {"type": "server_vad", "silence_duration_ms": 500, "prefix_padding_ms": 100}
    answer = talks.client.audio.transcriptions.create(file=path, model="model", chunking_strategy=vad)
    assert answer.text == "level 10 level 20"
    alone = load(talks.service.registry.models["model"].model.folder).transcribe(path, min_silence=0.5, speech_pad=0.1)
    assert answer.text == alone.text


def test_other_addresses_and_methods(talks):
    for answer, status in ((talks.http.get("/v1/nothing"), 404), (talks.http.get("/v1/audio/transcriptions"), 405)):
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert talks.http.post("/v1/audio/transcriptions", json={}).json()["error"]["type"] == "invalid_request_error"


def test_models_health_and_metrics(export, serve, tone):
    folder = export()
    server = serve(folder, names=[f"whisper-1={folder}"])
    assert [m.id for m in server.client.models.list()] == ["model", "whisper-1"]
    assert server.client.models.retrieve("whisper-1").owned_by == "stentor"
    with pytest.raises(openai.NotFoundError):
        server.client.models.retrieve("gpt")
    path = tone("a.wav", *SPEECH)
    assert server.client.audio.transcriptions.create(file=path, model="whisper-1").text == "level 10 level 20"
    assert server.http.get("/health").json() == {"status": "ok", "requests": 0}
    lines = server.http.get("/metrics").text
    assert 'stentor_requests_total{route="/v1/audio/transcriptions",status="200"} 1.0' in lines
    page = json.dumps(server.http.get("/openapi.json").json())
    assert "/v1/audio/transcriptions" in page and "server_vad" in page and "$defs" not in page


def test_log_probabilities_that_json_does_not_know(talks, tone, monkeypatch):
    task = type(talks.service.registry.models["model"].model.task)
    predict = task.predict

    def impossible(self, bundle, examples, **options):
        outputs = predict(self, bundle, examples, **options)
        for output in outputs:
            output["log_prob"] = float("nan")
            for token in output.get("tokens", []):
                token["logprob"] = float("-inf")
        return outputs

    monkeypatch.setattr(task, "predict", impossible)
    options = {"file": tone("a.wav", (2, -10)), "model": "model"}
    ask = talks.client.audio.transcriptions.create
    assert ask(**options, response_format="verbose_json").segments[0].avg_logprob == -9999.0
    assert {token.logprob for token in ask(**options, include=["logprobs"]).logprobs} == {-9999.0}
    events = list(ask(**options, include=["logprobs"], stream=True))
    assert {token.logprob for event in events for token in event.logprobs} == {-9999.0}


FOREIGN = [
    ({"prompt": "hello"}, "model takes no prompt"),
    ({"keywords[]": "Stentor"}, "model takes no keywords"),
    ({"hotwords": "Stentor, meter"}, "model takes no keywords"),
    ({"beam_size": "5", "vad_filter": "false"}, "beam_size has no effect on this server. vad_filter has no effect"),
    ({"vad_filter": "true"}, None),
    ({"chunking_strategy": '{"type": "server_vad", "threshold": 0.5}'}, None),
    ({"chunking_strategy[threshold]": "0.5"}, None),
    ({"task": "transcribe", "translate": "false"}, "translate has no effect"),
    ({"language": "English"}, None),
    ({"language": "auto", "diarize": "false"}, "diarize has no effect"),
]


@pytest.mark.parametrize(("fields", "warning"), FOREIGN)
def test_names_of_other_servers(talks, tone, fields, warning):
    file = {"file": ("a.wav", tone("a.wav", (2, -10)).read_bytes())}
    answer = talks.http.post("/v1/audio/transcriptions", data={"model": "model", **fields}, files=file)
    assert answer.status_code == 200 and answer.json()["text"] == "level 10"
    assert answer.headers.get("x-stentor-warning", "").startswith(warning or "")
    assert bool(warning) == ("x-stentor-warning" in answer.headers)


HINTS = [
    ({"word_timestamps": "true", "response_format": "verbose_json"}, "timestamp_granularities", "no word times"),
    ({"diarize": "true"}, "diarize", "response_format=diarized_json"),
    ({"initial_prompt": "a", "prompt": "b"}, "initial_prompt", "initial_prompt is prompt here"),
    ({"output": "tsv"}, "response_format", "'text'"),
    ({"temperature": "hot"}, "temperature", "must be a number from 0 to 1 or null, not 'hot'"),
    ({"chunking_strategy": "{"}, "chunking_strategy", "must be 'auto'"),
]


@pytest.mark.parametrize(("fields", "param", "words"), HINTS)
def test_hints_about_names_of_other_servers(talks, tone, fields, param, words):
    file = {"file": ("a.wav", tone("a.wav", (1, -10)).read_bytes())}
    answer = talks.http.post("/v1/audio/transcriptions", data={"model": "model", **fields}, files=file)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param) and words in error["message"]
