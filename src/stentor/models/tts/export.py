"""Export folders of models that speak: as those of audio language models (`stentor.models.audio_llm.export`), and

audio_tokenizer/             the codec
"""

from stentor.models.audio_llm.export import exported_tensor_names, load, save, save_merged

__all__ = ["exported_tensor_names", "load", "save", "save_merged"]
