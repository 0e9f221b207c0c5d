"""Chat models: the adapters that answer a ModelRequest. What belongs to an extra is imported when it is used."""

from .openai import OpenAIChatModel
from .scripted import ScriptedModel, call

__all__ = ["OpenAIChatModel", "ScriptedModel", "call"]
