"""The default models of BoundaryMORPH: a folder each, with model.onnx and tokenizer.json.

README.md is their model card.
"""
