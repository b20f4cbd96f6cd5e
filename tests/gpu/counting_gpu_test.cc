// Routers on a GPU route and count by the tables that a migration updates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "client/client.h"
#include "client/rows/route_tables.h"
#include "cuda/runtime.h"
#include "tests/client/rows/expert_world.h"
#include "tests/client/rows/queue_memory.h"
#include "tests/cuda/require_gpu.h"
#include "tests/gpu/counting_example.h"
#include "tests/gpu/device_queue.h"
#ifdef EPLB_FAKE_CUDA
#include "tests/support/fake_cuda/fake_cuda.h"
#endif

namespace eplb {
namespace {

using ::testing::ElementsAreArray;

constexpr int32_t kCountLayers = 3;
constexpr int32_t kCountExperts = 9;
constexpr int32_t kTopK = 2;
constexpr int32_t kTokens = 501;
constexpr int64_t kPairs = int64_t{kTokens} * kTopK;  // pairs of a layer
constexpr int64_t kRow = kCountExperts + 1;           // counters of a layer

// Router choices at random, those of each layer; some out of range.
std::vector<int32_t> RandomIds(std::mt19937& random) {
  std::vector<int32_t> ids(kCountLayers * kPairs);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % (kCountExperts + 1));
  return ids;
}

class CountingGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    EPLB_REQUIRE_GPU_OR_SKIP();
    memory_ = std::make_unique<QueueMemory>(&MakeDeviceQueue);
  }

  template <class Number>
  Number* OnDevice(const std::vector<Number>& numbers) {
    std::vector<std::byte> bytes(numbers.size() * sizeof(Number));
    std::memcpy(bytes.data(), numbers.data(), bytes.size());
    return reinterpret_cast<Number*>(memory_->Put(std::move(bytes)).data());
  }

  template <class Number>
  std::vector<Number> Read(const Number* numbers, int64_t count) {
    const auto bytes = memory_->Read(
        {reinterpret_cast<const std::byte*>(numbers), static_cast<size_t>(count) * sizeof(Number)});
    std::vector<Number> read(static_cast<size_t>(count));
    std::memcpy(read.data(), bytes.data(), bytes.size());
    return read;
  }

  std::mt19937 random_{11};
  std::unique_ptr<QueueMemory> memory_;
};

// The tables that Client::device_tables() shows are these arrays.
DeviceTables TablesOf(const RouteArrays& arrays, const Topology& topology) {
  return {.num_layers = topology.num_layers(),
          .num_experts = topology.num_experts(),
          .num_slots = topology.num_slots(),
          .candidates = arrays.candidates,
          .first_candidate = arrays.first_candidate,
          .thresholds = arrays.thresholds};
}

// Slots that the kernel must write for a layer, by the host's body over the host's tables.
std::vector<int32_t> SlotsOnHost(const DeviceTables& tables, int32_t layer,
                                 std::span<const int32_t> ids, int64_t* counts) {
  std::vector<int32_t> slots(ids.size());
  const int64_t slot_row = int64_t{layer} * tables.num_slots;
  const absl::Status routed =
      cuda::RouteOnHost({.choices = {.expert_ids = ids.data(),
                                     .num_tokens = static_cast<int64_t>(ids.size()) / kTopK,
                                     .top_k = kTopK,
                                     .num_experts = tables.num_experts,
                                     .counts = counts,
                                     .out_of_range = counts + tables.num_experts},
                         .table = {.candidates = tables.candidates + slot_row,
                                   .first_candidate = tables.first_candidate + layer * kRow,
                                   .thresholds = tables.thresholds + slot_row,
                                   .num_slots = tables.num_slots},
                         .slots = slots.data()});
  EXPECT_TRUE(routed.ok()) << routed;
  return slots;
}

