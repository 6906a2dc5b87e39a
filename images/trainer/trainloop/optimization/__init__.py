"""This package makes a step of gradients; read it in this order.

1. `optimizer`: the algorithm, its parameter groups, and clipping.
2. `schedule`: the learning rate of each update.
3. `precision`: autocast and the gradient scaler.
4. `gradients`, `ghosts`: parameters without a gradient; `checksums`: those that differ between ranks.
5. `anomaly`: when a step stands out of those before.
6. `verdict`: the decision to make a step, to leave it out or to go back, by the host or by the device.
7. `overflows`: fp16's gradients that overflow in a row.
8. `several`: more than one optimizer, for one loss or by turns.
"""
