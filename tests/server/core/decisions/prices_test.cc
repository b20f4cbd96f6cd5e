#include "server/core/decisions/prices.h"

#include <gtest/gtest.h>

#include "server/core/ranks/run.h"
#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

TEST(CostsTest, TheTimeOfATokenIsSharedByTheEpGroupsThatSplitTheTokens) {
  const auto token_seconds = [](int32_t world, int32_t pipeline_stages, int32_t tensor_parallel) {
    State state;
    state.config.costs.token_seconds = 12;
    wire::Hello hello = TestHello(0);
    hello.world_size = world;
    hello.pipeline_parallel_size = pipeline_stages;
    hello.expert_tensor_parallel = tensor_parallel;
    Job job;
    job.current.emplace(MakeRun(hello).value());
    return CostsOf(state, job).token_seconds;
  };
  EXPECT_EQ(token_seconds(3, 1, 1), 12);
  EXPECT_EQ(token_seconds(12, 1, 1), 3);
  EXPECT_EQ(token_seconds(12, 4, 1), 12);
  EXPECT_EQ(token_seconds(12, 1, 2), 6);
  EXPECT_EQ(token_seconds(36, 2, 2), 4);
}

}  // namespace
}  // namespace eplb::core
