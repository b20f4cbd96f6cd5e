// The body of the token count: which counter one router choice adds to. No barrier, no atomic: the
// caller adds, on the GPU with atomics, on the CPU plainly.
#ifndef EPLB_CUDA_KERNELS_COUNT_BODY_H_
#define EPLB_CUDA_KERNELS_COUNT_BODY_H_

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/host_device.h"

namespace eplb::cuda {

enum class ExpertIdType { kInt32, kInt64 };

// Pointers are to device memory for LaunchCount, to host memory for CountOnHost.
struct CountArgs {
  const void* expert_ids =
      nullptr;  // [num_tokens, top_k] of id_type, row-major: the router's top-k
  ExpertIdType id_type = ExpertIdType::kInt32;
  const uint8_t* is_padding = nullptr;  // [num_tokens], not 0: leave the token out; null: none is
  int64_t num_tokens = 0;
  int32_t top_k = 0;
  int32_t num_experts = 0;
  int64_t* counts = nullptr;        // [num_experts], tokens per expert are added to it
  int64_t* out_of_range = nullptr;  // [1], choices outside 0..num_experts-1 are added to it
};
static_assert(std::is_trivially_copyable_v<CountArgs>);

inline constexpr int32_t kNoBin = -1;

// The bin of choice `index`, 0..num_tokens*top_k-1: its expert, num_experts when its id is out of
// range, kNoBin for padding (whose ids are never looked at).
template <class ExpertId>
EPLB_HOST_DEVICE inline int32_t CountBin(const CountArgs& args, int64_t index) {
  if (args.is_padding != nullptr && args.is_padding[index / args.top_k] != 0) return kNoBin;
  const ExpertId id = static_cast<const ExpertId*>(args.expert_ids)[index];
  return id >= 0 && id < args.num_experts ? static_cast<int32_t>(id) : args.num_experts;
}

// The counter of a bin, 0..num_experts; never outside the two arrays.
EPLB_HOST_DEVICE inline int64_t* CountCell(const CountArgs& args, int32_t bin) {
  return bin < args.num_experts ? args.counts + bin : args.out_of_range;
}

}  // namespace eplb::cuda

#endif  // EPLB_CUDA_KERNELS_COUNT_BODY_H_
