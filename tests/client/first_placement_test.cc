#include "client/first_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "proto/wire/placement_json.h"
#include "tests/client/rows/control/world.h"
#include "tests/client/session/proposals.h"
#include "tests/client/session/scripted_daemon.h"
#include "tests/client/test_job.h"

namespace eplb {

namespace {

using ::testing::HasSubstr;

class FirstPlacementTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    directory_ = absl::StrCat(::testing::TempDir(), "first_placement_test_", test->name());
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  const Placement second_ = Swapped(Swapped(Placement::Static(SmallTopology()), 0, 0, 2), 2, 1, 3);
  std::string directory_;
};

TEST_F(FirstPlacementTest, StoredPlacementOfTheDaemonIsTheFirstOne) {
  ScriptedDaemon daemon({.stored = wire::PlacementBody{41, DigestOf(second_), second_}});
  StartedJob job(daemon.endpoint());
  for (int32_t rank = 0; rank < kTestRanks; ++rank) {
    EXPECT_EQ(job.rank(rank).client().placement().version, 41);
    EXPECT_EQ(job.rank(rank).client().placement().digest, DigestOf(second_).Hex());
  }
}

TEST_F(FirstPlacementTest, StoredPlacementOfAnotherShapeIsToldAndItsNumbersAreNotUsedAgain) {
  const Placement other = Placement::Static(
      Topology::Make({.num_layers = 3, .num_experts = 4, .num_slots = 6, .num_gpus = 2}).value());
  ScriptedDaemon daemon(
      {.stored = wire::PlacementBody{41, DigestOf(other), other}, .next_version = 45});
  ::testing::internal::CaptureStderr();
  StartedJob job(daemon.endpoint());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("of another shape for job job"));
  EXPECT_EQ(job.rank(3).client().placement().version, 45);
  EXPECT_EQ(job.rank(3).client().placement().digest,
            DigestOf(Placement::Static(SmallTopology())).Hex());
}

// A daemon that does not say the number.
TEST_F(FirstPlacementTest, WithoutAFreshNumberTheOneAboveTheStoredPlacementIsTaken) {
  const Placement other = Placement::Static(
      Topology::Make({.num_layers = 3, .num_experts = 4, .num_slots = 6, .num_gpus = 2}).value());
  ScriptedDaemon daemon({.stored = wire::PlacementBody{41, DigestOf(other), other}});
  StartedJob job(daemon.endpoint());
  EXPECT_EQ(job.rank(0).client().placement().version, 42);
}

TEST_F(FirstPlacementTest, InitialPlacementComesFromAFileOrTheLastLineOfALog) {
  std::ofstream(directory_ + "/p.json") << wire::PlacementToJson(second_);
  StartedJob from_file("", {.options = [&](ClientOptions& o) {
                         o.initial_placement = directory_ + "/p.json";
                         o.placements_path = directory_ + "/placements.jsonl";
                       }});
  EXPECT_EQ(from_file.rank(2).client().placement().digest, DigestOf(second_).Hex());
  EXPECT_EQ(from_file.rank(2).client().placement().version, 0);
  StartedJob from_log("", {.options = [&](ClientOptions& o) {
                        o.initial_placement = directory_ + "/placements.jsonl";
                        o.first_step = 100;
                      }});
  EXPECT_EQ(from_log.rank(1).client().placement().digest, DigestOf(second_).Hex());
}

TEST_F(FirstPlacementTest, AFileStartsUnderANumberThatStandsForNothingElse) {
  std::ofstream(directory_ + "/p.json") << wire::PlacementToJson(second_);
  const auto version = [&](ScriptedDaemon& daemon) {
    TestJob job(daemon.endpoint(), {.options = [&](ClientOptions& o) {
                  o.initial_placement = directory_ + "/p.json";
                }});
    EXPECT_TRUE(job.started().ok()) << job.started();
    return job.rank(1).client().placement().version;
  };
  const Placement fixed = Placement::Static(SmallTopology());
  ScriptedDaemon other(
      {.stored = wire::PlacementBody{7, DigestOf(fixed), fixed}, .next_version = 9});
  EXPECT_EQ(version(other), 9);
  ScriptedDaemon same({.stored = wire::PlacementBody{7, DigestOf(second_), second_}});
  EXPECT_EQ(version(same), 7);
  ScriptedDaemon fresh({});
  EXPECT_EQ(version(fresh), 0);
}

TEST_F(FirstPlacementTest, TheStaticOrderIsNamedByAWordAlsoForAJobThatRanUnderAnother) {
  const Placement fixed = Placement::Static(SmallTopology());
  const auto first = [&](ScriptedDaemon& daemon) {
    TestJob job(daemon.endpoint(),
                {.options = [](ClientOptions& o) { o.initial_placement = kStaticPlacement; }});
    EXPECT_TRUE(job.started().ok()) << job.started();
    EXPECT_EQ(job.rank(3).client().placement().digest, DigestOf(fixed).Hex());
    return job.rank(3).client().placement().version;
  };
  ScriptedDaemon moved(
      {.stored = wire::PlacementBody{41, DigestOf(second_), second_}, .next_version = 45});
  EXPECT_EQ(first(moved), 45);
  ScriptedDaemon same({.stored = wire::PlacementBody{7, DigestOf(fixed), fixed}});
  EXPECT_EQ(first(same), 7);
  ScriptedDaemon fresh({});
  EXPECT_EQ(first(fresh), 0);
}

