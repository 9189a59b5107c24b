"""What several rooms build on: plain data and functions that decide nothing.

Enters and leaves: values, expressions, graphs. Nothing here keeps state of a recording.
"""
