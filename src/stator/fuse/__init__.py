"""ATen graphs become loop programs: decompose, group, lower, plan memory. Plain data; nothing here knows a target."""
