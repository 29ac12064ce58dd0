"""ONNX graphs: writing and quantizing them."""
