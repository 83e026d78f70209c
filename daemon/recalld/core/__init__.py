"""The pure ring: no clock, no I/O, no await. Time is an argument, decisions are returned as values."""
