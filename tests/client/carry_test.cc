// Client::Carry in a job of 2 EP groups: what it moves, what it leaves, what it refuses, what ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "placement/digest.h"
#include "tests/client/faulty_channels.h"
#include "tests/client/session/proposals.h"
#include "tests/client/session/scripted_daemon.h"
#include "tests/client/test_job.h"

namespace eplb {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kCarriedLayers = 3;

// Every layer with its slots in falling order.
std::vector<int32_t> Reversed(const PlacementView& view) {
  std::vector<int32_t> map;
  for (int32_t layer = 0; layer < view.num_layers; ++layer) {
    const auto row = view.physical_to_logical_map.subspan(
        static_cast<size_t>(layer) * static_cast<size_t>(view.num_slots),
        static_cast<size_t>(view.num_slots));
    map.insert(map.end(), row.rbegin(), row.rend());
  }
  return map;
}

std::vector<int32_t> Copied(std::span<const int32_t> map) { return {map.begin(), map.end()}; }

bool CarryVoted(const BoundaryResult& result) { return result.voted; }

void LayerByLayer(ClientOptions& options) { options.layers_per_chunk = 1; }

void CarryThereAndBack(TestRank& rank) {
  Client& client = rank.client();
  const std::vector<int32_t> before = Copied(client.placement().physical_to_logical_map);
  const std::string digest = client.placement().digest;
  const std::vector<int32_t> target = Reversed(client.placement());
  ASSERT_TRUE(client.Carry(target).ok());
  EXPECT_EQ(Copied(client.row_placement().physical_to_logical_map), target);
  EXPECT_EQ(client.row_placement().version, client.placement().version);
  EXPECT_NE(client.row_placement().digest, digest);
  EXPECT_EQ(client.placement().digest, digest);
  EXPECT_EQ(Copied(client.placement().physical_to_logical_map), before);
  EXPECT_EQ(rank.WrongSlots(), 0);
  ASSERT_TRUE(client.Carry({}).ok());
  EXPECT_EQ(&client.row_placement(), &client.placement());
  EXPECT_EQ(rank.WrongSlots(), 0);
}

TEST(CarryTest, RowsGoThereAndBackAndTheJobGoesOn) {
  for (const bool layer_by_layer : {false, true}) {
    StartedJob job("", {.options = layer_by_layer ? LayerByLayer : OptionsHook()});
    job.Run([](int32_t, TestRank& rank) {
      CarryThereAndBack(rank);
      ASSERT_TRUE(rank.StepUntil(0, CarryVoted).ok());
      CarryThereAndBack(rank);
      EXPECT_TRUE(rank.StepUntil(1, CarryVoted).ok());
      rank.client().Close("finished");
    });
  }
}

TEST(CarryInJobTest, PipelineStagesCarryTheirOwnLayers) {
  StartedJob job("", {.options = [](ClientOptions& o) { o.pipeline_parallel_size = 2; }});
  job.Run([](int32_t, TestRank& rank) { CarryThereAndBack(rank); });
}

TEST(CarryInJobTest, WhileRowsAreElsewhereNoStepCanRun) {
  StartedJob job("");
  job.Run([](int32_t, TestRank& rank) {
    Client& client = rank.client();
    ASSERT_TRUE(client.Carry(Reversed(client.placement())).ok());
    const std::vector<int64_t> counts(4, 1);
    const auto probe = [](int32_t, int32_t) -> absl::StatusOr<uint64_t> { return 1; };
    for (const absl::Status& refused :
         {client.StepBoundary(0).status(), client.Record(0, counts), client.CheckExperts(probe),
          client.ReduceGradients({}), client.BroadcastWeights({}),
          client.ExpertSquares({}).status()}) {
      EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(std::string(refused.message()),
                  HasSubstr("the rows of the experts were carried to placement " +
                            client.row_placement().digest +
                            ", the current version is 0; carry them back first"));
    }
    // The map of the current placement is the way back, too.
    ASSERT_TRUE(client.Carry(client.placement().physical_to_logical_map).ok());
    EXPECT_EQ(rank.WrongSlots(), 0);
    EXPECT_TRUE(rank.StepUntil(0, CarryVoted).ok());
  });
}

TEST(CarryInJobTest, RowsGoToTheStaticLayoutAndBackAfterASwitch) {
  const Placement first = Placement::Static(SmallTopology());
  const Placement second = Swapped(Swapped(first, 0, 0, 2), 2, 1, 3);
  ScriptedDaemon daemon({});
  StartedJob job(daemon.endpoint());
  daemon.WaitForRanks(kTestRanks);
  daemon.SendAll(ProposeTo(Running(0, first), second, 7, 1));
  job.Run([&](int32_t, TestRank& rank) {
    Client& client = rank.client();
    ASSERT_TRUE(rank.StepUntil(0, [](const BoundaryResult& now) { return now.switched; }).ok());
    const IndexMatrix& order = first.physical_to_logical_map();
    ASSERT_TRUE(client.Carry({order.data(), static_cast<size_t>(order.size())}).ok());
    EXPECT_EQ(client.row_placement().digest, DigestOf(first).Hex());
    EXPECT_EQ(client.placement().version, 7);
    EXPECT_EQ(rank.WrongSlots(), 0);
    ASSERT_TRUE(client.Carry({}).ok());
    EXPECT_EQ(client.row_placement().digest, DigestOf(second).Hex());
    EXPECT_EQ(rank.WrongSlots(), 0);
  });
}

void FourSpareSlots(ClientOptions& options) { options.num_slots = 8; }

TEST(CarryInJobTest, EveryReplicaGetsItsExpertsRows) {
  StartedJob job("", {.options = FourSpareSlots});
  job.Run([](int32_t, TestRank& rank) {
    Client& client = rank.client();
    // Expert 3 in five slots, the others in one each.
    std::vector<int32_t> map;
    for (int32_t layer = 0; layer < kCarriedLayers; ++layer) {
      for (const int32_t expert : {3, 3, 3, 3, 3, 2, 1, 0}) map.push_back(expert);
    }
    ASSERT_TRUE(client.Carry(map).ok());
    EXPECT_EQ(rank.WrongSlots(), 0);
    EXPECT_EQ(client.row_placement().logical_replica_count[3], 5);
    CarryThereAndBack(rank);
  });
}

// The first byte of a registered row.
std::byte FirstByte(TestRank& rank, size_t tensor, int32_t local_slot) {
  const ExpertTensorView view = rank.Tensors()[tensor];
  return *(static_cast<const std::byte*>(view.base) + local_slot * view.row_stride);
}

TEST(CarryInJobTest, StateStaysWithThePrimary) {
  StartedJob job("", {.options = [](ClientOptions& o) {
                   FourSpareSlots(o);
                   o.state_placement = StatePlacement::kWithPrimary;
                 }});
  job.Run([](int32_t r, TestRank& rank) {
    Client& client = rank.client();
    // Tensor 1 of layer 0 is the state. Slots 0..3, of GPU 0, have the primaries, 4..7 do not.
    std::vector<std::byte> before;
    before.reserve(4);
    for (int32_t slot = 0; slot < 4; ++slot) before.push_back(FirstByte(rank, 1, slot));
    ASSERT_TRUE(client.Carry(Reversed(client.placement())).ok());
    ASSERT_TRUE(client.Carry({}).ok());
    for (int32_t slot = 0; slot < 4 && r % 2 == 0; ++slot) {
      EXPECT_EQ(FirstByte(rank, 1, slot), before[static_cast<size_t>(slot)]);
    }
  });
}

TEST(CarryInJobTest, DerivedTensorsAreRebuiltUnderThePlacementOfTheRows) {
  std::vector<std::vector<std::string>> calls(kTestRanks);
  StartedJob job("", {.tensors = [&](TestRank& rank, std::vector<ExpertTensorView>& tensors) {
                   ExpertTensorView scale;
                   scale.name = "layers.1.scale";
                   scale.layer = 1;
                   scale.role = Role::kDerived;
                   scale.rebuild = [&calls, &rank](int32_t layer, std::span<const int32_t> slots) {
                     const PlacementView& view = rank.client().placement();
                     const int32_t first = view.num_slots + view.first_local_slot;
                     calls[static_cast<size_t>(rank.rank())].push_back(
                         absl::StrCat(layer, ":", slots.size(), ":",
                                      view.physical_to_logical_map[static_cast<size_t>(first)]));
                     return absl::OkStatus();
                   };
                   tensors.push_back(scale);
                 }});
  job.Run([](int32_t, TestRank& rank) { CarryThereAndBack(rank); });
  EXPECT_THAT(calls[0], ElementsAre("1:2:3", "1:2:0"));
  EXPECT_THAT(calls[3], ElementsAre("1:2:1", "1:2:2"));
}

TEST(CarryInJobTest, WhatCannotBeIsRefusedOnAllRanksAndNothingMoves) {
  StartedJob job("");
  job.Run([](int32_t r, TestRank& rank) {
    Client& client = rank.client();
    const std::vector<int32_t> right = Reversed(client.placement());
    std::vector<int32_t> wrong = right;
    wrong[5] = wrong[4];
    const auto refused = [&](const std::vector<int32_t>& of_rank_2) {
      absl::Status status = client.Carry(r == 2 ? of_rank_2 : right);
      EXPECT_EQ(&client.row_placement(), &client.placement());
      EXPECT_EQ(rank.WrongSlots(), 0);
      return status;
    };
    const absl::Status lost = refused(wrong);
    if (r == 2) {
      EXPECT_THAT(std::string(lost.message()),
                  AllOf(HasSubstr("carry: "), HasSubstr("layer 1"), HasSubstr("expert")));
    } else {
      EXPECT_THAT(std::string(lost.message()), HasSubstr("carry: rank 2 cannot carry its rows"));
    }
    const absl::Status short_one = refused({0, 1});
    if (r == 2) {
      EXPECT_EQ(short_one,
                absl::InvalidArgumentError(
                    "carry: the placement has 2 entries, expected 3 layers * 4 slots = 12"));
    }
    wrong = right;
    std::swap(wrong[0], wrong[1]);
    const absl::Status other = refused(wrong);
    EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(other.message()),
                AllOf(HasSubstr("carry: the placement differs"), HasSubstr("rank 0"),
                      HasSubstr("rank 2"), HasSubstr("nothing was moved")));
    CarryThereAndBack(rank);
    EXPECT_TRUE(rank.StepUntil(0, CarryVoted).ok());
  });
}

