#include "client/start.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "client/options.h"
#include "tests/client/rows/control/world.h"
#include "tests/client/session/proposals.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr int32_t kRanks = 3;

ClientOptions Options() {
  ClientOptions options;
  options.run_id = "run-0";
  options.world_size = kRanks;
  options.num_layers = 2;
  options.num_experts = 8;
  options.num_slots = 9;
  options.num_gpus = 3;
  return options;
}

StartRound RoundOf(StartFields mine) { return {.what = "start", .mine = std::move(mine)}; }

// Each rank's status after one round.
std::vector<absl::Status> RunRound(const std::function<StartRound(int32_t rank)>& round) {
  std::vector<absl::Status> statuses(kRanks);
  const std::vector<AllGather> all_gathers = MakeThreadAllGathers(kRanks);
  RunRanks(kRanks, [&](int32_t rank) {
    const auto i = static_cast<size_t>(rank);
    statuses[i] = RunStartRound(round(rank), rank, kRanks, all_gathers[i]).status();
  });
  return statuses;
}

struct Difference {
  std::string field;
  std::function<void(ClientOptions&)> change;
  std::string values;
};

class StartFieldTest : public ::testing::TestWithParam<Difference> {};

TEST_P(StartFieldTest, DifferenceStopsEveryRankWithTheSameMessage) {
  const std::vector<absl::Status> statuses = RunRound([](int32_t rank) {
    ClientOptions options = Options();
    if (rank == 2) GetParam().change(options);
    return RoundOf(FieldsOf(options, /*disabled=*/false));
  });
  const absl::Status expected = absl::FailedPreconditionError("start: " + GetParam().field +
                                                              " differs: " + GetParam().values);
  EXPECT_THAT(statuses, ElementsAre(expected, expected, expected));
}

INSTANTIATE_TEST_SUITE_P(
    Options, StartFieldTest,
    ::testing::Values(
        Difference{"job", [](ClientOptions& o) { o.job = "other"; },
                   "rank 0 has default, rank 2 has other"},
        Difference{"run_id", [](ClientOptions& o) { o.run_id = "run-1"; },
                   "rank 0 has run-0, rank 2 has run-1"},
        Difference{"world_size", [](ClientOptions& o) { o.world_size = 6; },
                   "rank 0 has 3, rank 2 has 6"},
        Difference{"num_layers", [](ClientOptions& o) { o.num_layers = 3; },
                   "rank 0 has 2, rank 2 has 3"},
        Difference{"num_experts", [](ClientOptions& o) { o.num_experts = 9; },
                   "rank 0 has 8, rank 2 has 9"},
        Difference{"num_slots", [](ClientOptions& o) { o.num_slots = 12; },
                   "rank 0 has 9, rank 2 has 12"},
        Difference{"num_gpus", [](ClientOptions& o) { o.num_gpus = 1; },
                   "rank 0 has 3, rank 2 has 1"},
        Difference{"num_nodes", [](ClientOptions& o) { o.num_nodes = 3; },
                   "rank 0 has 1, rank 2 has 3"},
        Difference{"num_groups", [](ClientOptions& o) { o.num_groups = 4; },
                   "rank 0 has 1, rank 2 has 4"},
        Difference{"pipeline_parallel_size", [](ClientOptions& o) { o.pipeline_parallel_size = 2; },
                   "rank 0 has 1, rank 2 has 2"},
        Difference{"expert_tensor_parallel", [](ClientOptions& o) { o.expert_tensor_parallel = 3; },
                   "rank 0 has 1, rank 2 has 3"},
        Difference{"first_step", [](ClientOptions& o) { o.first_step = 100; },
                   "rank 0 has 0, rank 2 has 100"},
        Difference{"vote_every", [](ClientOptions& o) { o.vote_every = 16; },
                   "rank 0 has 8, rank 2 has 16"},
        Difference{"report_every", [](ClientOptions& o) { o.report_every = 10; },
                   "rank 0 has 2, rank 2 has 10"},
        Difference{"reduce", [](ClientOptions& o) { o.reduce = "root"; },
                   "rank 0 has rank, rank 2 has root"},
        Difference{"split", [](ClientOptions& o) { o.split = "batch"; },
                   "rank 0 has equal, rank 2 has batch"},
        Difference{"layers_per_chunk", [](ClientOptions& o) { o.layers_per_chunk = 1; },
                   "rank 0 has 0, rank 2 has 1"},
        Difference{"ahead", [](ClientOptions& o) { o.ahead = true; }, "rank 0 has 0, rank 2 has 1"},
        Difference{"state_placement",
                   [](ClientOptions& o) { o.state_placement = StatePlacement::kWithPrimary; },
                   "rank 0 has every_replica, rank 2 has with_primary"},
        Difference{"nccl", [](ClientOptions& o) { o.nccl.piece_bytes = 1 << 20; },
                   "rank 0 has max_ctas 16, channels_per_net_peer 8, piece_bytes 0, "
                   "warm_up_ranks 64, rank 2 has max_ctas 16, channels_per_net_peer 8, piece_bytes "
                   "1048576, warm_up_ranks 64"},
        Difference{"transport", [](ClientOptions& o) { o.transport = "host"; },
                   "rank 0 has auto, rank 2 has host"}),
    [](const auto& instance) { return instance.param.field; });

TEST(StartTest, DisabledRankAmongOthersStopsTheStart) {
  const std::vector<absl::Status> statuses =
      RunRound([](int32_t rank) { return RoundOf(FieldsOf(Options(), rank != 1)); });
  EXPECT_EQ(statuses[2].message(), "start: EPLB_DISABLE differs: rank 0 has 1, rank 1 has 0");
}

