"""What every `TurnStore` must do, one check a function. `checks` has them all, `check_store` runs them.

No assert statements: the checks must also fail under ``python -O``.
"""
