"""The messages of the protocol and their codec: the text is `protocol/README.md`, the Structs its run-time truth."""
