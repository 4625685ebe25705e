"""Contain the default models of BoundaryMORPH, in a folder each.

A folder has model.onnx and tokenizer.json. README.md is the models' card.
"""
