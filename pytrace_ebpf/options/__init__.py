"""The options that commands share, and which of them go together."""