TEST_F(FirstPlacementTest, AFileOfTheNameOfTheStaticOrderIsReachedByAPath) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(directory_);
  std::ofstream("static") << wire::PlacementToJson(second_);
  ClientOptions options = TestOptions(0, "");
  options.initial_placement = "./static";
  const auto from_file = ChooseFirstPlacement(options, SmallTopology());
  options.initial_placement = "static";
  const auto by_word = ChooseFirstPlacement(options, SmallTopology());
  std::filesystem::current_path(before);
  ASSERT_TRUE(from_file.ok()) << from_file.status();
  EXPECT_EQ(from_file->digest, DigestOf(second_));
  ASSERT_TRUE(by_word.ok()) << by_word.status();
  EXPECT_EQ(by_word->digest, DigestOf(Placement::Static(SmallTopology())));
}

TEST_F(FirstPlacementTest, UnreadableInitialPlacementStopsEveryRank) {
  std::vector<absl::Status> statuses(kTestRanks);
  auto all_gathers = MakeThreadAllGathers(kTestRanks);
  RunRanks(kTestRanks, [&](int32_t rank) {
    ClientOptions options = TestOptions(rank, "");
    options.initial_placement = directory_ + "/none.json";
    statuses[static_cast<size_t>(rank)] =
        Client::Connect(options, all_gathers[static_cast<size_t>(rank)]).status();
  });
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(statuses[3].message()),
              HasSubstr("start: rank 0 cannot start: " + directory_ + "/none.json"));
  EXPECT_EQ(statuses[1], statuses[3]);
}

TEST_F(FirstPlacementTest, ARequiredDaemonThatDoesNotAnswerStopsEveryRank) {
  const std::string endpoint = ScriptedDaemon({}).endpoint();  // port without a listener
  const absl::Time begin = absl::Now();
  TestJob job(endpoint, {.options = [](ClientOptions& o) { o.require_daemon = true; }});
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));  // not at start_deadline
  EXPECT_THAT(std::string(job.started().message()),
              HasSubstr(absl::StrCat("require_daemon: no answer from eplbd at ", endpoint,
                                     ": connection refused")));
}

TEST_F(FirstPlacementTest, ARequiredDaemonThatDoesNotKnowTheJobIsEnough) {
  ScriptedDaemon daemon({});
  TestJob job(daemon.endpoint(), {.options = [](ClientOptions& o) { o.require_daemon = true; }});
  EXPECT_TRUE(job.started().ok()) << job.started();
}

TEST_F(FirstPlacementTest, RunIsDrawnByRankZeroWhenNobodyNamesTheRun) {
  StartedJob job("", {.options = [](ClientOptions& o) { o.run_id = ""; }});
  const std::string& drawn = job.rank(0).client().run_id();
  EXPECT_EQ(drawn.size(), 16U);
  EXPECT_EQ(job.rank(3).client().run_id(), drawn);
}

// A launcher may give the same id twice, as each srun of an allocation without steps.
TEST_F(FirstPlacementTest, TwoRunsOfOneIdHaveTwoRuns) {
  std::string first;
  for (int run = 0; run < 2; ++run) {
    StartedJob job("", {.options = [](ClientOptions& o) { o.run_id = "4711-0"; }});
    const std::string& name = job.rank(0).client().run_id();
    EXPECT_THAT(name, ::testing::MatchesRegex("4711-0\\.[0-9a-f]+"));
    EXPECT_EQ(job.rank(2).client().run_id(), name);
    EXPECT_NE(name, first);
    first = name;
  }
}

TEST_F(FirstPlacementTest, TheVersionOfAFileIsReservedForThisRun) {
  std::ofstream(directory_ + "/p.json") << wire::PlacementToJson(second_);
  const Placement fixed = Placement::Static(SmallTopology());
  ScriptedDaemon daemon({.stored = wire::PlacementBody{7, DigestOf(fixed), fixed},
                         .next_version = 9,
                         .reserved = 12});
  StartedJob job(daemon.endpoint(), {.options = [&](ClientOptions& o) {
                   o.initial_placement = directory_ + "/p.json";
                 }});
  EXPECT_EQ(job.rank(1).client().placement().version, 12);
}

// A daemon that was away may have an older placement than the one that stood in for it.
TEST_F(FirstPlacementTest, OfTwoDaemonsTheOneWithTheHigherVersionsIsBelieved) {
  const Placement fixed = Placement::Static(SmallTopology());
  ScriptedDaemon older({.stored = wire::PlacementBody{7, DigestOf(fixed), fixed}});
  ScriptedDaemon newer({.stored = wire::PlacementBody{41, DigestOf(second_), second_}});
  ScriptedDaemon fresh({});
  StartedJob job(absl::StrCat(fresh.endpoint(), ",", older.endpoint(), ",", newer.endpoint()));
  EXPECT_EQ(job.rank(2).client().placement().version, 41);
}

}  // namespace

}  // namespace eplb
