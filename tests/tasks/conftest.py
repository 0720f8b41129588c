"""Tiny speech language models for the tests of this folder."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))  # for tiny_speech_llm and tiny_omnivoice


@pytest.fixture(scope="session")
def build_speech_llm():
    """Builds a tiny speech LLM for a task and its loss terms; its random weights are so far apart that the untrained
    model says different things. Keywords are other keys of `model:`."""
    import torch
    from tiny_speech_llm import TEXTS, family

    from stentor.models.base import Bundle
    from stentor.tasks.base import Task

    torch.set_num_threads(1)

    def build(task: str, terms: Sequence[str], **sections: object) -> Bundle:
        torch.manual_seed(1)
        requirements = Task.model_validate(task).requirements(dict.fromkeys(terms))
        requirements.texts = lambda: TEXTS
        bundle = family(**sections).build(requirements)
        bundle.model.eval()
        for parameter in bundle.model.parameters():
            parameter.data.add_(0.2 * torch.randn_like(parameter))
        return bundle

    return build
