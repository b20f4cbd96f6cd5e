// Routing tables in the memory of a device hold what the same tables hold in host memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "base/monotonic_clock.h"
#include "client/rows/route_tables.h"
#include "client/rows/row_message.h"
#include "tests/client/rows/expert_world.h"
#include "tests/cuda/require_gpu.h"
#include "tests/gpu/device_queue.h"

namespace eplb {
namespace {

constexpr int32_t kRouteLayers = 4;
constexpr int32_t kRouteExperts = 9;
constexpr int32_t kSlots = 16;
constexpr GpuId kGpu{1};

class RouteTablesGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    EPLB_REQUIRE_GPU_OR_SKIP();
    queue_ = MakeDeviceQueue();
    ASSERT_NE(queue_, nullptr);
    auto device = RouteTables::Make(MakeDeviceQueue(), placement_, kGpu);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    auto host = RouteTables::Make(cuda::MakeHostRowQueue(), placement_, kGpu);
    ASSERT_TRUE(host.ok()) << host.status();
    host_ = *std::move(host);
  }

  template <typename Number>
  void ExpectSame(const Number* on_device, const Number* on_host, int64_t count) {
    const int64_t num_bytes = count * int64_t{sizeof(Number)};
    const auto back = queue_->AllocatePinned(num_bytes);
    ASSERT_TRUE(back.ok()) << back.status();
    const cuda::RowCopy copy{.source = reinterpret_cast<const std::byte*>(on_device),
                             .destination = back->bytes.data(),
                             .num_bytes = num_bytes};
    const auto batch = queue_->Transfer(std::span(&copy, 1));
    ASSERT_TRUE(batch.ok()) << batch.status();
    ASSERT_TRUE(AwaitBatch(*queue_, *batch, MonotonicNow() + kSettleTimeout).ok());
    const auto* numbers = reinterpret_cast<const Number*>(back->bytes.data());
    EXPECT_THAT(std::vector<Number>(numbers, numbers + count),
                ::testing::ElementsAreArray(on_host, static_cast<size_t>(count)));
  }

  void ExpectAllSame() {
    const RouteArrays& device = device_->arrays();
    const RouteArrays& host = host_->arrays();
    ASSERT_TRUE(queue_->Follow(/*stream=*/nullptr).ok());
    ExpectSame(device.physical_to_logical, host.physical_to_logical, kRouteLayers * kSlots);
    ExpectSame(device.replicas, host.replicas, kRouteLayers * kSlots);
    ExpectSame(device.first_replica, host.first_replica, kRouteLayers * (kRouteExperts + 1));
    ExpectSame(device.replica_count, host.replica_count, kRouteLayers * kRouteExperts);
    ExpectSame(device.candidates, host.candidates, kRouteLayers * kSlots);
    ExpectSame(device.first_candidate, host.first_candidate, kRouteLayers * (kRouteExperts + 1));
    ExpectSame(device.thresholds, host.thresholds, kRouteLayers * kSlots);
  }

  std::mt19937 random_{7};
  const Topology topology_ = Topology::Make({.num_layers = kRouteLayers,
                                             .num_experts = kRouteExperts,
                                             .num_slots = kSlots,
                                             .num_gpus = 4})
                                 .value();
  const Placement placement_ = RandomPlacement(random_, topology_);
  std::unique_ptr<cuda::RowQueue> queue_;  // reads back
  std::unique_ptr<RouteTables> device_;
  std::unique_ptr<RouteTables> host_;
};

TEST_F(RouteTablesGpuTest, TheFirstPlacementIsThereAtOnce) { ExpectAllSame(); }

TEST_F(RouteTablesGpuTest, LayersChangeInTheOrderOfTheStreamAndNoAddressMoves) {
  const int32_t* const address = device_->arrays().candidates;
  for (const std::vector<LayerId>& layers :
       {std::vector{LayerId{1}, LayerId{2}}, std::vector{LayerId{3}}, std::vector{LayerId{0}}}) {
    const Placement next = RandomPlacement(random_, topology_);
    ASSERT_TRUE(device_->Update(next, layers, /*stream=*/nullptr).ok());
    ASSERT_TRUE(host_->Update(next, layers, /*stream=*/nullptr).ok());
    ExpectAllSame();
  }
  EXPECT_EQ(device_->arrays().candidates, address);
}

}  // namespace
}  // namespace eplb
