"""Building and exporting transducers: those with an encoder of ours as the speech LLM, with the weights of their own
parts; of transformers' models as it has them."""

from pathlib import Path
from typing import Any

from torch import Tensor

from stentor.errors import ConfigError
from stentor.models.base import Bundle, Origin, TaskRequirements
from stentor.models.encoders.load import encoder_geometry, encoder_part
from stentor.models.pretrained import parts
from stentor.models.pretrained.load import part_config, set_memory_options
from stentor.models.pretrained.lora import adapt
from stentor.models.pretrained.quantize import quantize
from stentor.models.pretrained.weights import export_folder, load_adapters, read_json
from stentor.models.text.tokenizers import TokenizerSection, alphabet, made_tokenizer
from stentor.models.transducer.config import KINDS, TransducerFamily
from stentor.models.transducer.modeling import EncoderTransducer, Joint, Predictor
from stentor.models.transducer.pretrained.build import TransducerBuilder
from stentor.models.transducer.processor import TransducerProcessor


class AnyTransducer:
    """The methods of `Family` for both kinds of transducer."""

    pretrained = TransducerBuilder()

    def _of(self, bundle: Bundle) -> Any:
        return self.pretrained if bundle.family.encoder is None else parts

    def build(self, family: TransducerFamily, requirements: TaskRequirements) -> Bundle:
        return (self.pretrained.build if family.encoder is None else build)(family, requirements)

    def exported_tensor_names(self, bundle: Bundle) -> set[str]:
        return self._of(bundle).exported_tensor_names(bundle)  # type: ignore[no-any-return]

    def save(self, bundle: Bundle, state: dict[str, Tensor], folder: Path) -> None:
        self._of(bundle).save(bundle, state, folder)

    def save_merged(self, bundle: Bundle, folder: Path) -> None:
        self._of(bundle).save_merged(bundle, folder)

    def load(self, family_class: type[TransducerFamily], folder: Path, trainable: bool = False) -> Bundle:
        if read_json(folder / "config.json")["model_type"] in KINDS:
            return self.pretrained.load(family_class, folder, trainable)
        return parts.load_parts(family_class, folder, TransducerProcessor, assemble, apply_memory_options, trainable)


builder = AnyTransducer()


def build(family: TransducerFamily, requirements: TaskRequirements) -> Bundle:
    """A transducer with an encoder of ours: encoder, tokenizer, predictor, joint, adapters, freezing."""
    assert family.encoder is not None
    _check_terms(family, requirements)
    texts = requirements.texts or (lambda: iter(()))
    before = TransducerProcessor.load(export_folder(family.init)) if family.init else None
    resumed = TransducerProcessor.load(requirements.resumed_export) if requirements.resumed_export else before
    config = part_config(family.encoder, "model.encoder")
    ctc = None
    if family.ctc:
        ctc = resumed.ctc.units if resumed and resumed.ctc else alphabet(texts())
    # What was made from the data of an earlier stage stays: its weights have a row for each token and character.
    tokenizer = resumed.tokenizer if resumed else made_tokenizer(family.tokenizer or TokenizerSection(), texts())
    processor = TransducerProcessor(tokenizer, encoder_geometry(family.encoder, config), ctc)
    if before is not None:
        processor.trained_speech = before.trained_speech
    bundle = assemble(family, processor, config)
    adapters = parts.initialise(bundle, Path(family.init)) if family.init else {}
    adapt(bundle.model, family.lora, family.freeze)
    if adapters:
        load_adapters(bundle.model, adapters)
    quantize(bundle.model, family.quantize)
    apply_memory_options(bundle)
    return bundle


def _check_terms(family: TransducerFamily, requirements: TaskRequirements) -> None:
    """Raise ConfigError unless the loss terms are those of the model."""
    terms = {"rnnt": "rnnt", "ctc": "{type: ctc, weight: 0.3}"} if family.ctc else {"rnnt": "rnnt"}
    if family.times:
        terms["times"] = "{type: smooth_l1, sigmoid: false, weight: 0.1}"
    if set(requirements.terms) != set(terms):
        section = ", ".join(f"{name}: {loss}" for name, loss in terms.items())
        raise ConfigError(
            f"This model of type transducer (see `model.ctc` and `model.times`) is trained with the loss terms "
            f"{', '.join(terms)}, not {', '.join(requirements.terms) or 'none'}: write `losses: {{{section}}}`."
        )


def assemble(
    family: TransducerFamily, processor: TransducerProcessor, encoder_config: Any, loaded: set[str] | None = None
) -> Bundle:
    """The model of the parts; a pretrained encoder gets its weights, unless they are among those `loaded` later."""
    section = family.encoder
    assert section is not None
    processor.times, processor.streaming = family.times, section.streaming
    encoder, from_base = encoder_part(section, encoder_config, loaded)
    classes, settings = len(processor.tokenizer), family.predictor
    predictor = Predictor(classes, settings.hidden, settings.layers, settings.dropout)
    joint = Joint(settings.hidden, classes)
    ctc_classes = len(processor.ctc) if processor.ctc else None
    model = EncoderTransducer(encoder, processor.shape, predictor, joint, ctc_classes, family.times)
    origin = Origin({name for name in model.state_dict() if from_base and name.startswith("encoder.")})
    return Bundle(model, processor, family, model.cache_encoder, origin=origin)


def apply_memory_options(bundle: Bundle) -> None:
    """Memory options, after adapters and freezing."""
    set_memory_options(bundle, (bundle.model.encoder,))
