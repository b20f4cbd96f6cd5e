"""The configurations that are compared: a row for each, with the versions that have it."""

STEPS = 100
FEW = 60  # for rows with many processes


def _row(name, world=2, ep=2, steps=STEPS, since=(0, 0, 0), until=(1 << 30,), **options):
    """since, until: of the versions that have it, the second excluded. The rest goes to the script that trains."""
    return {"name": name, "world": world, "ep": ep, "steps": steps, "since": since, "until": until, **options}


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
    _row("EP2 GroupedMLP", experts="grouped", stand_ins=["grouped_gemm"], until=(0, 17, 0),
         config={"moe_use_legacy_grouped_gemm": True}),
    _row("EP2 distributed optimizer", distributed_optimizer=True),
    _row("EP2 x DP2 distributed optimizer", world=4, steps=FEW, distributed_optimizer=True),
    _row("EP4 bf16", world=4, ep=4, steps=FEW),
    _row("EP2 x DP2", world=4, steps=FEW),
    _row("PP2 x EP2, 4 layers", world=4, pp=2, layers=4, steps=FEW),
    _row("TP2 x EP2, sequence parallel", world=4, tp=2, etp=1, steps=FEW, stand_ins=["apex_norm"]),
    _row("TP2 x ETP2 x EP2", world=4, tp=2, etp=2, steps=FEW, stand_ins=["apex_norm"]),
)

DEEPSPEED = (
    _row("EP2 top-1, all tokens"),
    _row("EP2 top-2", moe={"k": 2}),
    _row("EP2 top-1, dropped tokens", moe={"drop_tokens": True, "capacity_factor": 1.5}),
    _row("EP2, 3 batches accumulated", accumulate=3),
    _row("EP2 AdamW foreach", foreach=True),
    _row("EP2 x DP2", world=4, steps=FEW),
    _row("EP4", world=4, ep=4, steps=FEW),
)


def rows_of(kind, version):
    """The rows that a version has. kind: "megatron" or "deepspeed"."""
    rows = [dict(row) for row in (MEGATRON if kind == "megatron" else DEEPSPEED) if row["since"] <= version < row["until"]]
    for row in rows:
        del row["since"], row["until"]
        if kind == "megatron" and version >= (0, 18, 0):
            row["hollow"] = ["triton"]
    return rows
