"""Vocabularies: finding them, what they add to a document, and encoding with them."""
