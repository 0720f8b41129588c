"""Building models of the family `transformer`."""

from pathlib import Path
from typing import Any

from stentor.errors import ConfigError
from stentor.models.base import Bundle, TaskRequirements
from stentor.models.pretrained.lora import freeze_parameters
from stentor.models.pretrained.weights import export_folder, load_by_name, read_weights
from stentor.models.text.tokenizers import alphabet, made_tokenizer, words_of_texts
from stentor.models.transformer.config import Transformer
from stentor.models.transformer.modeling import Heads, TransformerModel
from stentor.models.transformer.processor import TransformerProcessor
from stentor.models.transformer.ssl import front_end, geometry_of
from stentor.models.transformer.stack import StackOptions


def build(family: Transformer, requirements: TaskRequirements) -> Bundle:
    """See `Family.build`."""
    _check_terms(family, requirements)
    before = TransformerProcessor.load(export_folder(family.init)) if family.init is not None else None
    resumed = (
        TransformerProcessor.load(requirements.resumed_export) if requirements.resumed_export is not None else before
    )
    processor = _processor(family, requirements, resumed)
    if before is not None:
        processor.trained_speech = before.trained_speech
    bundle = assemble(family, processor, requirements.classes)
    if family.init is not None:
        initialise(bundle, Path(family.init))
    return finish(bundle, trainable=True)


def _check_terms(family: Transformer, requirements: TaskRequirements) -> None:
    """Raise ConfigError for loss terms that the model has no head for, and for heads that would never be trained."""
    terms = set(requirements.terms)
    if requirements.classes is not None:
        scored = "embeddings" in requirements.scores
        if requirements.scores and scored != (family.embedding is not None):
            raise ConfigError(
                "losses: a term scores speaker embeddings, and the model makes none: set `model.embedding: 128`."
                if scored
                else "model.embedding: no loss term would train the embeddings: add one such as `voice: contrastive` "
                "to `losses`, or set `model.embedding: null`."
            )
        return
    known = {"encoder": {"ctc"}, "decoder": {"text"}}.get(family.kind, {"text", "ctc"})
    main = "ctc" if family.kind == "encoder" else "text"
    if main not in terms or terms - known:
        example = "{ctc: ctc}" if main == "ctc" else "{text: cross_entropy}"
        also = " and, if wanted, `ctc`" if len(known) == 2 else ""
        raise ConfigError(
            f"losses: a model of the kind {family.kind} is trained by the term `{main}`{also}, not by "
            f"{', '.join(sorted(terms)) or 'none'}: write `losses: {example}`."
        )


def _processor(
    family: Transformer, requirements: TaskRequirements, before: TransformerProcessor | None
) -> TransformerProcessor:
    """The processor; tokenizer and alphabet of an earlier stage stay, whose weights have a row for each token."""
    texts = requirements.texts or (lambda: iter(()))
    tokenizer = None
    ctc: str | list[str] | None = None
    terms = requirements.terms if requirements.classes is None else ()  # a model that labels frames writes nothing
    if "ctc" in terms:
        earlier, by_words = None if before is None else before.ctc, family.text.type == "words"
        if earlier is not None and earlier.by_words == by_words:
            ctc = earlier.units
        else:
            ctc = words_of_texts(texts()) if by_words else alphabet(texts())
    if "text" in terms:
        known = before is not None and before.tokenizer is not None and before.tokenizer_type == family.text.type
        tokenizer = before.tokenizer if before is not None and known else made_tokenizer(family.text, texts())
    return processor_for(family, tokenizer, ctc)


def processor_for(family: Transformer, tokenizer: Any, ctc: str | list[str] | None) -> TransformerProcessor:
    """The processor of a family's settings, with a tokenizer and the units of a CTC head where there are any."""
    if family.kind == "decoder":
        return TransformerProcessor(tokenizer=tokenizer, tokenizer_type=family.text.type)
    shape = geometry_of(family.ssl) if family.ssl is not None else None
    features = family.features if shape is None else None
    kind = family.text.type if tokenizer is not None else None
    return TransformerProcessor(features, shape, tokenizer, kind, ctc)


def assemble(
    family: Transformer, processor: TransformerProcessor, classes: int | None, ssl_config: dict[str, Any] | None = None
) -> Bundle:
    """The model, untrained but for a pretrained front-end. With the `ssl_config` of an export the front-end is made
    without its weights, which are about to be loaded."""
    processor.streaming = family.streaming
    if family.encoder is not None and family.encoder.positions == "learned":
        processor.max_frames = family.encoder.max_positions
        if processor.has_text:
            processor.max_seconds = processor.max_frames * processor.frame_seconds
    frontend = None
    if family.ssl is not None:
        assert processor.pretrained is not None
        frontend = front_end(family.ssl, processor.pretrained.shape, ssl_config)
    model = TransformerModel(
        family.encoder,
        family.decoder,
        inputs=processor.size if frontend is None else frontend.size,
        frontend=frontend,
        heads=Heads(
            classes,
            family.embedding if classes else None,
            len(processor.tokenizer) if processor.tokenizer is not None else None,
            len(processor.ctc) if processor.ctc is not None else None,
        ),
        bos=processor.bos_id if processor.tokenizer is not None else 0,
        options=StackOptions(
            family.fixed_projection,
            family.gradient_checkpointing,
            None if family.streaming is None else round(family.streaming.lookahead / processor.frame_seconds),
        ),
    )
    if model.decoder is not None and model.decoder.max_length is not None:
        processor.longest_text = model.decoder.max_length - 1
    return Bundle(model, processor, family, model.cache_encoder)


def finish(bundle: Bundle, trainable: bool) -> Bundle:
    """Freezing, and training or evaluation mode."""
    if trainable:
        freeze_parameters(bundle.model, bundle.family.freeze)  # type: ignore[attr-defined]
    else:
        bundle.model.requires_grad_(False)
    bundle.model.train(trainable)
    return bundle


def initialise(bundle: Bundle, folder: Path) -> None:
    """Start from the weights of an export; see `load_by_name`. Heads for other classes are initialised again."""
    weights, _ = read_weights(folder)
    shapes = {name: tensor.shape for name, tensor in bundle.model.state_dict().items()}
    for name, tensor in list(weights.items()):
        if name.split(".")[0].endswith("_head") and shapes.get(name, tensor.shape) != tensor.shape:
            del weights[name]
    load_by_name(bundle.model, weights, folder, "same layers")
