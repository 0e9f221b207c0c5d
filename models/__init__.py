"""Chat models: the adapters that answer a ModelRequest. What belongs to an extra is imported when it is used."""

from .anthropic import AnthropicChatModel
from .openai import OpenAIChatModel
from .scripted import ScriptedModel, call

__all__ = ["AnthropicChatModel", "OpenAIChatModel", "ScriptedModel", "call"]
