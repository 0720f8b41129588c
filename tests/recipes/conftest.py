import sys
from pathlib import Path

for folder in ("models", "audio"):  # for tiny_voxtral, tiny_codecs
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))
