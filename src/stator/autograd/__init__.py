"""Ahead-of-time autograd: forward and backward graphs before the first result."""
