#include "client/slot_outputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 1 layer, 3 experts on 4 slots of 2 GPUs, 2 EP groups; the slots hold 0 1, 2 0.
class SlotOutputsTest : public ::testing::Test {
 protected:
  // Outputs of all ranks if no tensor is forgotten: the expert's number plus 10 * the EP group.
  std::vector<SlotOutputs> RightOutputs() const {
    std::vector<SlotOutputs> ranks(4);
    for (int32_t rank = 0; rank < 4; ++rank) {
      const GpuId gpu{rank % 2};
      const auto add = [&](const Placement& placement, std::vector<uint64_t>& outputs) {
        for (int32_t i = 0; i < topology_.SlotsOf(gpu); ++i) {
          const SlotId slot{topology_.FirstSlotOf(gpu).value + i};
          outputs.push_back(10 * static_cast<uint64_t>(rank / 2) +
                            static_cast<uint64_t>(placement.ExpertIn(LayerId{0}, slot).value));
        }
      };
      SlotOutputs& said = ranks[static_cast<size_t>(rank)];
      add(here_, said.before);
      add(rotated_, said.moved);
      add(here_, said.back);
    }
    return ranks;
  }
  absl::Status Compared(const std::vector<SlotOutputs>& ranks) const {
    return CompareOutputs({.here = here_, .rotated = rotated_, .layer = LayerId{0}, .grid = grid_},
                          ranks);
  }
  std::string Verdict(const std::vector<SlotOutputs>& ranks) const {
    return std::string(Compared(ranks).message());
  }

  const Topology topology_ =
      *Topology::Make({.num_layers = 1, .num_experts = 3, .num_slots = 4, .num_gpus = 2});
  const RankGrid grid_ = *RankGrid::Make({.world_size = 4, .num_gpus = 2});
  const Placement here_ = Placement::Static(topology_);
  const Placement rotated_ = *RotateLayer(here_, LayerId{0});
};

TEST_F(SlotOutputsTest, RotationMovesEveryExpertByOneSlotWithItsReplicaRank) {
  const LayerPlacement layer = rotated_.Layer(LayerId{0});
  EXPECT_THAT(layer.physical_to_logical, ElementsAre(0, 0, 1, 2));
  EXPECT_THAT(layer.replica_rank, ElementsAre(1, 0, 0, 0));
}

TEST_F(SlotOutputsTest, EachDifferenceNamesExpertSlotsAndRank) {
  std::vector<SlotOutputs> ranks = RightOutputs();
  ranks[3].moved[1] = 99;  // slot 3
  EXPECT_THAT(Verdict(ranks), HasSubstr("layer 0: expert 2 gives another output when it is moved "
                                        "from slot 2 of rank 3 to slot 3 of rank 3"));
  ranks = RightOutputs();
  ranks[0].back[1] = 99;
  EXPECT_THAT(Verdict(ranks), HasSubstr("expert 1 gives another output when it is moved away from "
                                        "slot 1 of rank 0 and back"));
  ranks = RightOutputs();
  ranks[2].before[0] = 99;
  EXPECT_THAT(Verdict(ranks), HasSubstr("expert 0's replicas in slot 0 of rank 2 and slot 3 of "
                                        "rank 3 give different outputs before anything moves"));
}

TEST_F(SlotOutputsTest, OnlyThePipelineStageThatHoldsTheLayerIsAsked) {
  std::vector<SlotOutputs> ranks = RightOutputs();
  ranks[0] = ranks[1] = {};
  const RankGrid grid =
      *RankGrid::Make({.world_size = 4, .num_gpus = 2, .pipeline_parallel_size = 2});
  const CheckedLayer checked{
      .here = here_, .rotated = rotated_, .layer = LayerId{0}, .grid = grid, .pipeline_stage = 1};
  EXPECT_TRUE(CompareOutputs(checked, ranks).ok()) << CompareOutputs(checked, ranks);
  ranks[3].moved[1] = 99;
  EXPECT_THAT(std::string(CompareOutputs(checked, ranks).message()),
              HasSubstr("from slot 2 of rank 3 to slot 3 of rank 3"));
}

TEST_F(SlotOutputsTest, EqualOutputsOfAllExpertsProveNothing) {
  std::vector<SlotOutputs> ranks = RightOutputs();
  for (SlotOutputs& said : ranks) {
    for (auto* outputs : {&said.before, &said.moved, &said.back}) {
      std::fill(outputs->begin(), outputs->end(), 5);
    }
  }
  EXPECT_EQ(Compared(ranks).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Verdict(ranks), HasSubstr("all experts give the same output"));
}

TEST_F(SlotOutputsTest, RankWithOtherSlotsIsNamed) {
  std::vector<SlotOutputs> ranks = RightOutputs();
  ranks[1].moved.pop_back();
  EXPECT_EQ(Verdict(ranks), "check: layer 0: rank 1 spoke of 1 slots, it has 2");
}

}  // namespace
}  // namespace eplb
