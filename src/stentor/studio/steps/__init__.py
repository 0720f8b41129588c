"""The five steps of the page. Each module builds its part in `build(shared, tab)`; all that it knows is on the disk."""

from stentor.studio.steps import check, publish, runs, speak, train, try_model

STEPS = {
    "speak": (speak.build,),
    "check": (check.build,),
    "train": (train.build, runs.build),
    "try": (try_model.build,),
    "publish": (publish.build,),
}
"""What a step is made of, by its name (a key of texts.yaml), in their order."""
