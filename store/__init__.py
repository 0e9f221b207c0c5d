"""What is durable: the protocol of operations and its stores. Knows records, not decisions."""
