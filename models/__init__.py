"""Chat models: the adapters that answer a ModelRequest."""
