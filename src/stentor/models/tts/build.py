"""Building and exporting speech synthesis models, as audio language models, and their codecs (`audio_tokenizer`)."""

from pathlib import Path
from typing import Any

from stentor.models.audio_llm.build import TransformersBuilder
from stentor.models.base import Bundle, TaskRequirements
from stentor.models.codec_processor import check_terms
from stentor.models.codecs.base import INSIDE, AudioCodec, model_folder, open_codec
from stentor.models.omnivoice.build import codec_of, codec_override, training_audio
from stentor.models.tts.config import TTS


class TTSBuilder(TransformersBuilder):
    """The codec is opened or fitted first."""

    def new(self, family: TTS, requirements: TaskRequirements) -> Bundle:  # type: ignore[override]
        check_terms(family.type, requirements, "model")
        if family.source is not None:
            return self.made(family, codec_override(family, self.codec_in(model_folder(family, "model"))))
        before = requirements.resumed_export or (Path(family.init) if family.init else None)
        bundle = self.made(family, codec_of(family, requirements, before))
        codec = bundle.processor.codec
        if family.init is None and requirements.cuts is not None and codec is not None:
            audios = training_audio(codec.type, codec.sample_rate, requirements)
            bundle.processor.fit(bundle.model.pretrained, audios)
        return bundle

    def codec_in(self, folder: Path) -> AudioCodec | None:
        return open_codec(str(folder / INSIDE)) if (folder / INSIDE).is_dir() else None

    def settle(self, kind: Any, settings: dict[str, Any], hf: Any, codec: AudioCodec | None) -> None:
        kind.settle(settings, hf, codec)

    def processor(self, family: Any, kind: Any, hf: Any, config: Any, codec: AudioCodec | None) -> Any:
        processor = kind(hf, config, family)
        if codec is not None:
            processor.use(codec)
        return processor


builder = TTSBuilder()
