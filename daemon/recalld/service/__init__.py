"""The tasks that join the pure core to the edges."""
