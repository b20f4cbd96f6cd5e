#include "placement/migration_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/placement/random_placement.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// One plan with what it was made from; every check returns "" or what is wrong.
struct Case {
  Placement current;
  Placement target;
  std::vector<LayerId> layers;
  MigrationOptions options;
  MigrationPlan plan;

  const Topology& topology() const { return target.topology(); }
  bool with_primary() const {
    return options.state_residency == StateResidency::kWithPrimary && options.state_bytes > 0;
  }
  std::vector<Transfer> All() const {
    std::vector<Transfer> all = plan.transfers;
    all.insert(all.end(), plan.local.begin(), plan.local.end());
    return all;
  }
};

Case RandomCase(Random& random) {
  const Topology topology = RandomTopology(random);
  const Placement current = RandomPlacement(random, topology);
  const Placement target =
      random() % 2 == 0 ? RandomPlacement(random, topology) : SwapSlots(random, current, 3);
  std::vector<LayerId> layers;
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    if (random() % 4 != 0) layers.push_back(LayerId{layer});
  }
  const MigrationOptions options{.weight_bytes = Pick(random, 0, 100),
                                 .state_bytes = int64_t{100} * Pick(random, 0, 5),
                                 .state_residency = random() % 2 == 0
                                                        ? StateResidency::kWithPrimary
                                                        : StateResidency::kEveryReplica};
  const auto plan = PlanMigration(current, target, layers, options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (layers.empty()) {  // means all
    for (int32_t layer = 0; layer < topology.num_layers(); ++layer) layers.push_back({layer});
  }
  return {current, target, std::move(layers), options, *plan};
}

// Copies every row as the plan says, all reads before all writes, and compares with `target`.
std::string CheckWeights(const Case& c) {
  IndexMatrix slots = c.current.physical_to_logical_map();
  std::set<std::pair<LayerId, SlotId>> written;
  for (const Transfer& transfer : c.All()) {
    if (c.current.ExpertIn(transfer.layer, transfer.source_slot) != transfer.expert) {
      return absl::StrCat("source slot ", transfer.source_slot.value, " holds another expert");
    }
    if (c.topology().GpuOf(transfer.source_slot) != transfer.source) return "source GPU is wrong";
    for (const SlotId slot : transfer.weight_slots) {
      if (c.topology().GpuOf(slot) != transfer.destination) return "slot of another GPU";
      if (c.current.ExpertIn(transfer.layer, slot) == transfer.expert) return "survivor written";
      if (!written.emplace(transfer.layer, slot).second) return "slot fed twice";
      slots(transfer.layer.value, slot.value) = transfer.expert.value;
    }
  }
  for (int32_t layer = 0; layer < c.topology().num_layers(); ++layer) {
    const bool planned =
        std::find(c.layers.begin(), c.layers.end(), LayerId{layer}) != c.layers.end();
    const Placement& wanted = planned ? c.target : c.current;
    if ((slots.row(layer) != wanted.physical_to_logical_map().row(layer)).any()) {
      return absl::StrCat("layer ", layer, " does not end as planned");
    }
  }
  return "";
}

std::string CheckState(const Case& c) {
  std::map<std::pair<LayerId, ExpertId>, SlotId> landed;
  for (const Transfer& transfer : c.All()) {
    if (transfer.weight_slots.empty() && transfer.state_slots.empty()) return "empty transfer";
    if (c.options.state_bytes == 0 && !transfer.state_slots.empty()) return "state out of nothing";
    if (c.options.state_bytes == 0) continue;
    if (!c.with_primary()) {
      if (transfer.state_slots != transfer.weight_slots) return "state left its weights";
      continue;
    }
    if (transfer.state_slots.size() > 1) return "state in several slots";
    for (const SlotId slot : transfer.state_slots) {
      if (!landed.emplace(std::pair(transfer.layer, transfer.expert), slot).second) {
        return "state landed twice";
      }
      if (transfer.source_slot != c.current.PrimaryOf(transfer.layer, transfer.expert)) {
        return "state does not come from the old primary";
      }
    }
  }
  if (!c.with_primary()) return "";
  size_t changed = 0;
  for (const LayerId layer : c.layers) {
    for (int32_t id = 0; id < c.topology().num_experts(); ++id) {
      const ExpertId expert{id};
      const SlotId primary = c.target.PrimaryOf(layer, expert);
      if (primary == c.current.PrimaryOf(layer, expert)) continue;
      ++changed;
      const auto found = landed.find({layer, expert});
      if (found == landed.end() || found->second != primary) {
        return absl::StrCat("state of layer ", layer.value, " expert ", id,
                            " is not in its new primary");
      }
    }
  }
  return changed == landed.size() ? "" : "state of an unchanged primary moved";
}

