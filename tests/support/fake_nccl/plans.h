// How NCCL cuts a group of sends and receives into kernels (2.28.9, src/enqueue.cc): the model with
// which the fake shows that large groups can wait for each other for ever.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace eplb::fake_nccl {

struct Operation {
  bool is_send = false;
  int32_t peer = 0;
  size_t bytes = 0;
  const std::byte* source = nullptr;  // null unless a send
  std::byte* target = nullptr;        // null unless a receive
  bool is_registered = false;         // its memory, with this communicator
  uint64_t hash = 0;                  // hash of the sent bytes at the call; 0: not known
};

struct Planner {
  int32_t rank = 0;
  int32_t num_ranks = 1;
  int32_t channels = 32;  // each operation is spread over all of them, as large ones are
};

// Indices of `operations` for each plan; the plans run one after the other. A plan holds 254 work
// batches. An operation takes one batch on each channel; operations with different peers share
// batches, up to 8, those with the same peer never do.
std::vector<std::vector<size_t>> CutIntoPlans(const std::vector<Operation>& operations,
                                              const Planner& planner);

}  // namespace eplb::fake_nccl
