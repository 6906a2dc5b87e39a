"""This package spreads the model over the ranks; read it in this order.

1. `strategies`: one interface, and DDP; `local` has local SGD, `sharded` ZeRO-1 and FSDP2; `blocks` are their units,
   `blockwise` compiles or recomputes them, and `deferred` makes a model without memory for it;
   `layout` lays the ranks out where the run says how; `tensor`: ranks that share each layer; `freezing`: what a hook
   has frozen in mid-run; `copies`: ZeRO-1 whose every shard two ranks hold.
2. `communication`: DDP's hook, which sends and measures; `compression`: gradients on fewer bits;
   `lossy`: those that leave something out, and `feedback`: how it comes with later steps.
3. `delayed`, and `waiting` where there is one: a group of parameters that is stepped every k steps.
4. `averaging`: the mean over ranks, for what isn't DDP's.
5. `balance`, and `speed` where they do: shares of the batch that follow the ranks' speed.
"""
