"""Where data sets come from, one file per source."""
