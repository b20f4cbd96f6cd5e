// Training is the judge of a migration: parameters, optimizer state and losses must be those of a
// run that never moved an expert, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "absl/strings/str_cat.h"

#include "tests/client/rows/paths/host_world.h"
#ifdef EPLB_FAKE_NCCL
#include "tests/client/rows/paths/nccl_world.h"
#endif
#include "tests/client/oracle/oracle_job.h"
#include "tests/client/oracle/tiny_moe.h"
#include "tests/client/rows/paths/peer_world.h"

namespace eplb {
namespace {

using ::testing::Each;
using ::testing::MatchesRegex;
using ::testing::Not;

struct Route {
  const char* name;
  MakeTransports make;
};
// Every transport that there is.
constexpr Route kRoutes[] = {
    {"SharedMemory", MakeSharedMemoryWorld},
    {"Tcp", MakeTcpWorld},
    {"Peer", MakePeerWorld},
#ifdef EPLB_FAKE_NCCL
    {"Nccl", MakeSmallPieceNcclWorld},
#endif
};

// The run that nothing disturbs, once for all tests.
const Trained& Undisturbed() {
  static const Trained trained = Train({});
  return trained;
}

// Experts, of all layers, that have not the bytes of the run that nothing disturbed.
int32_t CountChanged(const Trained& trained) {
  int32_t changed = 0;
  for (size_t i = 0; i < trained.experts.size(); ++i) {
    changed += trained.experts[i] == Undisturbed().experts[i] ? 0 : 1;
  }
  return changed;
}

class TrainingOracleTest : public ::testing::TestWithParam<std::tuple<Route, StatePlacement>> {};

INSTANTIATE_TEST_SUITE_P(All, TrainingOracleTest,
                         ::testing::Combine(::testing::ValuesIn(kRoutes),
                                            ::testing::Values(StatePlacement::kEveryReplica,
                                                              StatePlacement::kWithPrimary)),
                         [](const auto& of) {
                           return std::string(std::get<0>(of.param).name) +
                                  (std::get<1>(of.param) == StatePlacement::kWithPrimary
                                       ? "WithPrimary"
                                       : "EveryReplica");
                         });

TEST_P(TrainingOracleTest, MigratedRunEndsWithTheSameBits) {
  const Trained trained = Train({.transports = std::get<0>(GetParam()).make,
                                 .state_placement = std::get<1>(GetParam()),
                                 .migrate = true});
  ASSERT_TRUE(trained.status.ok()) << trained.status;
  EXPECT_EQ(trained.num_switches, kOracleSwitches);
  EXPECT_EQ(CountChanged(trained), 0);
  EXPECT_EQ(trained.losses, Undisturbed().losses);
}

// How four ranks are arranged.
struct Arrangement {
  const char* name;
  int32_t pipeline_parallel_size;
  int32_t expert_tensor_parallel;
};

class ArrangedOracleTest : public ::testing::TestWithParam<std::tuple<Arrangement, Route>> {};

INSTANTIATE_TEST_SUITE_P(
    Four, ArrangedOracleTest,
    ::testing::Combine(::testing::Values(Arrangement{"TwoEpGroups", 1, 1},
                                         Arrangement{"TwoPipelineStages", 2, 1},
                                         Arrangement{"TwoExpertTensorParallelRanks", 1, 2}),
                       ::testing::ValuesIn(kRoutes)),
    [](const auto& of) {
      return absl::StrCat(std::get<0>(of.param).name, "Over", std::get<1>(of.param).name);
    });

TEST_P(ArrangedOracleTest, MigratedRunOfTwoGpusALaneEndsWithTheSameBits) {
  const auto& [arrangement, route] = GetParam();
  const Trained trained = Train({.num_gpus = 2,
                                 .pipeline_parallel_size = arrangement.pipeline_parallel_size,
                                 .expert_tensor_parallel = arrangement.expert_tensor_parallel,
                                 .transports = route.make,
                                 .migrate = true,
                                 .check = true});
  ASSERT_TRUE(trained.status.ok()) << trained.status;
  EXPECT_EQ(trained.num_switches, kOracleSwitches);
  EXPECT_EQ(CountChanged(trained), 0);
  EXPECT_EQ(trained.losses, Undisturbed().losses);
}

TEST(TrainingOracleSelfTest, OneRankTrainsTheSameBitsAsFour) {
  const Trained trained = Train({.num_ranks = 1});
  ASSERT_TRUE(trained.status.ok()) << trained.status;
  EXPECT_EQ(CountChanged(trained), 0);
  EXPECT_EQ(trained.losses, Undisturbed().losses);
}

TEST(TrainingOracleSelfTest, ModelLearnsAndEveryExpertIsTrained) {
  const std::vector<float>& losses = Undisturbed().losses;
  constexpr ptrdiff_t kSome = ptrdiff_t{4} * kTokens;
  const float first = std::accumulate(losses.begin(), losses.begin() + kSome, 0.0f);
  const float last = std::accumulate(losses.end() - kSome, losses.end(), 0.0f);
  EXPECT_LT(last, first / 2);
  for (const std::string& expert : Undisturbed().experts) {
    EXPECT_THAT(expert.substr(expert.size() - sizeof(int64_t)), Not(Each('\0')));
  }
}

// The oracle is trustworthy because it notices each kind of byte that stays behind.
class ForgottenTensorTest : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(EachTensor, ForgottenTensorTest,
                         ::testing::Values("first_weight", "second_weight", "master",
                                           "first_moment", "second_moment", "num_updates", "gain"),
                         [](const auto& of) { return of.param; });

TEST_P(ForgottenTensorTest, UnregisteredTensorChangesTheTraining) {
  const Trained trained =
      Train({.transports = MakeSharedMemoryWorld, .migrate = true, .forgotten = GetParam()});
  ASSERT_TRUE(trained.status.ok()) << trained.status;
  EXPECT_EQ(trained.num_switches, kOracleSwitches);
  EXPECT_GT(CountChanged(trained), 0);
  EXPECT_NE(trained.losses, Undisturbed().losses);
}

TEST_P(ForgottenTensorTest, CheckFindsTheUnregisteredTensor) {
  const Trained trained = Train({.forgotten = GetParam(), .check = true});
  EXPECT_EQ(trained.status.code(), absl::StatusCode::kInvalidArgument) << trained.status;
  EXPECT_THAT(std::string(trained.status.message()),
              MatchesRegex("check: layer 0: expert . gives another output when it is moved from "
                           "slot . of rank . to slot . of rank .: it computes with a tensor that "
                           "is neither registered nor rebuilt .*"));
}

}  // namespace
}  // namespace eplb
