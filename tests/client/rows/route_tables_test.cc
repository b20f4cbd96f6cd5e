#include "client/rows/route_tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "cuda/route.h"
#include "tests/client/rows/forwarding.h"
#include "tests/placement/random_placement.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

constexpr GpuId kGpu{1};

Topology SmallTopology() {
  return Topology::Make({.num_layers = 4, .num_experts = 3, .num_slots = 6, .num_gpus = 3}).value();
}

// Copies like the host queue, and records its calls.
class RecordingQueue : public ForwardingQueue {
 public:
  explicit RecordingQueue(std::vector<std::string>& calls)
      : ForwardingQueue(cuda::MakeHostRowQueue()), calls_(calls) {}

  absl::Status Follow(void* /*stream*/) override {
    calls_.push_back("follow");
    return absl::OkStatus();
  }
  absl::Status LetFollow(void* /*stream*/) override {
    calls_.push_back("let follow");
    return absl::OkStatus();
  }
  absl::StatusOr<int64_t> Transfer(Rows rows) override {
    int64_t num_bytes = 0;
    for (const cuda::RowCopy& row : rows) num_bytes += row.num_bytes;
    calls_.push_back(absl::StrCat("transfer ", rows.size(), " of ", num_bytes));
    return ForwardingQueue::Transfer(rows);
  }
  absl::StatusOr<bool> Ended(int64_t batch) override {
    calls_.push_back("ended");
    return ForwardingQueue::Ended(batch);
  }
  absl::Status Drain(absl::Time deadline) override {
    calls_.push_back("drain");
    return ForwardingQueue::Drain(deadline);
  }
  void* stream() override { return nullptr; }

 private:
  std::vector<std::string>& calls_;
};

cuda::RouteTable TableOf(const RouteArrays& arrays, const Topology& topology, int32_t layer) {
  return {.candidates = arrays.candidates + layer * topology.num_slots(),
          .first_candidate = arrays.first_candidate + layer * (topology.num_experts() + 1),
          .thresholds = arrays.thresholds + layer * topology.num_slots(),
          .num_slots = topology.num_slots()};
}

void ExpectHolds(const RouteArrays& arrays, const Placement& placement) {
  const Topology& topology = placement.topology();
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    SCOPED_TRACE(absl::StrCat("layer ", layer));
    const int32_t* slots = arrays.physical_to_logical + layer * topology.num_slots();
    const int32_t* replicas = arrays.replicas + layer * topology.num_slots();
    const int32_t* first = arrays.first_replica + layer * (topology.num_experts() + 1);
    for (int32_t slot = 0; slot < topology.num_slots(); ++slot) {
      EXPECT_EQ(slots[slot], placement.ExpertIn(LayerId{layer}, SlotId{slot}).value);
    }
    for (int32_t expert = 0; expert < topology.num_experts(); ++expert) {
      const std::span<const int32_t> list(replicas + first[expert], replicas + first[expert + 1]);
      EXPECT_THAT(list, ElementsAreArray(placement.ReplicasOf(LayerId{layer}, ExpertId{expert})));
      EXPECT_EQ(arrays.replica_count[layer * topology.num_experts() + expert],
                placement.ReplicaCount(LayerId{layer}, ExpertId{expert}));
    }
  }
}

// Every token goes to a slot that holds its expert, on this GPU where there is one.
void ExpectRoutes(const RouteArrays& arrays, const Placement& placement) {
  const Topology& topology = placement.topology();
  std::vector<int32_t> ids(600);
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int32_t>(i) % topology.num_experts();
  }
  std::vector<int32_t> slots(ids.size());
  const int32_t first_local = topology.FirstSlotOf(kGpu).value;
  const auto is_local = [&](int32_t slot) {
    return slot >= first_local && slot < first_local + topology.SlotsOf(kGpu);
  };
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    ASSERT_TRUE(cuda::RouteOnHost({.choices = {.expert_ids = ids.data(),
                                               .num_tokens = static_cast<int64_t>(ids.size()),
                                               .top_k = 1,
                                               .num_experts = topology.num_experts()},
                                   .table = TableOf(arrays, topology, layer),
                                   .slots = slots.data()})
                    .ok());
    for (size_t i = 0; i < ids.size(); ++i) {
      ASSERT_EQ(placement.ExpertIn(LayerId{layer}, SlotId{slots[i]}).value, ids[i]);
      const auto replicas = placement.ReplicasOf(LayerId{layer}, ExpertId{ids[i]});
      EXPECT_EQ(is_local(slots[i]), std::any_of(replicas.begin(), replicas.end(), is_local));
    }
  }
}

