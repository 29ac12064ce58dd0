"""Decoding of generative models, by CTranslate2 or transformers."""
