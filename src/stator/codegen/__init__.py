"""Machine code for loop programs, made in process by LLVM."""
