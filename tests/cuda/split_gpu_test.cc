#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/runtime.h"
#include "cuda/split.h"
#include "tests/cuda/on_device.h"
#include "tests/cuda/require_gpu.h"
#include "tests/cuda/split_case.h"

namespace eplb::cuda {
namespace {

using testing::OnDevice;
using testing::SplitCase;
using testing::SplitResults;

// A case's arrays on the device.
class SplitOnDevice {
 public:
  explicit SplitOnDevice(const SplitCase& c)
      : results_(c),
        args_(c.ArgsFor(results_)),
        tables_(c.tables()),
        counts_(c.counts()),
        quotas_(results_.quotas),
        own_(results_.own),
        refused_(results_.refused),
        peaks_(results_.peaks) {
    args_.tables = reinterpret_cast<const std::byte*>(tables_.data());
    args_.counts = counts_.data();
    args_.quotas = quotas_.data();
    args_.own = own_.data();
    args_.refused = refused_.data();
    args_.peaks = peaks_.data();
  }

  const SplitArgs& args() const { return args_; }

  // Replaces tables and counts by those of a case of the same shape.
  void Write(const SplitCase& c) {
    const auto write = [](void* to, const auto& values) {
      EXPECT_EQ(
          cudaMemcpy(to, values.data(), values.size() * sizeof(values[0]), cudaMemcpyHostToDevice),
          cudaSuccess);
    };
    write(tables_.data(), c.tables());
    write(counts_.data(), c.counts());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  SplitResults Read() {
    results_.quotas = quotas_.Read();
    results_.own = own_.Read();
    results_.refused = refused_.Read();
    results_.peaks = peaks_.Read();
    return results_;
  }

 private:
  SplitResults results_;
  SplitArgs args_;
  OnDevice<TableUnit> tables_;
  OnDevice<int64_t> counts_;
  OnDevice<int64_t> quotas_;
  OnDevice<int64_t> own_;
  OnDevice<int32_t> refused_;
  OnDevice<SplitPeak> peaks_;
};

class LaunchSplitTest : public testing::StreamTest<> {
 protected:
  void ExpectHostBits(const SplitCase& c) {
    SplitResults host(c);
    ASSERT_TRUE(SplitOnHost(c.ArgsFor(host)).ok());
    SplitOnDevice on_device(c);
    const absl::Status launched = LaunchSplit(on_device.args(), stream_.get());
    ASSERT_TRUE(launched.ok()) << launched;
    ASSERT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
    EXPECT_EQ(on_device.Read(), host);
  }
};

TEST_F(LaunchSplitTest, SmallShapesHaveTheBitsOfTheHost) {
  ASSERT_TRUE(LoadSplitKernels().ok());
  Random random(510);
  for (int i = 0; i < testing::kNumSmallShapes && !HasFailure(); ++i) {
    ExpectHostBits(SplitCase(random, eplb::RandomTopology(random)));
  }
}

TEST_F(LaunchSplitTest, LargeShapesHaveTheBitsOfTheHost) {
  ASSERT_TRUE(LoadSplitKernels().ok());
  Random random(511);
  constexpr struct {
    int32_t num_layers, num_experts, num_slots, num_gpus;
  } kShapes[] = {{testing::kManyLayers, 256, 288, 32},
                 {testing::kManyLayers, 256, 384, 64},
                 {std::min(testing::kManyLayers, 8), 256, 512, 128},
                 {1, 512, 768, 32}};  // more shared memory than a kernel gets by default
  for (const auto& shape : kShapes) {
    ExpectHostBits(SplitCase(random, *Topology::Make({.num_layers = shape.num_layers,
                                                      .num_experts = shape.num_experts,
                                                      .num_slots = shape.num_slots,
                                                      .num_gpus = shape.num_gpus})));
  }
}

// The second placement has more parts than the one of the capture, and its own speeds and margins.
TEST_F(LaunchSplitTest, ACapturedGraphSplitsTheCountsAndTablesOfEachLaunch) {
  Random random(512);
  const Topology topology =
      *Topology::Make({.num_layers = 4, .num_experts = 64, .num_slots = 72, .num_gpus = 8});
  SplitCase c(random, Placement::Static(topology));
  SplitOnDevice on_device(c);
  const testing::GraphExec graph = testing::Capture(
      stream_.get(), [&](cudaStream_t stream) { return LaunchSplit(on_device.args(), stream); });
  for (int i = 0; i < 4; ++i) {
    c = SplitCase(random,
                  i < 2 ? Placement::Static(topology) : eplb::RandomPlacement(random, topology));
    on_device.Write(c);
    ASSERT_EQ(cudaGraphLaunch(graph.get(), stream_.get()), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
    SplitResults host(c);
    ASSERT_TRUE(SplitOnHost(c.ArgsFor(host)).ok());
    EXPECT_EQ(on_device.Read(), host);
  }
}

TEST_F(LaunchSplitTest, RefusesWhatTheHostRefuses) {
  SplitArgs args;
  args.shape = {.num_layers = 1, .num_experts = 1, .num_slots = 1, .num_gpus = 1};
  args.num_layers = 1;
  EXPECT_EQ(LaunchSplit(args, nullptr).code(), absl::StatusCode::kInvalidArgument);
  args.num_layers = 0;
  EXPECT_TRUE(LaunchSplit(args, nullptr).ok());
}

}  // namespace
}  // namespace eplb::cuda
