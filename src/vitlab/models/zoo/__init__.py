"""The zoo: tables of rows, one per kind of family."""
