"""What is known of callables that are not watched inside: which rule or which facts each goes by."""
