// Ten thousand shapes of up to 1,024 GPUs: too long for every build.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "tests/placement/split/split_checks.h"

namespace eplb {
namespace {

TEST(BatchSplitSlowTest, EqualsAnIndependentMaximumFlowOnTenThousandShapes) {
  Random random(10'000);
  for (int i = 0; i < 10'000 && !HasFailure(); ++i) {
    const int32_t num_gpus =
        i % 500 == 0 ? Pick(random, 512, 1016) : Pick(random, 2, i % 10 == 0 ? 300 : 64);
    const int32_t num_experts = Pick(random, 1, i % 10 == 0 ? 512 : 256);
    const int32_t least = std::max(num_experts, num_gpus);
    const int32_t slots_of_gpu =
        Pick(random, (least + num_gpus - 1) / num_gpus, 3 * least / num_gpus + 1);
    CheckShape(random,
               {.num_layers = 1,
                .num_experts = num_experts,
                .num_slots = slots_of_gpu * num_gpus,
                .num_gpus = num_gpus},
               1);
  }
}

}  // namespace
}  // namespace eplb
