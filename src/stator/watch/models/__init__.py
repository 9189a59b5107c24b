"""What is known of C callables, builtin types, torch functions and libraries, as rows.

Enters: a callable and its arguments. Leaves: the rule it goes by, or that there is none, which breaks the graph: every
table here fails closed.
"""
