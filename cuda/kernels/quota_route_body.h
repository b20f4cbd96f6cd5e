// The body of routing by quota: the choices of an expert, in the order of their index, fill its
// slots. A chunk of choices begins where the counts of the chunks before it end.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/host_device.h"
#include "cuda/kernels/count_body.h"
#include "cuda/kernels/route_body.h"

namespace eplb::cuda {

// Pointers are to device memory for LaunchQuotaRoute, to host memory for QuotaRouteOnHost.
struct QuotaRouteArgs {
  // Choices of one layer, counted by LaunchCount with these chunk_counts.
  CountArgs choices;
  // SplitLayer's: an expert's slots in the order of replica rank.
  const int32_t* first_slot = nullptr;    // [num_experts + 1]
  const int32_t* replica_slot = nullptr;  // [first_slot[num_experts]]
  const int64_t* own = nullptr;           // [num_slots], this rank's quotas, as SplitArgs::own
  int32_t num_slots = 0;
  // [num_tokens, top_k] of choices.id_type; may be expert_ids itself, else apart from it.
  void* slots = nullptr;
  int64_t* beyond = nullptr;  // [1], choices beyond their expert's quotas are added to it
};
static_assert(std::is_trivially_copyable_v<QuotaRouteArgs>);

// More choices than a batch has.
inline constexpr uint32_t kMostChoices = uint32_t{1} << 31;

EPLB_HOST_DEVICE inline uint32_t QuotaOf(int64_t own) {
  return own < kMostChoices ? static_cast<uint32_t>(own) : kMostChoices;
}

// Turns the quotas of an expert's list, at limits[list.first] and after it, into their sums.
EPLB_HOST_DEVICE inline void AddUpQuotas(const CandidateList& list, uint32_t* limits) {
  uint32_t sum = 0;
  for (int32_t i = list.first; i < list.first + list.count; ++i) {
    sum += limits[i] < kMostChoices - sum ? limits[i] : kMostChoices - sum;
    limits[i] = sum;
  }
}

// Returns the index in `limits` of the slot that takes choice number `place` of an expert; the end
// of the list if the quotas end before.
EPLB_HOST_DEVICE inline int32_t IndexOfPlace(const CandidateList& list, const uint32_t* limits,
                                             uint32_t place) {
  int32_t index = list.first;
  while (index < list.first + list.count && place >= limits[index]) ++index;
  return index;
}

}  // namespace eplb::cuda