TEST(CarryInJobTest, RanksBeforeDifferentStepsAreNamed) {
  StartedJob job("");
  job.Run([](int32_t r, TestRank& rank) {
    ASSERT_TRUE(rank.Step(0).ok());
    if (r == 3) {
      ASSERT_TRUE(rank.Step(1).ok());
    }
    EXPECT_THAT(std::string(rank.client().Carry({}).message()),
                AllOf(HasSubstr("carry: the next step differs"), HasSubstr("rank 3")));
  });
}

TEST(CarryInJobTest, TransferThatFailsAtFirstChangesNothing) {
  StartedJob job("", {.transport = OnRank<LossyTransport>(1)});
  job.Run([](int32_t, TestRank& rank) {
    const absl::Status status = rank.client().Carry(Reversed(rank.client().placement()));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("carry: the rows of layers 0, 1, 2 could not be moved"));
    EXPECT_EQ(rank.WrongSlots(), 0);
    EXPECT_TRUE(rank.StepUntil(0, CarryVoted).ok());
  });
}

TEST(CarryInJobTest, TransferThatFailsHalfWayEndsTheRun) {
  StartedJob job("", {.options = LayerByLayer, .transport = OnRank<LossyTransport>(1, 3)});
  job.Run([](int32_t, TestRank& rank) {
    const absl::Status status = rank.client().Carry(Reversed(rank.client().placement()));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("the rows of layer 2 could not be moved"),
                      HasSubstr("2 layers are in another placement already")));
    EXPECT_EQ(rank.Step(0).status(), status);
    EXPECT_EQ(rank.client().Carry({}), status);
  });
}

