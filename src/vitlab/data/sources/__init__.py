"""Where data sets come from, one file a source."""