std::string CheckRounds(const Case& c) {
  std::vector<int32_t> sends(static_cast<size_t>(c.topology().num_gpus()));
  std::vector<int32_t> receives(sends.size());
  std::set<std::pair<int32_t, GpuId>> senders;
  std::set<std::pair<int32_t, GpuId>> receivers;
  int32_t max_degree = 0;
  int32_t rounds = 0;
  for (const Transfer& transfer : c.plan.transfers) {
    if (transfer.round < 0) return "round out of range";
    rounds = std::max(rounds, transfer.round + 1);
    if (!senders.emplace(transfer.round, transfer.source).second) return "two sends in a round";
    if (!receivers.emplace(transfer.round, transfer.destination).second) {
      return "two receives in a round";
    }
    max_degree = std::max({max_degree, ++sends[static_cast<size_t>(transfer.source.value)],
                           ++receives[static_cast<size_t>(transfer.destination.value)]});
  }
  if (rounds != max_degree) {
    return absl::StrCat(rounds, " rounds, max degree ", max_degree);
  }
  for (const Transfer& transfer : c.plan.local) {
    if (transfer.round != -1 || !transfer.is_local()) return "a local copy has a round";
  }
  return "";
}

// Returns true if a replica of the transfer's expert is where `here` says, before the migration.
template <class Here>
bool HeldWhere(const Case& c, const Transfer& transfer, Here here) {
  const std::span<const int32_t> replicas = c.current.ReplicasOf(transfer.layer, transfer.expert);
  return std::any_of(replicas.begin(), replicas.end(),
                     [&](int32_t slot) { return here(c.topology().GpuOf(SlotId{slot})); });
}

std::string CheckSources(const Case& c) {
  std::set<std::tuple<LayerId, ExpertId, GpuId>> seen;
  for (const Transfer& transfer : c.All()) {
    if (!seen.emplace(transfer.layer, transfer.expert, transfer.destination).second) {
      return "one expert comes to a GPU twice";
    }
    if (c.with_primary() && !transfer.state_slots.empty()) continue;  // its source is given
    const bool own = HeldWhere(c, transfer, [&](GpuId gpu) { return gpu == transfer.destination; });
    if (own != transfer.is_local()) return "own copy not used";
    const NodeId node = c.topology().NodeOf(transfer.destination);
    const bool near =
        HeldWhere(c, transfer, [&](GpuId gpu) { return c.topology().NodeOf(gpu) == node; });
    if (near != (c.topology().NodeOf(transfer.source) == node)) return "source on another node";
  }
  return "";
}

std::string CheckFigures(const Case& c) {
  int64_t bytes = 0;
  int64_t cross_node = 0;
  for (const Transfer& transfer : c.plan.transfers) {
    bytes += transfer.weight_slots.empty() ? 0 : c.options.weight_bytes;
    bytes += transfer.state_slots.empty() ? 0 : c.options.state_bytes;
    const bool crosses =
        c.topology().NodeOf(transfer.source) != c.topology().NodeOf(transfer.destination);
    cross_node += crosses ? 1 : 0;
  }
  std::map<std::pair<LayerId, GpuId>, int32_t> incoming;
  int32_t most = 0;
  for (const Transfer& transfer : c.All()) {
    most = std::max(most, ++incoming[{transfer.layer, transfer.destination}]);
  }
  if (c.plan.link_bytes != bytes) return absl::StrCat("link_bytes is ", c.plan.link_bytes);
  if (c.plan.cross_node_transfers != cross_node) return "cross_node_transfers is wrong";
  if (c.plan.max_incoming_per_gpu_and_layer != most) return "max_incoming is wrong";
  if (most > c.topology().max_slots_per_gpu()) return "more rows come in than there are slots";
  const bool sorted = std::is_sorted(
      c.plan.transfers.begin(), c.plan.transfers.end(), [](const Transfer& a, const Transfer& b) {
        return std::tie(a.round, a.source, a.destination, a.layer, a.expert) <
               std::tie(b.round, b.source, b.destination, b.layer, b.expert);
      });
  return sorted ? "" : "transfers out of order";
}

