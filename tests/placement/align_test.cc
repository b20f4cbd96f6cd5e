#include "placement/align.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "placement/evaluate.h"
#include "tests/placement/random_placement.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int32_t> Held(const Placement& placement, LayerId layer, GpuId gpu) {
  const auto row =
      placement.physical_to_logical_map()
          .row(layer.value)
          .segment(placement.topology().FirstSlotOf(gpu).value, placement.topology().SlotsOf(gpu));
  return {row.begin(), row.end()};
}

int64_t Changed(const Placement& a, const Placement& b) {
  return (a.physical_to_logical_map() != b.physical_to_logical_map()).count();
}

// The least number of slots of this GPU that must change, whatever the labels: those that the
// common multiset does not cover.
int64_t LeastChanges(std::vector<int32_t> before, std::vector<int32_t> after) {
  std::sort(before.begin(), before.end());
  std::sort(after.begin(), after.end());
  std::vector<int32_t> common;
  std::set_intersection(before.begin(), before.end(), after.begin(), after.end(),
                        std::back_inserter(common));
  return static_cast<int64_t>(before.size() - common.size());
}

// "" when the GPUs hold what `next` says with as few changes as possible.
std::string CheckGpus(const Placement& previous, const Placement& next, const Placement& aligned) {
  int64_t least = 0;
  for (int32_t layer = 0; layer < next.topology().num_layers(); ++layer) {
    for (int32_t gpu = 0; gpu < next.topology().num_gpus(); ++gpu) {
      const std::vector<int32_t> wanted = Held(next, LayerId{layer}, GpuId{gpu});
      const std::vector<int32_t> held = Held(aligned, LayerId{layer}, GpuId{gpu});
      if (!std::is_permutation(wanted.begin(), wanted.end(), held.begin(), held.end())) {
        return absl::StrCat("layer ", layer, " GPU ", gpu, " holds other experts than next says");
      }
      least += LeastChanges(Held(previous, LayerId{layer}, GpuId{gpu}), held);
    }
  }
  if (Changed(previous, aligned) != least) {
    return absl::StrCat(Changed(previous, aligned), " slots change, ", least, " would do");
  }
  if (least > Changed(previous, next)) return "more slots change than without alignment";
  return "";
}

// "" when every expert's primary stayed if its GPU still holds it, else is the lowest survivor, and
// the other replicas are in rising slots.
std::string CheckRanks(const Placement& previous, const Placement& aligned) {
  const Topology& topology = aligned.topology();
  for (int32_t row = 0; row < topology.num_layers(); ++row) {
    for (int32_t id = 0; id < topology.num_experts(); ++id) {
      const LayerId layer{row};
      const ExpertId expert{id};
      const std::string who = absl::StrCat("layer ", row, " expert ", id, ": ");
      const std::span<const int32_t> replicas = aligned.ReplicasOf(layer, expert);
      if (!std::is_sorted(replicas.begin() + 1, replicas.end())) {
        return absl::StrCat(who, "replicas out of order");
      }
      const SlotId old_primary = previous.PrimaryOf(layer, expert);
      const std::vector<int32_t> on_old_gpu = Held(aligned, layer, topology.GpuOf(old_primary));
      if (std::count(on_old_gpu.begin(), on_old_gpu.end(), id) > 0) {
        if (replicas[0] != old_primary.value) return absl::StrCat(who, "primary moved needlessly");
        continue;
      }
      int32_t lowest = topology.num_slots();
      for (const int32_t slot : replicas) {
        if (previous.ExpertIn(layer, SlotId{slot}) == expert) lowest = std::min(lowest, slot);
      }
      if (lowest < topology.num_slots() && replicas[0] != lowest) {
        return absl::StrCat(who, "primary is not the lowest survivor");
      }
    }
  }
  return "";
}

