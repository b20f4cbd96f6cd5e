// Router output at random and what counting it must give: for the host and the device test.
#pragma once

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "cuda/kernels/count_body.h"

namespace eplb::cuda::testing {

struct CountShape {
  int64_t num_tokens = 0;
  int32_t top_k = 1;
  int32_t num_experts = 1;
  bool masked = false;
};

template <class ExpertId>
struct CountCase {
  CountShape shape;
  std::vector<ExpertId> ids;
  std::vector<uint8_t> is_padding;  // empty unless masked
  std::vector<int64_t> counts;      // expected
  int64_t out_of_range = 0;         // expected
};

// About one id in eight is out of range, some of them by far; about one token in four is padding.
template <class ExpertId>
CountCase<ExpertId> MakeCountCase(const CountShape& shape, uint64_t seed) {
  std::mt19937_64 random(seed);
  CountCase<ExpertId> result;
  result.shape = shape;
  result.counts.assign(static_cast<size_t>(shape.num_experts), 0);
  const ExpertId far[] = {-1, static_cast<ExpertId>(shape.num_experts),
                          std::numeric_limits<ExpertId>::min(),
                          std::numeric_limits<ExpertId>::max()};
  for (int64_t token = 0; token < shape.num_tokens; ++token) {
    const bool padding = shape.masked && random() % 4 == 0;
    if (shape.masked) result.is_padding.push_back(padding ? static_cast<uint8_t>(random() | 1) : 0);
    for (int32_t k = 0; k < shape.top_k; ++k) {
      const bool outside = random() % 8 == 0;
      const auto expert = random() % static_cast<uint64_t>(shape.num_experts);
      result.ids.push_back(outside ? far[random() % 4] : static_cast<ExpertId>(expert));
      if (padding) continue;
      if (outside) {
        ++result.out_of_range;
      } else {
        ++result.counts[expert];
      }
    }
  }
  return result;
}

// Args over the case's own ids and mask; counters are the caller's.
template <class ExpertId>
CountArgs ArgsOf(const CountCase<ExpertId>& c) {
  return {.expert_ids = c.ids.data(),
          .id_type = sizeof(ExpertId) == 4 ? ExpertIdType::kInt32 : ExpertIdType::kInt64,
          .is_padding = c.shape.masked ? c.is_padding.data() : nullptr,
          .num_tokens = c.shape.num_tokens,
          .top_k = c.shape.top_k,
          .num_experts = c.shape.num_experts};
}

// Sizes around a warp, a thousand, and a tail that fills no block.
inline std::vector<CountShape> CountShapes() {
  std::vector<CountShape> shapes;
  for (const int64_t num_tokens : {0, 1, 31, 32, 33, 1000, 4099}) {
    for (const bool masked : {false, true}) {
      shapes.push_back({num_tokens, 1, 7, masked});
      shapes.push_back({num_tokens, 8, 256, masked});
    }
  }
  return shapes;
}

}  // namespace eplb::cuda::testing