TEST(MigrationPlanTest, RandomPlansMoveExactlyWhatChanged) {
  constexpr uint64_t kSeed = 90;
  Random random(kSeed);
  for (int i = 0; i < 6000; ++i) {
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, " case ", i));
    const Case c = RandomCase(random);
    ASSERT_EQ(CheckWeights(c), "");
    ASSERT_EQ(CheckState(c), "");
    ASSERT_EQ(CheckRounds(c), "");
    ASSERT_EQ(CheckSources(c), "");
    ASSERT_EQ(CheckFigures(c), "");
  }
}

TEST(MigrationPlanTest, HashIsTheSameOnEveryComputationAndOnlyForTheSameInput) {
  constexpr uint64_t kSeed = 91;
  Random random(kSeed);
  for (int i = 0; i < 1000; ++i) {
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, " case ", i));
    const Case c = RandomCase(random);
    ASSERT_EQ(PlanMigration(c.current, c.target, c.layers, c.options)->hash, c.plan.hash);
    MigrationOptions heavier = c.options;
    heavier.weight_bytes += 1;
    ASSERT_NE(PlanMigration(c.current, c.target, c.layers, heavier)->hash, c.plan.hash);
    if (c.current == c.target) continue;
    ASSERT_NE(PlanMigration(c.target, c.current, c.layers, c.options)->hash, c.plan.hash);
    ASSERT_NE(PlanMigration(c.current, c.current, c.layers, c.options)->hash, c.plan.hash);
  }
}

Topology TwoNodePairs() {
  return *Topology::Make(
      {.num_layers = 1, .num_experts = 4, .num_slots = 8, .num_gpus = 4, .num_nodes = 2});
}

Placement OneRow(const Topology& topology, const std::vector<int32_t>& row) {
  return *Placement::FromSlots(topology, Eigen::Map<const IndexMatrix>(
                                             row.data(), 1, static_cast<Eigen::Index>(row.size())));
}

TEST(MigrationPlanTest, EqualPlacementsNeedNothing) {
  const Placement placement = Placement::Static(TwoNodePairs());
  const auto plan = PlanMigration(placement, placement, {}, {.weight_bytes = 1, .state_bytes = 1});
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(plan->transfers, IsEmpty());
  EXPECT_THAT(plan->local, IsEmpty());
  EXPECT_EQ(plan->link_bytes, 0);
}

TEST(MigrationPlanTest, SeveralReceiversAreSpreadOverTheSources) {
  const Topology topology = *Topology::Make(
      {.num_layers = 1, .num_experts = 5, .num_slots = 8, .num_gpus = 4, .num_nodes = 1});
  // Expert 0 is on GPUs 0 and 1 and comes to GPUs 2 and 3: one send each, one round.
  const auto plan = PlanMigration(OneRow(topology, {0, 1, 0, 2, 3, 3, 4, 4}),
                                  OneRow(topology, {0, 1, 0, 2, 3, 0, 4, 0}), {}, {});
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->transfers.size(), 2U);
  EXPECT_EQ(plan->transfers[0].source, GpuId{0});
  EXPECT_EQ(plan->transfers[1].source, GpuId{1});
  EXPECT_EQ(plan->transfers[0].round, 0);
  EXPECT_EQ(plan->transfers[1].round, 0);
}

TEST(MigrationPlanTest, DuplicatesOnAGpuCrossTheLinkOnce) {
  const auto plan =
      PlanMigration(OneRow(TwoNodePairs(), {0, 1, 2, 3, 0, 1, 2, 3}),
                    OneRow(TwoNodePairs(), {0, 1, 2, 3, 3, 3, 2, 3}), {}, {.weight_bytes = 10});
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->transfers.size(), 1U);
  EXPECT_EQ(plan->transfers[0].source, GpuId{3}) << "the GPU of the same node";
  EXPECT_THAT(plan->transfers[0].weight_slots, ElementsAre(SlotId{4}, SlotId{5}));
  EXPECT_EQ(plan->link_bytes, 10);
}

