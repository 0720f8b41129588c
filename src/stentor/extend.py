"""Names that plug-ins may use, see docs/extend.md. Everything else may change.

Importing this module does not import torch or NumPy.
"""

import importlib
from typing import TYPE_CHECKING, Any

from stentor.data.augment import SpecAugment
from stentor.data.batch import Batch, Example, Prediction
from stentor.data.cut import UnusableRecord, cut_from_record
from stentor.engine.callback import Callback
from stentor.errors import AudioError, ConfigError, DataError, RecordError, StentorError
from stentor.inference.segments.base import Limit, Reject, Segment, SetStage, Stage
from stentor.losses.all_paths import CTCLoss
from stentor.losses.base import Loss
from stentor.losses.sequence import SequenceLoss
from stentor.losses.token import CrossEntropy
from stentor.metrics.score import Score
from stentor.models.audio_llm.chat import ChatProcessor
from stentor.models.base import Bundle, Family, TaskRequirements
from stentor.models.codecs.base import AudioCodec, Codec, at_peak
from stentor.models.collate import SHORTEST, mask_features, pad_shortest
from stentor.models.contracts import (
    Capabilities,
    FrameLabeler,
    FrameOutput,
    GenerationOutput,
    Processor,
    Recognizer,
    Speaker,
)
from stentor.models.decoding.rescoring import ctc_log_probs, text_log_probs
from stentor.models.parameters import is_sharded
from stentor.models.text.tokenizers import CTCAlphabet, ctc_frames
from stentor.section import Choice, Section
from stentor.sources.base import Source
from stentor.tasks.base import Task
from stentor.tasks.diarize.labels.base import Labels
from stentor.tasks.diarize.labels.binary import concurrent_segments
from stentor.tasks.speak.evaluator import LoadedEvaluator, SpeechEvaluator
from stentor.tasks.transcribe import Transcribe

if TYPE_CHECKING:
    from stentor.audio.features import HOP, WINDOW, WhisperMel
    from stentor.commands.own_loop import batches, open_trainer, take_step
    from stentor.data.load_audio import load_audio
    from stentor.engine.trainer import Trainer

MODULES = {
    "HOP": "stentor.audio.features",
    "WINDOW": "stentor.audio.features",
    "WhisperMel": "stentor.audio.features",
    "load_audio": "stentor.data.load_audio",
    "Trainer": "stentor.engine.trainer",
    "open_trainer": "stentor.commands.own_loop",
    "batches": "stentor.commands.own_loop",
    "take_step": "stentor.commands.own_loop",
}
"""Modules of the names that are imported on first use, because these modules import torch or NumPy."""

__all__ = [
    "HOP",
    "SHORTEST",
    "WINDOW",
    "AudioCodec",
    "AudioError",
    "Batch",
    "Bundle",
    "CTCAlphabet",
    "CTCLoss",
    "Callback",
    "Capabilities",
    "ChatProcessor",
    "Choice",
    "Codec",
    "ConfigError",
    "CrossEntropy",
    "DataError",
    "Example",
    "Family",
    "FrameLabeler",
    "FrameOutput",
    "GenerationOutput",
    "Labels",
    "Limit",
    "LoadedEvaluator",
    "Loss",
    "Prediction",
    "Processor",
    "Recognizer",
    "RecordError",
    "Reject",
    "Score",
    "Section",
    "Segment",
    "SequenceLoss",
    "SetStage",
    "Source",
    "Speaker",
    "SpecAugment",
    "SpeechEvaluator",
    "Stage",
    "StentorError",
    "Task",
    "TaskRequirements",
    "Trainer",
    "Transcribe",
    "UnusableRecord",
    "WhisperMel",
    "at_peak",
    "batches",
    "concurrent_segments",
    "ctc_frames",
    "ctc_log_probs",
    "cut_from_record",
    "is_sharded",
    "load_audio",
    "mask_features",
    "open_trainer",
    "pad_shortest",
    "take_step",
    "text_log_probs",
]


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module 'stentor.extend' has no attribute {name!r}")
    return vars(importlib.import_module(MODULES[name]))[name]
