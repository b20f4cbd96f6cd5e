// The example that docs/counting-on-the-gpu.md refers to; counting_gpu_test.cc runs it.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include <cuda_runtime_api.h>

#include "client/client.h"
#include "cuda/route.h"

namespace eplb {

struct Choices {
  const int32_t* expert_ids = nullptr;  // [num_tokens, top_k], the router's, on the device
  int64_t num_tokens = 0;
  int32_t top_k = 0;
};

// In the forward pass: `slots`, [num_tokens, top_k], is what dispatch and grouped GEMM index by.
// counters: [layers, experts + 1] on the device, zero at first; a row's last counts bad ids.
inline absl::Status RouteAndCount(const eplb::DeviceTables& tables, int32_t layer, Choices choices,
                                  int64_t* counters, int32_t* slots, cudaStream_t stream) {
  const int64_t expert_row = int64_t{layer} * (tables.num_experts + 1);
  const int64_t slot_row = int64_t{layer} * tables.num_slots;
  return eplb::cuda::LaunchRoute(
      {.choices = {.expert_ids = choices.expert_ids,
                   .num_tokens = choices.num_tokens,
                   .top_k = choices.top_k,
                   .num_experts = tables.num_experts,
                   .counts = counters + expert_row,
                   .out_of_range = counters + expert_row + tables.num_experts},
       .table = {.candidates = tables.candidates + slot_row,
                 .first_candidate = tables.first_candidate + expert_row,
                 .num_slots = tables.num_slots},
       .slots = slots},
      stream);
}

// Once a step, before StepBoundary. host: room for all counters in pinned memory.
inline absl::Status RecordStep(eplb::Client& client, int64_t* counters, int64_t* host,
                               cudaStream_t stream) {
  const size_t row = client.device_tables().num_experts + 1;
  const size_t num_bytes = client.device_tables().num_layers * row * sizeof(int64_t);
  (void)cudaMemcpyAsync(host, counters, num_bytes, cudaMemcpyDeviceToHost, stream);
  (void)cudaMemsetAsync(counters, 0, num_bytes, stream);
  if (cudaStreamSynchronize(stream) != cudaSuccess) return absl::InternalError("counting failed");
  absl::Status status;
  for (int32_t layer = 0; layer < client.device_tables().num_layers; ++layer) {
    status.Update(client.Record(layer, {host + layer * row, row - 1}));
  }
  return status;
}

}  // namespace eplb
