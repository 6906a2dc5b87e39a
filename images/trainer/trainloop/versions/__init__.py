"""`trainloop checkpoints` treats a directory of checkpoints as git treats commits; the loop never imports this package.
Read it in this order.

1. `command`: the parser, and how a command ends.
2. `catalog`: which checkpoints a directory has, by their manifests, and what a user may call one; `configuration`: the
   settings that one was made with.
3. `tensors`: a checkpoint's weights, one tensor at a time; `pieces`: those of a sharded one.
4. `inspecting`: the commands that read only; `differences`: `diff`, of what `comparison` finds; `changing`: the ones
   that write, and `export`, which writes safetensors.
5. `output`: tables, sizes and ages as kubectl prints them; `completion`: what the shell completes.
"""
