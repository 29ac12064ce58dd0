"""Smaller weights: masks, quantization, shared values, entropy codes and low rank, as functions of tensors."""
