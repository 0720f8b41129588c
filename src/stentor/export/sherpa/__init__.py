"""Exports for sherpa-onnx."""
