// A plain implementation of DeepSeek's rebalance_experts: oracle of tests, baseline of speed
// ratios.
#ifndef EPLB_TESTS_SUPPORT_PLAIN_DEEPSEEK_H_
#define EPLB_TESTS_SUPPORT_PLAIN_DEEPSEEK_H_

#include <cstdint>

extern "C" {

// Matrices are row-major: weight [L, E]; physical_to_logical and replica_rank [L, S]; counts
// [L, E]. mode: 0 stable, 1 compat. Returns 0, or 1 for a refused shape.
int eplb_run(int num_layers, int num_experts, int num_slots, int groups, int nodes, int gpus,
             const float* weight, int64_t* physical_to_logical, int64_t* replica_rank,
             int64_t* counts, int mode);

// torch's sum of a row of float32.
float eplb_rowsum(const float* row, int64_t size);

// torch's descending order of a row: the indices [size]. mode: as in eplb_run.
void eplb_order(const float* row, int size, int64_t* order, int mode);
}

#endif  // EPLB_TESTS_SUPPORT_PLAIN_DEEPSEEK_H_
