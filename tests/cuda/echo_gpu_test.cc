#include <gtest/gtest.h>

#include <vector>

#include "cuda/echo.h"
#include "cuda/runtime.h"
#include "tests/cuda/echo_case.h"
#include "tests/cuda/on_device.h"
#include "tests/cuda/require_gpu.h"

namespace eplb::cuda {
namespace {

using testing::EchoCase;
using testing::EchoOutputs;
using testing::OnDevice;

class LaunchEchoTest : public ::testing::Test {
 protected:
  void SetUp() override { EPLB_REQUIRE_GPU_OR_SKIP(); }
};

TEST_F(LaunchEchoTest, EqualsThePlannerDirectlyAndFromAGraph) {
  ASSERT_TRUE(LoadEchoKernels().ok());
  for (const EchoCase& c : testing::EchoCases()) {
    SCOPED_TRACE(c.name);
    const OnDevice<int32_t> first_slot(c.first_slot);
    const OnDevice<int32_t> slot_expert(c.slot_expert);
    const OnDevice<int32_t> slot_num_replicas(c.slot_num_replicas);
    const OnDevice<int32_t> slot_replica_rank(c.slot_replica_rank);
    const OnDevice<int64_t> counts(c.counts);
    const auto stream = MakeStream();
    ASSERT_TRUE(stream.ok()) << stream.status();
    for (const bool captured : {false, true}) {
      const EchoOutputs unset = testing::MakeOutputs(c.shape);
      const OnDevice<int64_t> home_tokens(unset.home_tokens);
      const OnDevice<int32_t> source(unset.source);
      const OnDevice<int64_t> spare_tokens(unset.spare_tokens);
      const OnDevice<EchoPeak> peaks(unset.peaks);
      EchoArgs args = c.shape;
      args.first_slot = first_slot.data();
      args.slot_expert = slot_expert.data();
      args.slot_num_replicas = slot_num_replicas.data();
      args.slot_replica_rank = slot_replica_rank.data();
      args.counts = counts.data();
      args.home_tokens = home_tokens.data();
      args.source = source.data();
      args.spare_tokens = spare_tokens.data();
      args.peaks = peaks.data();
      const auto launch = [&](cudaStream_t s) { return LaunchEcho(args, s); };
      if (captured) {
        const testing::GraphExec graph = testing::Capture(stream->get(), launch);
        ASSERT_EQ(cudaGraphLaunch(graph.get(), stream->get()), cudaSuccess);
        ASSERT_EQ(cudaStreamSynchronize(stream->get()), cudaSuccess);
      } else {
        const absl::Status launched = launch(stream->get());
        ASSERT_TRUE(launched.ok()) << launched;
        ASSERT_EQ(cudaStreamSynchronize(stream->get()), cudaSuccess);
      }
      const EchoOutputs outputs{.home_tokens = home_tokens.Read(),
                                .source = source.Read(),
                                .spare_tokens = spare_tokens.Read(),
                                .peaks = peaks.Read()};
      EXPECT_EQ(outputs, c.expected) << (captured ? "from a graph" : "launched");
    }
  }
}

TEST_F(LaunchEchoTest, RefusesWhatTheHostRefuses) {
  EXPECT_EQ(LaunchEcho({.num_layers = 1}, nullptr).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace eplb::cuda
