"""The models of the family `tts`, one module each; a new module is known by being here.

Modules of this folder import torch inside functions only: configs are checked with their classes.
"""
