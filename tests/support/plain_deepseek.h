// A plain implementation of DeepSeek's `rebalance_experts` that shares no code with the product:
// the reference of tests beyond the recorded cases, and the baseline of benchmarks.
#pragma once

#include <cstdint>

// mode: 0 takes the lower index first among equal values; 1 takes the order of std::sort.
extern "C" {
// Matrices are row-major: weight [L, E]; physical_to_logical and replica_rank [L, S]; counts
// [L, E]. Returns 0, or 1 for a refused shape.
int eplb_run(int num_layers, int num_experts, int num_slots, int groups, int nodes, int gpus,
             const float* weight, int64_t* physical_to_logical, int64_t* replica_rank,
             int64_t* counts, int mode);
// Returns torch's float32 sum of a row.
float eplb_rowsum(const float* row, int64_t size);
// Writes the indices of values in torch's descending order.
void eplb_order(const float* values, int size, int64_t* order, int mode);
}
