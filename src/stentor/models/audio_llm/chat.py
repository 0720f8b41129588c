"""Models whose prompt is made by a chat template of transformers."""

from typing import Any, ClassVar

from stentor.errors import ConfigError
from stentor.models.audio_llm.processor import AudioLLMProcessor, PromptParts
from stentor.models.pretrained.kind import ProcessorFiles
from stentor.models.text.control_tokens import as_text, template_ids, text_ids


class ChatProcessor(AudioLLMProcessor):
    """A model whose processor of transformers has a chat template. Its prompt is that of the processor's transcription
    request, or `conversation` under the template."""

    processor: ClassVar[str | None] = None
    """transformers' class of the processor. None: it needs packages that Stentor does without, and `ProcessorFiles`
    takes its place."""
    audio_token: ClassVar[str] = ""
    """Placeholder for the audio, where there is no `processor`."""

    def setup(self, config: Any) -> None:
        tokenizer = self.hf.tokenizer
        self.eos_id = tokenizer.eos_token_id
        self.pad_id = self.eos_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self.audio_id = config.audio_token_id

    @classmethod
    def read(cls, name: str, config: dict[str, Any], **options: Any) -> Any:
        import transformers

        kind = ProcessorFiles if cls.processor is None else getattr(transformers, cls.processor)
        processor = kind.from_pretrained(name, trust_remote_code=False, **options)
        if cls.processor is None:
            processor.audio_token = cls.audio_token
        if not processor.chat_template:
            raise ConfigError(f"The processor of {name} has no chat template: give {cls.tokenizer_holds}.")
        return processor

    @property
    def tokenizer(self) -> Any:  # type: ignore[override]
        return self.hf.tokenizer

    def ids(self, text: str) -> list[int]:
        return text_ids(self.hf.tokenizer, text)

    def _all_ids(self, text: str) -> list[int]:
        """Tokens of a prompt, special ones included."""
        return template_ids(self.hf.tokenizer, text)

    def _prompt_parts(self, language: str | None, context: str | None, translate: bool) -> PromptParts:
        return self.split(self.request(language, context, translate))

    def split(self, request: str) -> PromptParts:
        """Tokens of a prompt before and after the placeholder."""
        before, after = request.split(self.hf.audio_token)
        return self._all_ids(before), self._all_ids(after)

    def request(self, language: str | None, context: str | None, translate: bool) -> str:
        """The prompt as text, with one placeholder for the audio."""
        import numpy as np

        context = as_text(self.hf.tokenizer, context) if context else None
        if (turns := self.conversation(language, context, translate)) is not None:
            options = {"tokenize": False, "add_generation_prompt": True}
            return str(self.hf.tokenizer.apply_chat_template(turns, chat_template=self.hf.chat_template, **options))
        options = self.request_options(language) | ({"prompt": context} if context else {})
        (text,) = self.hf.apply_transcription_request(audio=np.zeros(1, np.float32), tokenize=False, **options)
        return str(text)

    def conversation(self, language: str | None, context: str | None, translate: bool) -> list[dict[str, Any]] | None:
        """Turns for the chat template. None: the processor's transcription request makes them."""
        return None

    def request_options(self, language: str | None) -> dict[str, Any]:
        """Options of the processor's transcription request, besides the context."""
        return {}
