"""What a message does to a turn: pure functions over a draft of its state."""
