"""Transcripts by transformers alone, without Stentor: `plain_transformers.py FAMILY FOLDER < records.jsonl`.

Prints [text, ids of the new tokens] of each record."""

import json
import os
import sys

import soundfile
import torch
import transformers

SEQ2SEQ = ("whisper", "moonshine", "moonshine_streaming", "cohere_asr")
CLASSES = {"voxtral": "Voxtral", "qwen3_asr": "Qwen3ASR"}
CLASSES |= {"glmasr": "GlmAsr", "granite_speech": "GraniteSpeech", "fun_asr_nano": "FunAsrNano"}
CLASSES |= {"voxtral_realtime": "VoxtralRealtime", "kyutai_speech_to_text": "KyutaiSpeechToText"}
CLASSES |= {"moss_transcribe_diarize": "MossTranscribeDiarize", "vibevoice_asr": "VibeVoiceAsr"}
AUTO = {f"parakeet_{kind}": f"AutoModelFor{kind.upper()}" for kind in ("tdt", "rnnt", "ctc")}
RATES = {"vibevoice_asr": 24000}

# Whose processors need torchaudio; what they would make comes with the records.
PREPARED = ("granite_speech", "fun_asr_nano")


def load(family, folder):
    if family in SEQ2SEQ:
        return load_seq2seq(folder)
    if family in AUTO:
        auto = getattr(transformers, AUTO[family])
        return load_adapted(auto, folder), transformers.AutoProcessor.from_pretrained(folder)
    model_class = getattr(transformers, f"{CLASSES[family]}ForConditionalGeneration")
    reader = transformers.AutoTokenizer if family in PREPARED else getattr(transformers, f"{CLASSES[family]}Processor")
    processor = reader.from_pretrained(folder)
    return load_adapted(model_class, folder), processor


def load_adapted(model_class, folder):
    if not os.path.exists(os.path.join(folder, "adapter_config.json")):
        return model_class.from_pretrained(folder)
    from peft import PeftConfig, PeftModel

    base = PeftConfig.from_pretrained(folder).base_model_name_or_path
    return PeftModel.from_pretrained(model_class.from_pretrained(base), folder)


def load_seq2seq(folder):
    processor = transformers.AutoProcessor.from_pretrained(folder)
    if os.path.exists(os.path.join(folder, "adapter_config.json")):
        from peft import AutoPeftModel

        return AutoPeftModel.from_pretrained(folder), processor
    return transformers.AutoModelForSpeechSeq2Seq.from_pretrained(folder), processor


def moonshine(model, processor, audio, _, **options):
    inputs = processor(audio, sampling_rate=16000, return_tensors="pt", **options)
    ids = model.generate(**inputs, max_new_tokens=40)[0]
    return processor.decode(ids, skip_special_tokens=True).strip(), ids


moonshine_streaming = moonshine


def cohere_asr(model, processor, audio, language):
    return moonshine(model, processor, audio, None, language=language)


def whisper(model, processor, audio, language):
    features = processor(audio, sampling_rate=16000, return_tensors="pt").input_features
    ids = model.generate(features, max_new_tokens=40, language=language, task="transcribe")[0]
    return processor.decode(ids, skip_special_tokens=True).strip(), ids


def voxtral(model, processor, audio, language):
    inputs = processor.apply_transcription_request(
        audio=[audio], model_id=processor.tokenizer.name_or_path, language=language, sampling_rate=16000, format=["WAV"]
    )
    ids = model.generate(**inputs, max_new_tokens=30, do_sample=False)[0, inputs.input_ids.shape[1] :]
    return processor.batch_decode(ids[None], skip_special_tokens=True)[0], ids


def qwen3_asr(model, processor, audio, language):
    inputs = processor.apply_transcription_request(audio=[audio], language=language)
    ids = model.generate(**inputs)[0, inputs["input_ids"].shape[1] :]
    return processor.decode(ids, return_format="transcription_only"), ids


def glmasr(model, processor, audio, language):
    inputs = processor.apply_transcription_request([audio])
    ids = model.generate(**inputs, max_new_tokens=40)[0, inputs["input_ids"].shape[1] :]
    return processor.decode(ids, skip_special_tokens=True), ids


def prepared(model, tokenizer, inputs):
    inputs = {name: torch.tensor(values) for name, values in inputs.items()}
    ids = model.generate(**inputs, max_new_tokens=40)[0, inputs["input_ids"].shape[1] :]
    return tokenizer.decode(ids, skip_special_tokens=True), ids


def voxtral_realtime(model, processor, audio, language):
    inputs = processor(audio, sampling_rate=16000, return_tensors="pt")
    ids = model.generate(**inputs)[0, inputs["input_ids"].shape[1] :]
    return processor.decode(ids, skip_special_tokens=True), ids


def kyutai_speech_to_text(model, processor, audio, language):
    from scipy.signal import resample_poly

    inputs = processor(audio=resample_poly(audio, 3, 2).astype("float32"), sampling_rate=24000)
    ids = model.generate(**inputs)[0]
    return processor.decode(ids, skip_special_tokens=True), ids


def moss_transcribe_diarize(model, processor, audio, language, **options):
    inputs = processor.apply_transcription_request(audio=[audio], return_tensors="pt")
    ids = model.generate(**inputs, **options, do_sample=False, max_new_tokens=400)[0, inputs["input_ids"].shape[1] :]
    return processor.tokenizer.decode(ids, skip_special_tokens=True), ids


def vibevoice_asr(model, processor, audio, language):
    return moss_transcribe_diarize(model, processor, audio, language, sample=False)


def parakeet_tdt(model, processor, audio, language):
    (ids,) = model.generate(**processor([audio], sampling_rate=16000), max_length=500).sequences
    return processor.decode(ids, skip_special_tokens=True).strip(), ids


parakeet_rnnt = parakeet_tdt


def parakeet_ctc(model, processor, audio, language):
    (ids,) = model(**processor(audio, sampling_rate=16000, return_tensors="pt")).logits.argmax(-1)
    return processor.decode(ids), ids


def answers(family, folder, records):
    model, processor = load(family, folder)
    written = []
    for record in records:
        if family in PREPARED:
            text, ids = prepared(model, processor, record["inputs"])
        else:
            audio, rate = soundfile.read(record["audio_path"], dtype="float32")
            assert rate == RATES.get(family, 16000)
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
