"""Networks: loading, saving, safety checks, anatomy, hooks, tokenizers, generation, ONNX."""
