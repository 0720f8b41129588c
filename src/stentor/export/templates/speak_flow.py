"""Speech with the ONNX graphs beside this file; needs numpy, onnxruntime, tokenizers and soundfile alone:

    python speak.py "Hello there." --to hello.wav
    python speak.py "Hello there." --to hello.wav --reference voice.wav --reference-text "What is said there."

Codes and audio are those of `stentor speak`. Simpler than there: long texts are divided at the last sentence end that
fits, and pieces are brought to one level without a limiter. A seed gives the same speech each time, but not Stentor's.
"""

import math

import numpy as np

from stentor.export.templates.speaking import Speaking, main


class Speaker(Speaking):
    """Continuous latents, one frame after the other, each where a flow leads from noise."""

    def generate(self, text, voice, frames, language, instruct, random, given):
        """Latents [dimensions, frames], which are the codes here."""
        o, nodes = self.options, self.graphs["lm_main"].get_inputs()[2:]
        shapes = {node.name: [n if isinstance(n, int) else 1 for n in node.shape] for node in nodes}
        state = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        words = [] if voice is None else [self.run("voice", latents=voice.codes.T[None])[0]]
        words = np.concatenate([*words, self.run("text_conditioner", token_ids=np.array([self.ids(text)]))[0]], 1)
        latent, latents, left = np.full((1, 1, self.books), np.nan, np.float32), [], None
        while len(latents) < 2 * frames + round(self.rate / self.hop) and left != 0:
            condition, end, *values = self.run("lm_main", sequence=latent, text_embeddings=words, **state)
            state, words = dict(zip(state, values)), words[:, :0]
            x = random.standard_normal((1, self.books), np.float32) * np.float32(math.sqrt(o["temperature"]))
            for step in range(o["flow_steps"]):
                s, t = (np.full((1, 1), n / o["flow_steps"], np.float32) for n in (step, step + 1))
                x = x + self.run("lm_flow", c=condition, s=s, t=t, x=x)[0] / np.float32(o["flow_steps"])
            latent = x[None]
            latents.append(x[0])
            if left is not None:
                left -= 1
            elif end.item() > -4 and len(latents) > o["min_frames_before_eos"]:  # the graph has shifted the threshold
                left = o["after_short"] if len(text.split()) <= o["short_words"] else o["after"]
        mean, std = (np.array(self.facts[key], np.float32)[:, None] for key in ("mean", "std"))
        return np.stack(latents, 1) * std + mean


if __name__ == "__main__":
    main(Speaker)