TEST(AlignTest, RandomPlacementsKeepSurvivorsAndChangeAsLittleAsPossible) {
  constexpr uint64_t kSeed = 60;
  Random random(kSeed);
  for (int i = 0; i < 2500; ++i) {
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, " case ", i));
    const Topology topology = RandomTopology(random);
    const Placement previous = RandomPlacement(random, topology);
    const Placement next =
        i % 2 == 0 ? RandomPlacement(random, topology) : SwapSlots(random, previous, 3);
    const auto aligned = Align(previous, next);
    ASSERT_TRUE(aligned.ok()) << aligned.status();
    ASSERT_EQ(CheckGpus(previous, next, *aligned), "");
    ASSERT_EQ(CheckRanks(previous, *aligned), "");
    ASSERT_EQ(*Align(previous, *aligned), *aligned) << "aligning twice changed something";
  }
}

TEST(AlignTest, ArrivalsTakeFreedSlotsInTheirOrder) {
  const Topology topology =
      *Topology::Make({.num_layers = 1, .num_experts = 6, .num_slots = 6, .num_gpus = 2});
  IndexMatrix next(1, 6);
  next << 5, 2, 3, 0, 4, 1;
  const Placement aligned =
      *Align(Placement::Static(topology), *Placement::FromSlots(topology, next));
  // GPU 0 keeps 2 in slot 2; 5 and 3 arrive in that order. GPU 1 keeps 4; 0 and 1 arrive.
  EXPECT_THAT(aligned.Layer(LayerId{0}).physical_to_logical, ElementsAre(5, 3, 2, 0, 4, 1));
}

TEST(AlignTest, NewPrimaryWithoutSurvivorIsTheOneOfNext) {
  const Topology topology =
      *Topology::Make({.num_layers = 1, .num_experts = 4, .num_slots = 6, .num_gpus = 3});
  IndexMatrix previous(1, 6);
  previous << 0, 1, 2, 3, 2, 3;
  IndexMatrix next(1, 6);
  next << 1, 2, 0, 3, 0, 3;
  IndexMatrix ranks(1, 6);
  ranks << 0, 0, 1, 0, 0, 1;  // the primary of expert 0 is slot 4
  const Placement aligned = *Align(*Placement::FromSlots(topology, previous),
                                   *Placement::FromSlotsAndRanks(topology, next, ranks));
  EXPECT_EQ(aligned.PrimaryOf(LayerId{0}, ExpertId{0}), SlotId{4});
}

TEST(AlignTest, WhatAnUnusableGpuHeldIsGoneAndComesBack) {
  const Topology topology =
      *Topology::Make({.num_layers = 1, .num_experts = 2, .num_slots = 4, .num_gpus = 2});
  IndexMatrix all(1, 4);
  all << 0, 1, 1, 0;
  IndexMatrix half(1, 4);
  half << 1, 0, -1, -1;
  const Placement whole = *Placement::FromSlots(topology, all);
  const Placement first_gpu_only = *Placement::FromSlots(topology, half);
  const auto lost = Align(whole, first_gpu_only);
  ASSERT_TRUE(lost.ok()) << lost.status();
  EXPECT_EQ(lost->ExpertIn(LayerId{0}, SlotId{0}), ExpertId{0});
  EXPECT_EQ(lost->ExpertIn(LayerId{0}, SlotId{2}), ExpertId{-1});
  const auto back = Align(*lost, whole);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->PrimaryOf(LayerId{0}, ExpertId{1}), SlotId{1});
}

TEST(AlignTest, RefusesPlacementsOfDifferentShape) {
  const Topology a = *Topology::Make({.num_layers = 1, .num_experts = 2, .num_slots = 2});
  const Topology b = *Topology::Make({.num_layers = 1, .num_experts = 2, .num_slots = 3});
  EXPECT_THAT(Align(Placement::Static(a), Placement::Static(b)).status().message(),
              HasSubstr("the previous placement has 2 slots, the next placement has 3"));
}

}  // namespace
}  // namespace eplb
