"""The names of the keys: all of a partition share one hash tag, and so one slot of a cluster."""

from __future__ import annotations

import zlib

from ..actors.ids import PARTITIONS, root_of


class Keys:
    """The names of the keys of a namespace; `store/lua/prelude.lua` says what is in them."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.meta = f"{{{namespace}}}:meta"
        self.nodes = f"{{{namespace}}}:nodes"
        tags = [f"{{{namespace}:{number:02x}}}:" for number in range(PARTITIONS)]
        self._tags = {f"{number:02x}": tag for number, tag in enumerate(tags)}
        self.tags = tuple(tags)
        head = ("wake", "leases", "turns", "bell", "news")
        self._heads = {pp: [tag + name for name in head] for pp, tag in self._tags.items()}

    def tag(self, turn: str) -> str:
        """Return what the keys of a turn's partition begin with."""
        return self._tags.get(turn[:2], self.tags[0])  # what is no turn's id is absent there, too

    def of_conversation(self, conversation: str) -> str:
        """Return what the keys of a conversation's partition begin with."""
        return self.tags[zlib.crc32(conversation.encode()) % PARTITIONS]

    def conversation(self, conversation: str, kinds: str) -> list[str]:
        """Return keys of a conversation."""
        tag = self.of_conversation(conversation)
        return [f"{tag}{kind}:{conversation}" for kind in kinds]

    def head_of_conversation(self, conversation: str, *names: str) -> list[str]:
        """Return what `head` does, for a conversation's partition."""
        return self.head(self.of_conversation(conversation)[-4:-2], *names)

    def partition(self, turn: str, *names: str) -> list[str]:
        """Return keys of a turn's partition."""
        tag = self.tag(turn)
        return [tag + name for name in names]

    def head(self, turn: str, *names: str) -> list[str]:
        """Return the keys that every script begins with, and others of the partition."""
        head = self._heads.get(turn[:2], self._heads["00"])
        return head + self.partition(turn, *names) if names else [*head]

    def tree(self, turn: str, kinds: str) -> list[str]:
        """Return keys of a turn's tree."""
        tag, root = self.tag(turn), root_of(turn)
        return [f"{tag}{kind}:{root}" for kind in kinds]

    def turn(self, turn: str, kinds: str = "tidshew") -> list[str]:
        """Return keys of a turn, in the order in which the scripts expect them."""
        tag = self.tag(turn)
        if kinds == "tidshew":
            return [
                *(f"{tag}t:{turn}", f"{tag}i:{turn}", f"{tag}d:{turn}", f"{tag}s:{turn}", f"{tag}h:{turn}", f"{tag}e:{turn}"),
                f"{tag}w:{turn}",
            ]
        return [f"{tag}{kind}:{turn}" for kind in kinds]

    def answered(self, turn: str) -> list[str]:
        """Return the keys of what ends waits and answers mail: the open waits of the partition, the tree's receipts and replies."""
        tag, root = self.tag(turn), root_of(turn)
        return [f"{tag}waits", f"{tag}r:{root}", f"{tag}y:{root}"]

    def ended(self, turn: str) -> list[str]:
        """Return the keys of what becomes of other turns: which have ended, are parked, are open; the tree's children."""
        tag = self.tag(turn)
        return [f"{tag}over", f"{tag}parked", f"{tag}open", f"{tag}k:{root_of(turn)}"]

    def bell(self, partition: int) -> str:
        """Return the channel on which work of a partition is announced."""
        return self.tags[partition] + "bell"

    def news(self, root: str) -> str:
        """Return the channel on which the saves of a partition are announced."""
        return self.tag(root) + "news"

    def live(self, root: str) -> str:
        """Return the channel on which is shown what is not stored of a tree."""
        return f"{self.tag(root)}l:{root}"