// Begins its second post later than the others wait in a vote.
class SleepingTransport final : public ForwardingTransport {
 public:
  explicit SleepingTransport(std::unique_ptr<Transport> inner)
      : ForwardingTransport(std::move(inner)) {}
  absl::StatusOr<Ticket> Post(RowMoves moves) override {
    if (++posts_ == 2) absl::SleepFor(absl::Seconds(5));
    return ForwardingTransport::Post(std::move(moves));
  }

 private:
  int posts_ = 0;
};

TEST(CarryInJobTest, ARankThatIsLateHalfWayLeavesRowsThatMustNotBeSaved) {
  TestJob job("", {.options =
                       [](ClientOptions& o) {
                         LayerByLayer(o);
                         o.vote_deadline = o.transfer_deadline = absl::Seconds(2);
                       },
                   .transport = [](int32_t rank,
                                   std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
                     if (rank != 1) return inner;
                     return std::make_unique<SleepingTransport>(std::move(inner));
                   }});
  ASSERT_TRUE(job.started().ok()) << job.started();
  job.Run([](int32_t, TestRank& rank) {
    const absl::Status status = rank.client().Carry(Reversed(rank.client().placement()));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("rank 1 is missing"),
                      HasSubstr("1 layers are in another placement already")));
    EXPECT_EQ(rank.Step(0).status(), status);
  });
}

TEST(CarryInJobTest, ARankThatIsGoneIsNamed) {
  StartedJob job("", {.options = [](ClientOptions& o) { o.vote_deadline = absl::Seconds(2); }});
  job.Run([](int32_t r, TestRank& rank) {
    if (r == 1) return rank.Stop();
    const absl::Status status = rank.client().Carry(Reversed(rank.client().placement()));
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_THAT(MissingRanks(status), ElementsAre(RankId{1}));
    EXPECT_EQ(rank.Step(0).status(), status);
  });
}

}  // namespace
}  // namespace eplb
