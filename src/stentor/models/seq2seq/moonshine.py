"""Moonshine (Jeffries et al. 2024): raw audio in, a text behind one start token; each model knows one language."""

from typing import Any

from torch import Tensor

from stentor.audio.features import WINDOW
from stentor.models.encoders.encode import ClipNorm
from stentor.models.encoders.geometry import Geometry, mask
from stentor.models.seq2seq.modeling import Seq2SeqModel
from stentor.models.seq2seq.processor import Seq2SeqProcessor
from stentor.models.seq2seq.tokenizer import byte_tokenizer

CONVS = ((127, 64, 0), (7, 3, 0), (3, 2, 0))
STRIDE = 64 * 3 * 2


class Processor(Seq2SeqProcessor):
    """Unchanged audio of at most 30 s, as in Moonshine's training."""

    processor_class = "Wav2Vec2Processor"

    def geometry(self, config: Any) -> Geometry:
        return Geometry("wave", CONVS, normalize=self.extractor.do_normalize, max_frames=WINDOW // STRIDE)

    @classmethod
    def fresh_tokenizer(cls) -> Any:
        special = ("<unk>", "<s>", "</s>")
        return byte_tokenizer(special, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>")

    @classmethod
    def fresh_extractor(cls, config: Any) -> Any:
        from transformers import Wav2Vec2FeatureExtractor

        return Wav2Vec2FeatureExtractor(do_normalize=False, return_attention_mask=True)


class Model(Seq2SeqModel):
    """Moonshine, whose clips give the same states in any batch; transformers' own group norm takes in the padding."""

    def adjust(self) -> None:
        self.model.encoder.groupnorm = ClipNorm.of(self.model.encoder.groupnorm)
        # transformers' own rounds floats, which a traced graph would keep as a constant.
        self.model.encoder._get_feat_extract_output_lengths = self.shape.frames

    def encoder_states(self, features: Tensor, lengths: Any) -> tuple[Tensor, Tensor | None]:
        encoder, frames = self.model.encoder, self.shape.frames(lengths)
        kernel, stride, _ = CONVS[0]
        encoder.groupnorm.frames = (lengths - kernel) // stride + 1
        # It looks at every STRIDE-th place of the mask.
        hidden = encoder(features, attention_mask=mask(frames * STRIDE, features.shape[1])).last_hidden_state
        return hidden, mask(frames, hidden.shape[1])