TEST(RouteTablesTest, AddressesStayAndContentsFollowOverManySwitches) {
  constexpr uint64_t kSeed = 8;
  std::mt19937_64 random(kSeed);
  Placement placement = RandomPlacement(random, SmallTopology());
  const auto tables = RouteTables::Make(cuda::MakeHostRowQueue(), placement, kGpu);
  ASSERT_TRUE(tables.ok()) << tables.status();
  const RouteArrays before = (*tables)->arrays();
  for (int round = 0; round < 50; ++round) {
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, " round ", round));
    const Placement other = RandomPlacement(random, SmallTopology());
    std::vector<LayerId> layers;
    std::vector<LayerPlacement> changed;
    for (int32_t layer = 0; layer < 4; ++layer) {
      if (random() % 2 == 0) continue;
      layers.push_back(LayerId{layer});
      changed.push_back(other.Layer(LayerId{layer}));
    }
    placement = placement.WithLayers(changed).value();
    ASSERT_TRUE((*tables)->Update(placement, layers, nullptr).ok());
    const RouteArrays& now = (*tables)->arrays();
    EXPECT_EQ(now.physical_to_logical, before.physical_to_logical);
    EXPECT_EQ(now.replicas, before.replicas);
    EXPECT_EQ(now.first_replica, before.first_replica);
    EXPECT_EQ(now.replica_count, before.replica_count);
    EXPECT_EQ(now.candidates, before.candidates);
    EXPECT_EQ(now.first_candidate, before.first_candidate);
    EXPECT_EQ(now.thresholds, before.thresholds);
    EXPECT_EQ(now.number, before.number);
    ExpectHolds(now, placement);
    ExpectRoutes(now, placement);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(RouteTablesTest, UploadsOnlyTheLayersGivenAndInTheStreamsOrder) {
  std::mt19937_64 random(9);
  const Placement placement = RandomPlacement(random, SmallTopology());
  std::vector<std::string> calls;
  const auto tables = RouteTables::Make(std::make_unique<RecordingQueue>(calls), placement, kGpu);
  ASSERT_TRUE(tables.ok()) << tables.status();
  constexpr int kLayerBytes = (4 * 6 + 3 * 3 + 3) * 4;
  EXPECT_THAT(calls, ElementsAre(absl::StrCat("transfer 8 of ", 4 * kLayerBytes), "ended"));
  calls.clear();
  const std::vector<LayerId> two_runs{LayerId{0}, LayerId{2}, LayerId{3}};
  ASSERT_TRUE((*tables)->Update(placement, two_runs, nullptr).ok());
  EXPECT_THAT(
      calls, ElementsAre("follow", absl::StrCat("transfer 16 of ", 3 * kLayerBytes), "let follow"));
  calls.clear();
  ASSERT_TRUE((*tables)->Update(placement, {&two_runs[0], 1}, nullptr).ok());
  EXPECT_THAT(calls, ElementsAre("ended", "follow", absl::StrCat("transfer 8 of ", kLayerBytes),
                                 "let follow"))
      << "pinned memory is written once the upload before has ended";
  EXPECT_THAT(std::span((*tables)->arrays().number, 4), ElementsAre(2, 0, 1, 1));
  EXPECT_THAT(std::span((*tables)->newest_numbers(), 4), ElementsAre(2, 0, 1, 1));
}

TEST(RouteTablesTest, SlotsOfAnUnusableGpuAreInNoList) {
  const Topology topology =
      Topology::Make({.num_layers = 1, .num_experts = 2, .num_slots = 4, .num_gpus = 2}).value();
  IndexMatrix slots(1, 4);
  slots << 1, 0, -1, -1;
  const Placement placement = Placement::FromSlots(topology, slots).value();
  const auto tables = RouteTables::Make(cuda::MakeHostRowQueue(), placement, kGpu);
  ASSERT_TRUE(tables.ok()) << tables.status();
  const RouteArrays& arrays = (*tables)->arrays();
  EXPECT_THAT(std::span(arrays.replicas, 4), ElementsAre(1, 0, -1, -1));
  EXPECT_THAT(std::span(arrays.first_replica, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(std::span(arrays.candidates, 4), ElementsAre(1, 0, -1, -1));
}

// 128 layers of 1024 experts on 2048 slots: 5.8 MB, where a column for each slot that one expert
// could get takes 537 MB.
TEST(RouteTablesTest, TheLargestModelTakesMegabytes) {
  const Topology topology =
      Topology::Make({.num_layers = 128, .num_experts = 1024, .num_slots = 2048, .num_gpus = 512})
          .value();
  std::vector<std::string> calls;
  const auto tables =
      RouteTables::Make(std::make_unique<RecordingQueue>(calls), Placement::Static(topology), kGpu);
  ASSERT_TRUE(tables.ok()) << tables.status();
  EXPECT_EQ(calls.front(), absl::StrCat("transfer 8 of ", 128 * (4 * 2048 + 3 * 1024 + 3) * 4));
}

}  // namespace
}  // namespace eplb
