#include "client/expert_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/client/faulty_channels.h"
#include "tests/client/test_job.h"

namespace eplb {

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 1 layer, 3 experts on 4 slots of 2 GPUs, 2 EP groups; the slots hold 0 1, 2 0.
class ExpertCheckTest : public ::testing::Test {
 protected:
  // What ranks say when nothing is forgotten: the expert's number, and the EP group beside it.
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

TEST_F(ExpertCheckTest, RotationMovesEveryExpertByOneSlotWithItsReplicaRank) {
  const LayerPlacement layer = rotated_.Layer(LayerId{0});
  EXPECT_THAT(layer.physical_to_logical, ElementsAre(0, 0, 1, 2));
  EXPECT_THAT(layer.replica_rank, ElementsAre(1, 0, 0, 0));
}

TEST_F(ExpertCheckTest, OutputsSurviveTheWire) {
  const SlotOutputs outputs{
      .error = "a\nb", .before = {1, ~uint64_t{0}}, .moved = {}, .back = {0, 7}};
  EXPECT_EQ(*DecodeOutputs(EncodeOutputs(outputs)), outputs);
  EXPECT_EQ(DecodeOutputs("error=\n").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DecodeOutputs("error=\nbefore=x\nmoved=\nback=\n").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ExpertCheckTest, UnchangedOutputsPass) { EXPECT_TRUE(Compared(RightOutputs()).ok()); }

TEST_F(ExpertCheckTest, EachDifferenceNamesExpertSlotsAndRank) {
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

TEST_F(ExpertCheckTest, OnlyThePipelineStageThatHoldsTheLayerIsAsked) {
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

TEST_F(ExpertCheckTest, EqualOutputsOfAllExpertsProveNothing) {
  std::vector<SlotOutputs> ranks = RightOutputs();
  for (SlotOutputs& said : ranks) {
    for (auto* outputs : {&said.before, &said.moved, &said.back}) {
      std::fill(outputs->begin(), outputs->end(), 5);
    }
  }
  EXPECT_EQ(Compared(ranks).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Verdict(ranks), HasSubstr("all experts give the same output"));
}

TEST_F(ExpertCheckTest, RankWithOtherSlotsIsNamed) {
  std::vector<SlotOutputs> ranks = RightOutputs();
  ranks[1].moved.pop_back();
  EXPECT_EQ(Verdict(ranks), "check: layer 0: rank 1 spoke of 1 slots, it has 2");
}

}  // namespace

// Client::CheckExperts in a job of 2 EP groups: what it leaves behind, and what ends it.

namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::kTestRanks;
using testing::TestJob;
using testing::TestRank;

bool CheckVoted(const BoundaryResult& result) { return result.voted; }

absl::Status Check(TestRank& rank) {
  return rank.client().CheckExperts(
      [&rank](int32_t layer, int32_t slot) { return rank.BytesOf(layer, slot); });
}

// Rank 1 loses rows from a post on; each layer takes two.
testing::TransportHook LossyFrom(int32_t post) {
  return [post](int32_t rank, std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
    if (rank != 1) return inner;
    return std::make_unique<testing::LossyTransport>(std::move(inner), post);
  };
}

TEST(CheckTest, RightRegistrationPassesAndLeavesEverythingAsItWas) {
  TestJob job("");
  ASSERT_TRUE(job.started().ok()) << job.started();
  job.Run([](int32_t, TestRank& rank) {
    const std::string digest = rank.client().placement().digest;
    EXPECT_TRUE(Check(rank).ok());
    EXPECT_EQ(rank.WrongSlots(), 0);
    EXPECT_EQ(rank.client().placement().digest, digest);
    EXPECT_TRUE(rank.StepUntil(0, CheckVoted).ok());
    EXPECT_TRUE(Check(rank).ok());
    EXPECT_TRUE(rank.StepUntil(4, CheckVoted).ok());
  });
}

TEST(CheckTest, ProbeRunsUnderThePlacementWhoseRowsAreThere) {
  TestJob job("");
  ASSERT_TRUE(job.started().ok()) << job.started();
  job.Run([](int32_t, TestRank& rank) {
    int wrong = 0;
    const absl::Status status =
        rank.client().CheckExperts([&](int32_t layer, int32_t slot) -> absl::StatusOr<uint64_t> {
          wrong += rank.WrongSlots();
          return rank.BytesOf(layer, slot);
        });
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(wrong, 0);
  });
}

TEST(CheckTest, DerivedTensorWithoutAWorkingRebuildIsFoundOnAllRanks) {
  std::vector<absl::Status> statuses(kTestRanks);
  TestJob job("");
  ASSERT_TRUE(job.started().ok()) << job.started();
  job.Run([&](int32_t r, TestRank& rank) {
    // A cache of layer 1 that nobody rebuilds: it stays with its slot.
    const uint64_t cached[] = {rank.BytesOf(1, 0), rank.BytesOf(1, 1)};
    statuses[static_cast<size_t>(r)] = rank.client().CheckExperts([&](int32_t layer, int32_t slot) {
      return rank.BytesOf(layer, slot) + (layer == 1 ? cached[slot] : 0);
    });
    EXPECT_EQ(rank.WrongSlots(), 0);
    EXPECT_TRUE(rank.StepUntil(0, CheckVoted).ok());  // it is a finding, not the end
  });
  EXPECT_EQ(
      statuses[0],
      absl::InvalidArgumentError(
          "check: layer 1: expert 3 gives another output when it is moved from slot 3 of rank "
          "1 to slot 0 of rank 0: it computes with a tensor that is neither registered nor "
          "rebuilt (docs/registering-tensors.md)"));
  EXPECT_THAT(statuses, Each(statuses[0]));
}

TEST(CheckTest, FailingProbeIsNamedOnTheOthersAndRowsGoBack) {
  TestJob job("");
  ASSERT_TRUE(job.started().ok()) << job.started();
  job.Run([](int32_t r, TestRank& rank) {
    const absl::Status status =
        rank.client().CheckExperts([&](int32_t layer, int32_t slot) -> absl::StatusOr<uint64_t> {
          if (r == 3 && layer == 2) return absl::InternalError("no memory");
          return rank.BytesOf(layer, slot);
        });
    EXPECT_EQ(status, r == 3 ? absl::InternalError("no memory")
                             : absl::FailedPreconditionError(
                                   "check: layer 2: the probe failed on rank 3: INTERNAL: no "
                                   "memory"));
    EXPECT_EQ(rank.WrongSlots(), 0);
    EXPECT_TRUE(rank.StepUntil(0, CheckVoted).ok());
  });
}

TEST(CheckTest, TransferThatFailsOnTheWayOutChangesNothing) {
  TestJob job("", {.transport = LossyFrom(3)});
  ASSERT_TRUE(job.started().ok()) << job.started();
  job.Run([](int32_t, TestRank& rank) {
    const absl::Status status = Check(rank);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("layer 1 could not be moved"));
    EXPECT_EQ(rank.WrongSlots(), 0);
    EXPECT_TRUE(rank.StepUntil(0, CheckVoted).ok());
  });
}

TEST(CheckTest, TransferThatFailsOnTheWayBackEndsTheRun) {
  TestJob job("", {.transport = LossyFrom(4)});
  ASSERT_TRUE(job.started().ok()) << job.started();
  job.Run([](int32_t, TestRank& rank) {
    const absl::Status status = Check(rank);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("back to where they belong"));
    EXPECT_EQ(rank.Step(0).status(), status);
    EXPECT_EQ(Check(rank), status);
  });
}

}  // namespace

}  // namespace eplb
