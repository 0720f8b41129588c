"""The models of the family `audio_llm`, one module each; modules in this folder are found automatically.

Modules of this folder import torch inside functions only: configs are checked with their classes.
"""
