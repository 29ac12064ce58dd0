"""Vocabularies: trimming, training, word vectors, and checks of untrusted tokenizers."""
