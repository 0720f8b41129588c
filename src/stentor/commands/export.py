"""`stentor export` and `stentor import voxlm`: a model in another form."""

from typing import Any

from stentor.commands.train_options import ExportOptions, ImportVoxLMOptions
from stentor.config.yaml_writer import dump
from stentor.export.export import Settings, check_empty, export, written
from stentor.models.base import Family


def export_model(options: ExportOptions) -> None:
    """Export by the options of the verb. Raises as `stentor.export.export.export`."""
    formats, quantizations = (
        [part.strip() for part in (value or "").split(",") if part.strip()]
        for value in (options.format, options.quantization)
    )
    if options.onnx:
        formats = list(dict.fromkeys([f for f in formats if f != "hf"] + ["onnx"]))
    settings = Settings(quantizations, options.allow_difference, options.runtime, options.judge)
    print(export(options.model, options.to, options.merge, formats, settings))


def import_voxlm(options: ImportVoxLMOptions) -> None:
    """Write the export, and print what was left out and the section that trains it further. Raises ConfigError."""
    families: dict[str, Any] = dict(Family.choices())
    check_empty(options.to)
    bundle, left_out = families["speech_llm"].from_voxlm(options.checkpoint)
    with written(options.to) as folder:
        bundle.family.save(bundle, bundle.model.state_dict(), folder)
    print(f"Imported {options.checkpoint} to {options.to}.")
    for what in left_out:
        print(f"Not imported: {what}.")
    section = bundle.family.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    section = {"type": bundle.family.type} | section | {"init": str(options.to)}
    print(f"To train it further, start a run file with this section:\n{dump({'model': section})}", end="")
