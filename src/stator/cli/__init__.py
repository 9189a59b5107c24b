"""`python -m stator`: one file per command. Prints, and exits with codes that scripts can use."""
