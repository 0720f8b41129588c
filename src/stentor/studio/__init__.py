"""Studio: a local web page from a voice to a published model, without writing code.

Imports go down: app, serve > steps > dataset > runs > server > the other modules of this folder.
"""
