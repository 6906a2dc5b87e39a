"""This package makes a step of gradients; read it in this order.

1. `optimizer`: the algorithm, its parameter groups, and clipping.
2. `schedule`: the learning rate of each update.
3. `precision`: autocast and the gradient scaler.
4. `gradients`: ghost gradients. `checksums`: parameters that differ between ranks. `overflows`: fp16's.
5. `anomaly`: when a step stands out of those before.
6. `verdict`: the decision to make a step, to leave it out or to go back, by the host or by the device.
7. `several`: more than one optimizer, for one loss or by turns.
"""
