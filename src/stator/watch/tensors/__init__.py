"""Operations on tensors become nodes of a graph.

Enters: calls of torch functions, executed for real. Leaves: a `torch.fx.Graph` over outside tensors, and which of them
it writes to. A tensor that is neither outside nor made by a node ends the recording.
"""
