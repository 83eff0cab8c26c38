"""Where images come from: sources and decoding."""
