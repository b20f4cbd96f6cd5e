// Batches and what their echoes must be by EchoPlanner: for the host and the device test.
#ifndef EPLB_TESTS_CUDA_ECHO_CASE_H_
#define EPLB_TESTS_CUDA_ECHO_CASE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/kernels/echo_layer_body.h"

namespace eplb::cuda::testing {

// Arrays of EchoArgs, on the host.
struct EchoOutputs {
  std::vector<int64_t> home_tokens;
  std::vector<int32_t> source;
  std::vector<int64_t> spare_tokens;
  std::vector<EchoPeak> peaks;

  friend bool operator==(const EchoOutputs&, const EchoOutputs&) = default;
};

struct EchoCase {
  std::string name;
  EchoArgs shape;  // its pointers are null
  std::vector<int32_t> first_slot, slot_expert, slot_num_replicas, slot_replica_rank;
  std::vector<int64_t> counts;
  EchoOutputs expected;
};

// One GPU; 64 of them with 4 homes and 2 spare slots at imbalances of 1.51 to 3.03, in one domain
// and in eight; experts with two homes and an unusable GPU; GPUs and slots that no warp divides; a
// layer whose counts are of no use.
std::vector<EchoCase> EchoCases();

// Of the right sizes, and full of what no echo has.
EchoOutputs MakeOutputs(const EchoArgs& shape);

}  // namespace eplb::cuda::testing

#endif  // EPLB_TESTS_CUDA_ECHO_CASE_H_
