"""The configurations that are compared: a row for each, with the versions that have it."""

STEPS = 100
FEW = 60  # for rows with many processes


def _row(name, world=2, ep=2, steps=STEPS, since=(0, 0, 0), **options):
    return {"name": name, "world": world, "ep": ep, "steps": steps, "since": since, **options}


MEGATRON = (
    _row("EP2 bf16 SequentialMLP alltoall"),
    _row("EP2 fp32", dtype="float32"),
    _row("EP2 dispatcher allgather", config={"moe_token_dispatcher_type": "allgather"}),
    _row("EP2 SGD momentum", optimizer={"optimizer": "sgd", "lr": 0.05}),
    _row("EP2 expert bias, sigmoid, shared expert", config={
        "moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True, "moe_router_bias_update_rate": 1e-2,
        "moe_shared_expert_intermediate_size": 96, "moe_router_load_balancing_type": "none", "moe_aux_loss_coeff": 0.0}),
    _row("EP2 group-limited router", config={"moe_router_num_groups": 4, "moe_router_group_topk": 2}),
    _row("EP2 linear biases", config={"add_bias_linear": True}),
    _row("EP2 GLU", config={"gated_linear_unit": True}),
    _row("EP2 recompute full", config={"recompute_granularity": "full", "recompute_method": "uniform",
                                       "recompute_num_layers": 1}),
    _row("EP4 bf16", world=4, ep=4, steps=FEW),
    _row("EP2 x DP2", world=4, steps=FEW),
    _row("PP2 x EP2, 4 layers", world=4, pp=2, layers=4, steps=FEW),
)

DEEPSPEED = ()


def rows_of(kind, version):
    """The rows that a version has. kind: "megatron" or "deepspeed"."""
    rows = [dict(row) for row in (MEGATRON if kind == "megatron" else DEEPSPEED) if version >= row["since"]]
    for row in rows:
        del row["since"]
        if kind == "megatron" and version >= (0, 18, 0):
            row["hollow"] = ["triton"]
    return rows