TEST(MigrationPlanTest, ChangeOfPrimaryMovesStateWhereWeightsAlreadyAre) {
  const Placement current = OneRow(TwoNodePairs(), {0, 1, 2, 3, 0, 1, 2, 3});
  IndexMatrix ranks = current.replica_rank();
  ranks(0, 0) = 1;
  ranks(0, 4) = 0;
  const Placement target =
      *Placement::FromSlotsAndRanks(TwoNodePairs(), current.physical_to_logical_map(), ranks);
  MigrationOptions options{.weight_bytes = 10, .state_bytes = 70};
  EXPECT_THAT(PlanMigration(current, target, {}, options)->transfers, IsEmpty());
  options.state_residency = StateResidency::kWithPrimary;
  const auto plan = PlanMigration(current, target, {}, options);
  ASSERT_EQ(plan->transfers.size(), 1U);
  EXPECT_THAT(plan->transfers[0].weight_slots, IsEmpty());
  EXPECT_THAT(plan->transfers[0].state_slots, ElementsAre(SlotId{4}));
  EXPECT_EQ(plan->transfers[0].source_slot, SlotId{0});
  EXPECT_EQ(plan->link_bytes, 70);
  EXPECT_EQ(plan->cross_node_transfers, 1);
}

TEST(MigrationPlanTest, RefusesWhatItCannotPlan) {
  const Topology topology = TwoNodePairs();
  const Placement a = Placement::Static(topology);
  const Placement swapped = OneRow(topology, {2, 1, 0, 3, 0, 1, 2, 3});
  const Placement other =
      Placement::Static(*Topology::Make({.num_layers = 1, .num_experts = 4, .num_slots = 8}));
  const auto message = [](const absl::StatusOr<MigrationPlan>& plan) {
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(plan.status().message());
  };
  EXPECT_THAT(message(PlanMigration(a, other, {}, {})),
              HasSubstr("the current placement has 4 GPUs, the target placement has 1"));
  const std::vector<LayerId> outside{LayerId{1}};
  EXPECT_THAT(message(PlanMigration(a, a, outside, {})), HasSubstr("layer 1 is outside 0..0"));
  const std::vector<LayerId> twice{LayerId{0}, LayerId{0}};
  EXPECT_THAT(message(PlanMigration(a, a, twice, {})), HasSubstr("layers must rise"));
  EXPECT_THAT(message(PlanMigration(a, a, {}, {.weight_bytes = -1})),
              HasSubstr("weight_bytes is -1"));
  EXPECT_THAT(message(PlanMigration(a, swapped, {}, {.weight_bytes = INT64_MAX})),
              HasSubstr("more than 2^63-1"));
}

TEST(SummariseMovesTest, RandomSummariesAgreeWithCounting) {
  constexpr uint64_t kSeed = 93;
  Random random(kSeed);
  for (int i = 0; i < 1000; ++i) {
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, " case ", i));
    const Case c = RandomCase(random);
    const Topology& topology = c.topology();
    MoveSummary expected;
    for (int32_t row = 0; row < topology.num_layers(); ++row) {
      for (int32_t id = 0; id < topology.num_gpus(); ++id) {
        const GpuId gpu{id};
        std::set<int32_t> arrived;
        for (int32_t k = 0; k < topology.SlotsOf(gpu); ++k) {
          const SlotId slot{topology.FirstSlotOf(gpu).value + k};
          Transfer probe;
          probe.layer = LayerId{row};
          probe.expert = c.target.ExpertIn(probe.layer, slot);
          expected.slots_changed += c.current.ExpertIn(probe.layer, slot) != probe.expert ? 1 : 0;
          if (HeldWhere(c, probe, [&](GpuId other) { return other == gpu; })) continue;
          if (!arrived.insert(probe.expert.value).second) continue;
          const bool near = HeldWhere(c, probe, [&](GpuId other) {
            return topology.NodeOf(other) == topology.NodeOf(gpu);
          });
          expected.cross_node += near ? 0 : 1;
        }
        expected.transfers += static_cast<int64_t>(arrived.size());
        expected.max_per_gpu = std::max(expected.max_per_gpu, static_cast<int64_t>(arrived.size()));
      }
    }
    const auto summary = SummariseMoves(c.current, c.target);
    ASSERT_TRUE(summary.ok()) << summary.status();
    ASSERT_EQ(summary->transfers, expected.transfers);
    ASSERT_EQ(summary->slots_changed, expected.slots_changed);
    ASSERT_EQ(summary->max_per_gpu, expected.max_per_gpu);
    ASSERT_EQ(summary->cross_node, expected.cross_node);
  }
}

}  // namespace
}  // namespace eplb
