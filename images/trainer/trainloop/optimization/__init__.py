"""This package makes a step of gradients; read it in this order.

1. `optimizer`: the algorithm, its parameter groups, and clipping.
2. `schedule`: the learning rate of each update.
3. `precision`: autocast and the gradient scaler, and fp16's overflows.
4. `anomaly`: when a step stands out from those before.
5. `verdict`: the decision to make a step, to leave it out or to go back, by the host or by the device.
"""
