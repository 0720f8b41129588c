"""A speech LLM that onnxruntime runs, from the graphs that `onnx` writes: what the tasks ask of a model, without torch's
layers. Loops, masks and decoding are those of the torch model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from stentor.errors import ConfigError
from stentor.models.base import Bundle
from stentor.models.speech_llm import SpeechLLM
from stentor.models.speech_llm.aligner import Aligner
from stentor.models.speech_llm.boundaries import LOW, Scores
from stentor.models.speech_llm.encoders import Geometry
from stentor.models.speech_llm.generate import Result, search
from stentor.models.speech_llm.modeling import word_log_probs
from stentor.models.speech_llm.onnx import CONFIG, FORMAT
from stentor.models.speech_llm.processor import SpeechLLMProcessor
