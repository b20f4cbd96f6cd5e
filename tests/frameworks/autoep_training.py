"""One rank of a small training of DeepSpeed's AutoEP on CPUs, with EPLB or without it: real models of transformers, whose blocks of
experts it replaces.

AutoEP does not start with the transformers of requirements.txt: `run` puts the packages of autoep.txt first on the path.
"""

import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import deepspeed
import deepspeed_training
import forked
import torch
from transformers import AutoModelForCausalLM, MixtralConfig, Qwen3MoeConfig

VOCABULARY, TOKENS, EXPERTS = 64, 48, 8

SIZES = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2,
         "head_dim": 8, "max_position_embeddings": 64, "num_experts_per_tok": 2, "tie_word_embeddings": False}
CONFIGS = {"mixtral": lambda layers: MixtralConfig(**SIZES, num_hidden_layers=layers, intermediate_size=24, num_local_experts=EXPERTS),
           "qwen3_moe": lambda layers: Qwen3MoeConfig(**SIZES, num_hidden_layers=layers, intermediate_size=32,
                                                      moe_intermediate_size=24, num_experts=EXPERTS, norm_topk_prob=True)}


class Training(deepspeed_training.Training):
    def initialize(self):
        torch.manual_seed(5)
        model = AutoModelForCausalLM.from_config(CONFIGS[self.row["model"]](self.row["layers"]), attn_implementation="eager")
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" not in name:
                    parameter.normal_(std=0.3)
        optimizer = {"type": "AdamW", "params": {"lr": 5e-3, "torch_adam": True}}
        experts = {"enabled": True, "autoep_size": self.row["ep"], "preset_model": self.row["model"]}
        return deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                    config={**self.config(), "optimizer": optimizer, "expert_parallel": experts})

    def verify(self, attached):
        attached.check()

    def loss(self, model, ids):
        return model(input_ids=ids, labels=ids).loss

    def batch(self, step):
        hot = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(17 + step // deepspeed_training.PHASE_STEPS))[:3]
        return hot[torch.randint(len(hot), (1, TOKENS), generator=self.random())]


def _row(key, name, world=2, model="mixtral", **options):
    return {**deepspeed_training.row(key, name, world), "model": model, **options}


ROWS = (
    _row("mixtral", "AutoEP, Mixtral fp32 EP2"),
    _row("zero2", "AutoEP, Mixtral bf16 ZeRO-2 EP2", zero=2, bf16=True, saves=True),
    _row("edp", "AutoEP, Mixtral bf16 ZeRO-2 EP2 x DP2, cut", world=4, layers=3, zero=2, bf16=True, cuts=True),
    _row("qwen3", "AutoEP, Qwen3 bf16 ZeRO-1 EP2", model="qwen3_moe", zero=1, bf16=True))

RowsTest = forked.tests_of(Training, ROWS)

if __name__ == "__main__":
    sys.dont_write_bytecode = True
    forked.main()
