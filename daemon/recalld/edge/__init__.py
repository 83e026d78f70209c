"""The outer ring: one adapter for each thing that does I/O. Nothing else imports those libraries."""
