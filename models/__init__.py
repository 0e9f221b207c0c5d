"""Chat models: the adapters that answer a ModelRequest. What belongs to an extra is imported when it is used."""

from .scripted import ScriptedModel, call

__all__ = ["ScriptedModel", "call"]
