// Client::device_tables over a job's life: what kernels read is what placement() shows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"

#include "client/client.h"
#include "cuda/route.h"
#include "tests/client/session/proposals.h"
#include "tests/client/session/scripted_daemon.h"
#include "tests/client/test_job.h"

namespace eplb {
namespace {

// Equal to placement() on every layer, and routing by them meets the experts.
void ExpectShowsThePlacement(const Client& client) {
  const PlacementView& view = client.placement();
  const DeviceTables& tables = client.device_tables();
  ASSERT_EQ(tables.num_layers, view.num_layers);
  ASSERT_EQ(tables.num_experts, view.num_experts);
  ASSERT_EQ(tables.num_slots, view.num_slots);
  ASSERT_NE(tables.physical_to_logical_map, nullptr);
  std::vector<int32_t> ids(static_cast<size_t>(tables.num_experts));
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<int32_t> slots(ids.size());
  for (int32_t layer = 0; layer < tables.num_layers; ++layer) {
    SCOPED_TRACE(absl::StrCat("version ", view.version, " layer ", layer));
    const int32_t slot_row = layer * tables.num_slots;
    const int32_t expert_row = layer * tables.num_experts;
    const int32_t* first = tables.first_replica + expert_row + layer;  // rows of E + 1
    for (int32_t slot = 0; slot < tables.num_slots; ++slot) {
      EXPECT_EQ(tables.physical_to_logical_map[slot_row + slot],
                view.physical_to_logical_map[static_cast<size_t>(slot_row + slot)]);
    }
    for (int32_t expert = 0; expert < tables.num_experts; ++expert) {
      const int32_t count = view.logical_replica_count[static_cast<size_t>(expert_row + expert)];
      EXPECT_EQ(tables.logical_replica_count[expert_row + expert], count);
      ASSERT_EQ(first[expert + 1] - first[expert], count);
      for (int32_t i = 0; i < count; ++i) {
        EXPECT_EQ(tables.replicas[slot_row + first[expert] + i],
                  view.logical_to_physical_map[static_cast<size_t>(
                      (expert_row + expert) * view.max_replicas + i)]);
      }
    }
    const absl::Status routed =
        cuda::RouteOnHost({.choices = {.expert_ids = ids.data(),
                                       .num_tokens = tables.num_experts,
                                       .top_k = 1,
                                       .num_experts = tables.num_experts},
                           .table = {.candidates = tables.candidates + slot_row,
                                     .first_candidate = tables.first_candidate + expert_row + layer,
                                     .thresholds = tables.thresholds + slot_row,
                                     .num_slots = tables.num_slots},
                           .slots = slots.data()});
    ASSERT_TRUE(routed.ok()) << routed;
    for (size_t expert = 0; expert < ids.size(); ++expert) {
      EXPECT_EQ(view.physical_to_logical_map[static_cast<size_t>(slot_row + slots[expert])],
                ids[expert]);
    }
  }
}

TEST(DeviceTablesTest, FollowEverySwitchAtTheSameAddresses) {
  const Placement first = Placement::Static(SmallTopology());
  const std::vector<Placement> targets = {Swapped(Swapped(first, 0, 0, 2), 2, 1, 3),
                                          Swapped(first, 1, 0, 3), first};
  ScriptedDaemon daemon({});
  StartedJob job(daemon.endpoint());
  daemon.WaitForRanks(kTestRanks);
  std::vector<int64_t> next_step(kTestRanks, 0);
  std::vector<const int32_t*> addresses(kTestRanks);
  Placement running = first;
  int64_t running_version = 0;
  for (const Placement& target : targets) {
    const int64_t version = running_version + 5;
    daemon.SendAll(ProposeTo(Running(running_version, running), target, version, 1));
    job.Run([&](int32_t r, TestRank& rank) {
      const auto index = static_cast<size_t>(r);
      ExpectShowsThePlacement(rank.client());
      const int32_t* candidates = rank.client().device_tables().candidates;
      if (addresses[index] == nullptr) addresses[index] = candidates;
      const absl::StatusOr<int64_t> step = rank.StepUntil(
          next_step[index], [](const BoundaryResult& result) { return result.switched; });
      ASSERT_TRUE(step.ok()) << step.status();
      next_step[index] = *step + 1;
      EXPECT_EQ(rank.client().placement().version, version);
      EXPECT_EQ(rank.client().device_tables().candidates, addresses[index]);
      ExpectShowsThePlacement(rank.client());
    });
    running = target;
    running_version = version;
  }
}

TEST(DeviceTablesTest, ShowTheMovedLayerToTheProbeOfACheck) {
  StartedJob job("");
  job.Run([](int32_t, TestRank& rank) {
    const absl::Status checked = rank.client().CheckExperts([&](int32_t layer, int32_t local_slot) {
      ExpectShowsThePlacement(rank.client());
      return rank.BytesOf(layer, local_slot);
    });
    EXPECT_TRUE(checked.ok()) << checked;
    ExpectShowsThePlacement(rank.client());
  });
}

TEST(DeviceTablesTest, AreThereForADisabledClientToo) {
  setenv("EPLB_DISABLE", "1", 1);
  StartedJob job("127.0.0.1:1");
  unsetenv("EPLB_DISABLE");
  ExpectShowsThePlacement(job.rank(1).client());
}

}  // namespace
}  // namespace eplb
