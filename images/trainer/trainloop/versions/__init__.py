"""`trainloop checkpoints` treats a directory of checkpoints as git treats commits.

The loop never imports this package. Read it in this order.

1. `command`: the parser, shell completion, and the exit of a command.
2. `catalog`: the checkpoints in a directory, by their manifests, how users name them, and their settings.
3. `tensors`: a checkpoint's weights, one tensor at a time, and their export as safetensors.
4. `inspecting`: the commands that only read; `differences`: `diff`; `changing`: the commands that write.
5. `output`: tables, sizes and ages as kubectl prints them.
"""
