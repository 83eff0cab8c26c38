"""What everything stands on: errors, configurations, atomic files, pictures and the preprocessing spec."""