// Work after an update on its stream uses the new placement's slots, without a wait in between,
// and what came before it to the old one's.
TEST_F(CountingGpuTest, KernelsRouteByThePlacementThatTheirPlaceOnTheStreamGives) {
  const Topology topology = Topology::Make({.num_layers = kCountLayers,
                                            .num_experts = kCountExperts,
                                            .num_slots = 16,
                                            .num_gpus = 4})
                                .value();
  const Placement before = RandomPlacement(random_, topology);
  const Placement after = RandomPlacement(random_, topology);
  const std::vector<LayerId> changed = {LayerId{0}, LayerId{2}};
  auto device = RouteTables::Make(MakeDeviceQueue(), before, GpuId{1});
  auto host = RouteTables::Make(cuda::MakeHostRowQueue(), before, GpuId{1});
  ASSERT_TRUE(device.ok() && host.ok()) << device.status() << host.status();
  const DeviceTables on_device = TablesOf((*device)->arrays(), topology);
  const DeviceTables on_host = TablesOf((*host)->arrays(), topology);

  const std::vector<int32_t> ids = RandomIds(random_);
  const int32_t* const device_ids = OnDevice(ids);
  int32_t* const slots = OnDevice(std::vector<int32_t>(2 * ids.size()));
  std::vector<int64_t> expected_counts(kCountLayers * kRow);
  int64_t* const counters = OnDevice(expected_counts);
  std::vector<int32_t> expected;
  const auto route = [&](int64_t pass) {
    for (int32_t layer = 0; layer < kCountLayers; ++layer) {
      const absl::Status routed =
          RouteAndCount(on_device, layer, {device_ids + layer * kPairs, kTokens, kTopK}, counters,
                        slots + (pass * kCountLayers + layer) * kPairs, /*stream=*/nullptr);
      ASSERT_TRUE(routed.ok()) << routed;
      const std::vector<int32_t> of_layer =
          SlotsOnHost(on_host, layer, std::span(ids).subspan(layer * kPairs, kPairs),
                      expected_counts.data() + layer * kRow);
      expected.insert(expected.end(), of_layer.begin(), of_layer.end());
    }
  };
  route(0);
  ASSERT_TRUE((*device)->Update(after, changed, /*stream=*/nullptr).ok());
  ASSERT_TRUE((*host)->Update(after, changed, /*stream=*/nullptr).ok());
  route(1);
  EXPECT_THAT(Read(slots, std::ssize(expected)), ElementsAreArray(expected));
  EXPECT_THAT(Read(counters, kCountLayers * kRow), ElementsAreArray(expected_counts));
}

// Launches of kernels that were not loaded before; a GPU does not report them.
int64_t NumUnloadedLaunches() {
#ifdef EPLB_FAKE_CUDA
  return fake_cuda::NumUnloadedLaunches();
#else
  return 0;
#endif
}

// A job of one rank whose experts lie on the device.
class OneRank {
 public:
  static absl::StatusOr<std::unique_ptr<Client>> Connect(std::span<std::byte> rows) {
    ClientOptions options;
    options.num_layers = kCountLayers;
    options.num_experts = kCountExperts;
    options.num_slots = kCountExperts;
    auto client = Client::Connect(options, [](std::string_view bytes) {
      return absl::StatusOr<std::vector<std::string>>({std::string(bytes)});
    });
    if (!client.ok()) return client;
    std::vector<ExpertTensorView> tensors;
    tensors.reserve(kCountLayers);
    for (int32_t layer = 0; layer < kCountLayers; ++layer) {
      tensors.push_back({.name = absl::StrCat("layers.", layer, ".weight"),
                         .layer = layer,
                         .base = rows.data() + layer * kLayerBytes,
                         .num_rows = kCountExperts,
                         .row_bytes = kRowBytes,
                         .row_stride = kRowBytes});
    }
    const absl::Status registered = (*client)->RegisterExperts(tensors);
    if (!registered.ok()) return registered;
    return client;
  }

  static constexpr int64_t kRowBytes = 64;
  static constexpr int64_t kLayerBytes = kCountExperts * kRowBytes;
};

TEST_F(CountingGpuTest, TheExampleOfThePageRecordsWhatWasCounted) {
  const std::span<std::byte> rows =
      memory_->Put(std::vector<std::byte>(kCountLayers * OneRank::kLayerBytes));
  const auto client = OneRank::Connect(rows);
  ASSERT_TRUE(client.ok()) << client.status();
  const auto stream = cuda::MakeStream();
  const auto pinned = cuda::MakePinnedMemory(kCountLayers * kRow * int64_t{sizeof(int64_t)});
  ASSERT_TRUE(stream.ok() && pinned.ok()) << stream.status() << pinned.status();
  auto* const host = static_cast<int64_t*>(pinned->get());
  int64_t* const counters = OnDevice(std::vector<int64_t>(kCountLayers * kRow));
  int32_t* const slots = OnDevice(std::vector<int32_t>(kPairs));
  const int64_t unloaded_launches = NumUnloadedLaunches();
  for (int64_t step = 0; step < 3; ++step) {
    const std::vector<int32_t> ids = RandomIds(random_);
    const int32_t* const device_ids = OnDevice(ids);
    std::vector<int64_t> expected(kCountLayers * kRow);
    for (int32_t layer = 0; layer < kCountLayers; ++layer) {
      const Choices choices{device_ids + layer * kPairs, kTokens, kTopK};
      const absl::Status routed =
          RouteAndCount((*client)->device_tables(), layer, choices, counters, slots, stream->get());
      ASSERT_TRUE(routed.ok()) << routed;
      for (int64_t i = 0; i < kPairs; ++i) {
        ++expected[layer * kRow + ids[layer * kPairs + i]];
      }
    }
    const absl::Status recorded = RecordStep(**client, counters, host, stream->get());
    ASSERT_TRUE(recorded.ok()) << recorded;
    EXPECT_THAT(std::vector(host, host + expected.size()), ElementsAreArray(expected))
        << "of this step alone";
    ASSERT_TRUE((*client)->StepBoundary(step, stream->get()).ok());
  }
  EXPECT_EQ(NumUnloadedLaunches(), unloaded_launches) << "registration loads what steps launch";
}

}  // namespace
}  // namespace eplb
