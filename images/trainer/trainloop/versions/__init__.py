"""`trainloop checkpoints` treats a directory of checkpoints as git treats commits.

The loop never imports this package. Read it in this order.

1. `command`: the parser, shell completion, and exit codes.
2. `catalog` reads the manifests of a directory's checkpoints, finds checkpoints by the names that users enter, and
   reads their settings.
3. `tensors` reads a checkpoint's weights, one tensor at a time, and exports them as safetensors.
4. `inspecting`: the commands that only read. `differences`: the command `diff`. `changing`: the commands that write.
5. `output`: tables, sizes and ages as kubectl prints them.
"""