TEST(StartTest, EqualRanksGetEverybodysExtras) {
  const std::vector<AllGather> all_gathers = MakeThreadAllGathers(kRanks);
  RunRanks(kRanks, [&](int32_t rank) {
    StartRound round = RoundOf(FieldsOf(Options(), false));
    if (rank == 0) round.extra = {{"secret", "a=b\nc"}};
    const auto extras = RunStartRound(round, rank, kRanks, all_gathers[static_cast<size_t>(rank)]);
    ASSERT_TRUE(extras.ok()) << extras.status();
    EXPECT_THAT((*extras)[0], ElementsAre(Pair("secret", "a=b\nc")));
    EXPECT_TRUE((*extras)[1].empty());
    EXPECT_EQ(*FindField((*extras)[0], "secret"), "a=b\nc");
    EXPECT_FALSE(FindField((*extras)[1], "secret").ok());
  });
}

TEST(StartTest, AllRanksWithTheOtherValueAreNamed) {
  const std::vector<absl::Status> statuses = RunRound([](int32_t rank) {
    return RoundOf({{"row", rank == 0 ? "64" : "128"}, {"b", "1"}});
  });
  EXPECT_EQ(statuses[1].message(), "start: row differs: rank 0 has 64, ranks 1, 2 have 128");
}

TEST(StartTest, PipelineStagesAreComparedEachWithItself) {
  const auto statuses = [](const char* of_last) {
    std::vector<absl::Status> found(4);
    const std::vector<AllGather> all_gathers = MakeThreadAllGathers(4);
    RunRanks(4, [&](int32_t rank) {
      StartRound round = RoundOf({{"row", rank < 2 ? "64" : rank == 2 ? "128" : of_last}});
      round.pipeline_parallel_size = 2;
      const auto i = static_cast<size_t>(rank);
      found[i] = RunStartRound(round, rank, 4, all_gathers[i]).status();
    });
    return found;
  };
  EXPECT_TRUE(statuses("128")[0].ok());
  EXPECT_EQ(statuses("64")[0].message(),
            "start: row differs inside pipeline stage 1: rank 2 has 128, rank 3 has 64");
}

TEST(StartTest, MissingFieldIsNamed) {
  const std::vector<absl::Status> statuses = RunRound([](int32_t rank) {
    return RoundOf(rank == 2 ? StartFields{{"a", "1"}} : StartFields{{"a", "1"}, {"b", "2"}});
  });
  EXPECT_EQ(statuses[0].message(), "start: b differs: rank 0 has 2, rank 2 has no such field");
}

TEST(StartTest, RankThatCannotStartStopsTheOthersWithItsReason) {
  const std::vector<absl::Status> statuses = RunRound([](int32_t rank) {
    StartRound round = RoundOf({{"a", "1"}});
    if (rank == 1) round.error = absl::InvalidArgumentError("p.json: no such file");
    return round;
  });
  EXPECT_EQ(statuses[1], absl::InvalidArgumentError("p.json: no such file"));
  EXPECT_EQ(statuses[0],
            absl::FailedPreconditionError("start: rank 1 cannot start: p.json: no such file"));
  EXPECT_EQ(statuses[2], statuses[0]);
}

TEST(StartTest, AllGatherThatMixesRanksUpIsFound) {
  const AllGather swapped = [](std::string_view bytes) {
    return std::vector<std::string>{"error=\nextra=1\n", std::string(bytes)};
  };
  EXPECT_THAT(RunStartRound(RoundOf({}), 0, 2, swapped).status().message(),
              HasSubstr("the all-gather put rank 1 there"));
  const AllGather foreign = [](std::string_view bytes) {
    return std::vector<std::string>{std::string(bytes), "hello"};
  };
  EXPECT_THAT(RunStartRound(RoundOf({}), 0, 2, foreign).status().message(),
              HasSubstr("rank 1 called another collective, or runs another version: "
                        "\"hello\" is not field=value"));
  const AllGather too_many = [](std::string_view bytes) {
    return std::vector<std::string>(3, std::string(bytes));
  };
  EXPECT_THAT(RunStartRound(RoundOf({}), 0, 2, too_many).status().message(),
              HasSubstr("3 answers, world_size is 2"));
}

TEST(StartTest, PlacementSurvivesItsBytes) {
  const Topology topology =
      Topology::Make({.num_layers = 2, .num_experts = 3, .num_slots = 5}).value();
  IndexMatrix slots(2, 5);
  slots << 0, 1, 2, 0, 1, 2, 2, 2, 1, 0;
  IndexMatrix ranks(2, 5);
  ranks << 1, 0, 0, 0, 1, 2, 0, 1, 0, 0;
  const Placement placement = Placement::FromSlotsAndRanks(topology, slots, ranks).value();
  const std::string bytes = PlacementBytes(placement);
  EXPECT_EQ(PlacementFromBytes(topology, bytes).value(), placement);
  EXPECT_EQ(PlacementFromBytes(topology, bytes.substr(4)).status().message(),
            "a placement of 76 bytes, expected 80");
}

TEST(StartTest, BroadcastCutsWhatAnAllGatherCannotTake) {
  std::string bytes(2 * kAllGatherPieceBytes + 17, 'x');
  bytes.back() = 'y';
  bytes[kAllGatherPieceBytes] = 'z';
  const std::vector<AllGather> all_gathers = MakeThreadAllGathers(kRanks);
  RunRanks(kRanks, [&](int32_t rank) {
    EXPECT_EQ(*BroadcastBytes(rank == 0 ? bytes : "", bytes.size(), rank,
                              all_gathers[static_cast<size_t>(rank)]),
              bytes);
  });
}

}  // namespace
}  // namespace eplb
