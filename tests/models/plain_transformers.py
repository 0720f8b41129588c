"""Transcripts by transformers alone, without Stentor: `plain_transformers.py FAMILY FOLDER < records.jsonl`.

Prints [text, ids of the new tokens] of each record."""

import json
import os
import sys

import soundfile
import torch
import transformers

CLASSES = {
    "whisper": "WhisperForConditionalGeneration",
    "qwen3_asr": "Qwen3ASRForConditionalGeneration",
    "voxtral_realtime": "VoxtralRealtimeForConditionalGeneration",
    "parakeet_tdt": "AutoModelForTDT",
    "parakeet_ctc": "AutoModelForCTC",
}


def load(family, folder):
    model_class = getattr(transformers, CLASSES[family])
    processor = transformers.AutoProcessor.from_pretrained(folder)
    if not os.path.exists(os.path.join(folder, "adapter_config.json")):
        return model_class.from_pretrained(folder), processor
    from peft import PeftConfig, PeftModel

    base = PeftConfig.from_pretrained(folder).base_model_name_or_path
    return PeftModel.from_pretrained(model_class.from_pretrained(base), folder), processor


def whisper(model, processor, audio, language):
    features = processor(audio, sampling_rate=16000, return_tensors="pt").input_features
    ids = model.generate(features, max_new_tokens=40, language=language, task="transcribe")[0]
    return processor.decode(ids, skip_special_tokens=True).strip(), ids


def qwen3_asr(model, processor, audio, language):
    inputs = processor.apply_transcription_request(audio=[audio], language=language)
    ids = model.generate(**inputs)[0, inputs["input_ids"].shape[1] :]
    return processor.decode(ids, return_format="transcription_only"), ids


def voxtral_realtime(model, processor, audio, language):
    inputs = processor(audio, sampling_rate=16000, return_tensors="pt")
    ids = model.generate(**inputs)[0, inputs["input_ids"].shape[1] :]
    return processor.decode(ids, skip_special_tokens=True), ids


def parakeet_tdt(model, processor, audio, language):
    (ids,) = model.generate(**processor([audio], sampling_rate=16000), max_length=500).sequences
    return processor.decode(ids, skip_special_tokens=True).strip(), ids


def parakeet_ctc(model, processor, audio, language):
    (ids,) = model(**processor(audio, sampling_rate=16000, return_tensors="pt")).logits.argmax(-1)
    return processor.decode(ids), ids


def answers(family, folder, records):
    model, processor = load(family, folder)
    written = []
    for record in records:
        audio, rate = soundfile.read(record["audio_path"], dtype="float32")
        assert rate == 16000
        text, ids = globals()[family](model, processor, audio, record.get("language"))
        written.append([text, ids.tolist()])
    return written


def main(family, folder):
    torch.set_num_threads(1)
    written = answers(family, folder, map(json.loads, sys.stdin))
    assert "stentor" not in sys.modules
    print(json.dumps(written))


if __name__ == "__main__":
    main(*sys.argv[1:])
