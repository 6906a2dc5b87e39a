"""This package turns gradients into a step; read it in this order.

1. `optimizer`: the algorithm, its parameter groups, and clipping.
2. `schedule`: the learning rate of each update.
3. `precision`: autocast, the gradient scaler, and fp16's overflows.
4. `anomaly`: detects a step whose numbers differ strongly from those of earlier steps.
5. `verdict`: the decision, by the host or the device, to make a step, to skip it, or to return to a checkpoint.
"""
