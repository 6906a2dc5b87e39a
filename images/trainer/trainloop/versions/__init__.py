"""`trainloop checkpoints` treats a directory of checkpoints as git treats commits; the loop never imports this package.
Read it in this order.

1. `command`: the parser, what the shell completes, and how a command ends.
2. `catalog`: which checkpoints a directory has, by their manifests, what a user may call one, and its settings.
3. `tensors`: a checkpoint's weights, one tensor at a time, and their export as safetensors.
4. `inspecting`: the commands that read only; `differences`: `diff`; `changing`: the commands that write.
5. `output`: tables, sizes and ages as kubectl prints them.
"""
