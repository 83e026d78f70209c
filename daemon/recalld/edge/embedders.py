"""The embedder that the configuration asks for."""

from __future__ import annotations

import os

from recalld.config import EmbedderConfig
from recalld.edge.embed import Embedder, StaticEmbedder


def make_embedder(config: EmbedderConfig) -> Embedder:
    """Blocking: a model is loaded; a server is not asked. Raises ConfigError naming the key and the remedy."""
    if config.kind == "onnx":
        from recalld.edge.onnx import OnnxEmbedder

        return OnnxEmbedder(config.model_path)
    if config.kind == "openai":
        from recalld.edge.openai import OpenAIEmbedder

        return OpenAIEmbedder(config, os.environ)
    return StaticEmbedder()
