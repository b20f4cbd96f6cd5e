// Client::device_tables over a job's life: what kernels read is what placement() shows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <span>
#include <vector>

#include "client/client.h"
#include "tests/client/session/proposals.h"
#include "tests/client/session/scripted_daemon.h"
#include "tests/client/test_job.h"

namespace eplb {
namespace {

// The tables show the slots of placement(); tests/client/rows/route_tables_test.cc compares the
// rest.
void ExpectShowsThePlacement(const Client& client) {
  const PlacementView& view = client.placement();
  const DeviceTables& tables = client.device_tables();
  ASSERT_EQ(tables.num_layers, view.num_layers);
  ASSERT_EQ(tables.num_experts, view.num_experts);
  ASSERT_EQ(tables.num_slots, view.num_slots);
  ASSERT_NE(tables.physical_to_logical_map, nullptr);
  EXPECT_THAT(std::span(tables.physical_to_logical_map, view.physical_to_logical_map.size()),
              ::testing::ElementsAreArray(view.physical_to_logical_map))
      << "version " << view.version;
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
