#include "server/core/ranks/hello.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "absl/strings/str_cat.h"

#include "base/foreign_text.h"
#include "proto/wire/names.h"
#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

using ::testing::HasSubstr;

absl::Status Refusal(CoreHarness& daemon, const wire::Hello& hello) {
  const SessionId session = daemon.Join(hello);
  return daemon.ClosedWith(session).value_or(absl::OkStatus());
}

TEST(CheckHelloTest, EveryFieldOutOfItsRangeIsNamed) {
  struct Case {
    const char* expected;
    std::function<void(wire::Hello&)> spoil;
  };
  const Case cases[] = {
      {"job has a character", [](wire::Hello& h) { h.job = "a b"; }},
      {"job is ..,", [](wire::Hello& h) { h.job = ".."; }},
      {"job has 0", [](wire::Hello& h) { h.job = ""; }},
      {"run has 129", [](wire::Hello& h) { h.run_id = std::string(129, 'x'); }},
      {"running_version is -1", [](wire::Hello& h) { h.running_version = -1; }},
      {"highest_term is", [](wire::Hello& h) { h.highest_term = INT64_MAX; }},
      {"highest_version is", [](wire::Hello& h) { h.highest_version = INT64_MAX; }},
      {"vote_every is 0", [](wire::Hello& h) { h.vote_every = 0; }},
      {"report_every is 0", [](wire::Hello& h) { h.report_every = 0; }},
      {"staging_rows is -1", [](wire::Hello& h) { h.staging_rows = -1; }},
      {"staging_layers is -1", [](wire::Hello& h) { h.staging_layers = -1; }},
      {"weight_bytes is -2", [](wire::Hello& h) { h.weight_bytes = -2; }},
      {"num_slots is 5", [](wire::Hello& h) { h.shape.num_slots = 5; }},
      {"world_size: 4", [](wire::Hello& h) { h.world_size = 4; }},
      {"rank is 3", [](wire::Hello& h) { h.rank = 3; }},
      {"not GPU 2", [](wire::Hello& h) { h.gpu = 2; }},
      {"of EP group 1", [](wire::Hello& h) { h.ep_group = 1; }},
      {"pipeline_parallel_size: 0", [](wire::Hello& h) { h.pipeline_parallel_size = 0; }},
      {"multiple of pipeline_parallel_size 2",
       [](wire::Hello& h) { h.pipeline_parallel_size = 2; }},
      {"expert_tensor_parallel: -1", [](wire::Hello& h) { h.expert_tensor_parallel = -1; }},
      {"expert_tensor_parallel 3", [](wire::Hello& h) { h.expert_tensor_parallel = 3; }},
  };
  EXPECT_TRUE(CheckHello(TestHello(0), TestConfig()).ok());
  for (const Case& one : cases) {
    wire::Hello hello = TestHello(0);
    one.spoil(hello);
    const absl::Status status = CheckHello(hello, TestConfig());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << one.expected;
    EXPECT_THAT(std::string(status.message()), HasSubstr(one.expected));
  }
}

TEST(CheckHelloTest, AShapeWhoseTablesWouldBeLargeIsRefused) {
  const auto refusal = [](int32_t layers, int32_t experts, int32_t slots) {
    wire::Hello hello = TestHello(0);
    hello.shape = {.num_layers = layers, .num_experts = experts, .num_slots = slots, .num_gpus = 3};
    return std::string(CheckHello(hello, TestConfig()).message());
  };
  EXPECT_EQ(refusal(128, 512, 2048), "");
  EXPECT_EQ(refusal(512, 2048, 2048), "");
  EXPECT_THAT(refusal(513, 2048, 2048),
              HasSubstr("513 layers of 2048 slots are 1050624, the daemon takes "
                        "at most 1048576"));
  EXPECT_THAT(refusal(1, 1 << 19, 1 << 20), HasSubstr("with up to 524289 replicas"));
  EXPECT_EQ(refusal(65536, 3, 3), "");
  EXPECT_THAT(refusal(65537, 3, 3), HasSubstr("65537 layers, the daemon takes at most 65536"));
}

TEST(CheckHelloTest, ASecondEpGroupIsTheNextNumGpusRanks) {
  wire::Hello hello = TestHello(1);
  hello.rank = 4;
  hello.world_size = 6;
  hello.ep_group = 1;
  EXPECT_TRUE(CheckHello(hello, TestConfig()).ok());
}

TEST(CheckHelloTest, ExpertTensorParallelRanksStandSideBySide) {
  wire::Hello hello = TestHello(0);
  hello.world_size = 6;
  hello.expert_tensor_parallel = 2;
  hello.rank = 3;
  hello.gpu = 1;
  hello.ep_group = 1;
  EXPECT_TRUE(CheckHello(hello, TestConfig()).ok());
}

TEST(CheckHelloTest, TooManyRanksIsResourceExhausted) {
  Config config = TestConfig();
  config.max_ranks_per_job = 2;
  EXPECT_EQ(CheckHello(TestHello(0), config).code(), absl::StatusCode::kResourceExhausted);
}

TEST(HelloTest, WelcomeCarriesTheTermAndTheDaemonsVersion) {
  CoreHarness daemon(TestConfig());
  const SessionId session = daemon.Join(TestHello(0));
  const auto welcome = Only<wire::Welcome>(daemon.Take(session));
  ASSERT_EQ(welcome.size(), 1u);
  EXPECT_EQ(welcome[0].term, 1);
  EXPECT_EQ(welcome[0].server_version, "test");
}

TEST(HelloTest, ALongLibraryVersionIsCutBetweenTwoCharacters) {
  CoreHarness daemon(TestConfig());
  for (size_t plain = wire::kMaxNameLength - 8; plain <= wire::kMaxNameLength; ++plain) {
    wire::Hello hello = TestHello(0);
    hello.nonce += plain;
    hello.library_version = std::string(plain, 'v') + "\u20ac\u20ac\u20ac";
    (void)daemon.Join(hello);
    const std::string shown = daemon.View().ranks(0).library_version();
    EXPECT_TRUE(IsUtf8(shown)) << plain;
    EXPECT_LE(shown.size(), wire::kMaxNameLength);
  }
}

TEST(HelloTest, AHigherTermSeenByARankIsOutbidForItsJobAlone) {
  CoreHarness daemon(TestConfig());
  wire::Hello hello = TestHello(0);
  hello.highest_term = 41;
  const SessionId session = daemon.Join(hello);
  EXPECT_EQ(Only<wire::Welcome>(daemon.Take(session))[0].term, 42);
  EXPECT_EQ(daemon.View().term(), 42);
  EXPECT_EQ(daemon.core().term(), 1);
  hello.job = "other";
  hello.highest_term = 0;
  const SessionId other = daemon.Join(hello);
  EXPECT_EQ(Only<wire::Welcome>(daemon.Take(other))[0].term, 1);
}

TEST(HelloTest, AJobsTermRisesAtARestartAndIsThatOfItsProposals) {
  TestJob job;
  for (FakeRank& rank : job.ranks) rank.identity.highest_term = 41;
  job.ConnectAll();
  ASSERT_EQ(job.daemon.View().term(), 42);
  job.daemon.Restart();
  EXPECT_EQ(job.daemon.View().term(), 43);
  job.Propose(Exchanged({0, 1}));
  job.Deliver();
  EXPECT_EQ(job.ranks[2].proposals.at(0).term, 43);
  EXPECT_EQ(job.daemon.records().back().event.name(), "proposed");
  EXPECT_EQ(job.daemon.records().back().term, 43);
}

TEST(HelloTest, AnEqualTermIsOutbidByADaemonThatWelcomedNobodyYet) {
  CoreHarness daemon(TestConfig());
  wire::Hello hello = TestHello(0);
  hello.highest_term = 1;  // term of a daemon whose store is lost
  const SessionId session = daemon.Join(hello);
  EXPECT_EQ(Only<wire::Welcome>(daemon.Take(session))[0].term, 2);
  // From now on its own term comes back.
  hello.highest_term = 2;
  hello.session_number = 1;
  const SessionId again = daemon.Join(hello);
  EXPECT_EQ(Only<wire::Welcome>(daemon.Take(again))[0].term, 2);
}

TEST(HelloTest, NoTermOrVersionOfARankLocksOthersOutLater) {
  constexpr int64_t kStep = int64_t{1} << 32;
  CoreHarness daemon(TestConfig());
  for (int64_t wire::Hello::*number : {&wire::Hello::highest_term, &wire::Hello::highest_version,
                                       &wire::Hello::running_version, &wire::Hello::run_number}) {
    wire::Hello hello = TestHello(0);
    hello.job = "other";
    hello.*number = kStep + 2;
    EXPECT_THAT(std::string(Refusal(daemon, hello).message()),
                HasSubstr(" is 4294967298, it must be at most 4294967296 above what the daemon "));
  }
  EXPECT_TRUE(daemon.core().Jobs(daemon.now()).empty());
  wire::Hello hello = TestHello(0);
  hello.highest_term = kStep;
  hello.highest_version = kStep;
  for (int restarts = 0; restarts < 3; ++restarts) {
    const SessionId session = daemon.Join(hello);
    const auto welcome = Only<wire::Welcome>(daemon.Take(session));
    ASSERT_EQ(welcome.size(), 1U) << *daemon.ClosedWith(session);
    EXPECT_GT(welcome[0].term, kStep);
    EXPECT_EQ(*daemon.core().NextVersion(kJob), kStep + 1);
    hello.highest_term = welcome[0].term;
    daemon.Restart();
  }
  EXPECT_TRUE(Refusal(daemon, TestHello(1)).ok()) << "one that knows nothing of it is welcome";
}

TEST(HelloTest, RefusedJobsThatTheDaemonDoesNotKnowAreKeptNewestFirstWithTheirCount) {
  Config config = TestConfig();
  config.max_jobs = 1;
  CoreHarness daemon(config);
  ASSERT_TRUE(Refusal(daemon, TestHello(0)).ok());
  for (int job = 0; job < 20; ++job) {
    wire::Hello hello = TestHello(0);
    hello.job = absl::StrCat("job-", job);
    EXPECT_EQ(Refusal(daemon, hello).code(), absl::StatusCode::kResourceExhausted);
  }
  wire::Hello again = TestHello(1);
  again.job = "job-10";
  EXPECT_FALSE(Refusal(daemon, again).ok());
  const std::vector<v1::Refusal> refused = daemon.core().Refusals(daemon.now() + absl::Seconds(90));
  ASSERT_EQ(refused.size(), 16U);
  EXPECT_EQ(refused[0].job(), "job-10");
  EXPECT_EQ(refused[0].count(), 2);
  EXPECT_EQ(refused[0].seconds_ago(), 90);
  EXPECT_EQ(refused[0].reason(),
            "rank 1 was refused: the daemon already knows 1 jobs whose ranks are connected, its "
            "limit; raise limits.max_jobs");
  EXPECT_EQ(refused[1].job(), "job-19");
  EXPECT_EQ(refused[15].job(), "job-4");
}

TEST(HelloTest, ARefusalIsCountedNamedAndPartOfWhatTheJobWaitsFor) {
  CoreHarness daemon(TestConfig());
  ASSERT_TRUE(Refusal(daemon, TestHello(0)).ok());
  wire::Hello wrong = TestHello(1);
  wrong.shape.num_layers = 3;
  EXPECT_FALSE(Refusal(daemon, wrong).ok());
  EXPECT_EQ(daemon.core().counters().refused, 1);
  EXPECT_EQ(daemon.View().waiting_for().rfind("ranks 1, 2 to register; rank 1 was refused: hello: "
                                              "shape is 3 layers",
                                              0),
            0U)
      << daemon.View().waiting_for();
  for (const int32_t rank : {1, 2}) EXPECT_TRUE(Refusal(daemon, TestHello(rank)).ok());
  EXPECT_EQ(daemon.state(), "IDLE");
  EXPECT_EQ(daemon.View().waiting_for(), "");
}

TEST(HelloTest, ARankOfAnotherArrangementIsRefused) {
  CoreHarness daemon(TestConfig());
  wire::Hello hello = TestHello(0);
  hello.world_size = 6;
  ASSERT_TRUE(Refusal(daemon, hello).ok());
  hello.rank = 1;
  hello.gpu = 1;
  hello.pipeline_parallel_size = 2;
  EXPECT_EQ(Refusal(daemon, hello),
            absl::FailedPreconditionError("hello: pipeline_parallel_size is 2, the other ranks of "
                                          "run run-1 have 1"));
  hello.pipeline_parallel_size = 1;
  hello.expert_tensor_parallel = 2;
  hello.gpu = 0;
  hello.ep_group = 1;
  EXPECT_EQ(Refusal(daemon, hello),
            absl::FailedPreconditionError("hello: expert_tensor_parallel is 2, the other ranks of "
                                          "run run-1 have 1"));
}

TEST(HelloTest, ARankThatSeesTheSameTokensAsTheOneBeforeMayNotReport) {
  CoreHarness daemon(TestConfig());
  wire::Hello hello = TestHello(1);
  hello.world_size = 6;
  hello.expert_tensor_parallel = 2;
  hello.gpu = 0;
  hello.ep_group = 1;
  const SessionId session = daemon.Join(hello);
  daemon.Say(session, TestReport(0, 9));
  EXPECT_EQ(daemon.ClosedWith(session),
            absl::InvalidArgumentError("load report: rank 1 reports, but of each 2 ranks that see "
                                       "the same tokens only the first does"));
}

TEST(HelloTest, WhoIsAskedToComeBackIsNotRefused) {
  CoreHarness daemon(TestConfig());
  daemon.Handle(DrainRequested{.grace = absl::Seconds(1)});
  EXPECT_EQ(Refusal(daemon, TestHello(0)).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(daemon.core().counters().refused, 0);
}

TEST(HelloTest, ATermThatCannotBeStoredIsNotWelcomedAndIsStoredByTheNextHello) {
  CoreHarness daemon(TestConfig());
  daemon.term_store_works = false;
  daemon.Handle(StoreFailed{"", absl::UnavailableError("disk full")});
  const SessionId first = daemon.Join(TestHello(0));
  EXPECT_EQ(daemon.ClosedWith(first)->code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(daemon.Take(first).empty());
  EXPECT_FALSE(daemon.core().Readiness().ok());
  daemon.term_store_works = true;
  const SessionId second = daemon.Join(TestHello(0));
  EXPECT_EQ(Only<wire::Welcome>(daemon.Take(second))[0].term, 1);
  EXPECT_TRUE(daemon.core().Readiness().ok());
}

TEST(HelloTest, AMessageBeforeHelloAndASecondHelloEndTheSession) {
  CoreHarness daemon(TestConfig());
  const SessionId early = daemon.Open();
  daemon.Say(early, wire::Goodbye{});
  EXPECT_EQ(daemon.ClosedWith(early)->code(), absl::StatusCode::kInvalidArgument);
  const SessionId twice = daemon.Join(TestHello(0));
  EXPECT_EQ(daemon.ClosedWith(twice), std::nullopt);
  daemon.Say(twice, TestHello(0));
  EXPECT_EQ(daemon.ClosedWith(twice)->code(), absl::StatusCode::kInvalidArgument);
}

TEST(HelloTest, AnotherProcessOfALiveRankIsADuplicate) {
  CoreHarness daemon(TestConfig());
  EXPECT_TRUE(Refusal(daemon, TestHello(0)).ok());
  wire::Hello other = TestHello(0);
  other.nonce = 7;
  const absl::Status status = Refusal(daemon, other);
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr("DUPLICATE_RANK"));
}

TEST(HelloTest, AnotherProcessOfAnAwayRankNeedsANewRun) {
  ConnectedJob job;
  job.Disconnect(0);
  wire::Hello other = TestHello(0);
  other.nonce = 7;
  EXPECT_EQ(Refusal(job.daemon, other).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(HelloTest, TheSameProcessAgainReplacesItsOlderSession) {
  ConnectedJob job;
  const SessionId older = job.ranks[0].session;
  job.Connect(0);
  EXPECT_EQ(job.daemon.ClosedWith(older)->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(job.ClosedWith(0), std::nullopt);
  EXPECT_EQ(job.daemon.View().connected_ranks(), 3);
  EXPECT_EQ(job.daemon.state(), "IDLE");
}

TEST(HelloTest, WhatDiffersFromTheOtherRanksIsNamed) {
  CoreHarness daemon(TestConfig());
  EXPECT_TRUE(Refusal(daemon, TestHello(0)).ok());
  const auto refused = [&daemon](const std::function<void(wire::Hello&)>& spoil) {
    wire::Hello hello = TestHello(1);
    spoil(hello);
    const absl::Status status = Refusal(daemon, hello);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refused([](wire::Hello& h) { h.vote_every = 4; }), HasSubstr("vote_every is 4"));
  EXPECT_THAT(refused([](wire::Hello& h) { h.reduce = wire::Reduce::kRoot; }),
              HasSubstr("reduce is root"));
  EXPECT_THAT(refused([](wire::Hello& h) { h.split = SplitMode::kBatch; }),
              HasSubstr("split is batch, the other ranks of run run-1 have equal"));
  EXPECT_THAT(refused([](wire::Hello& h) { h.world_size = 6; }), HasSubstr("world_size is 6"));
  EXPECT_THAT(refused([](wire::Hello& h) { h.shape.num_layers = 5; }), HasSubstr("5 layers"));
}

TEST(HelloTest, JobsAreBoundedAndOnesThatLeftNoTraceMakeRoom) {
  Config config = TestConfig();
  config.max_jobs = 1;
  CoreHarness daemon(config);
  const SessionId first = daemon.Join(TestHello(0));
  wire::Hello other = TestHello(0);
  other.job = "other";
  EXPECT_EQ(Refusal(daemon, other).code(), absl::StatusCode::kResourceExhausted);
  daemon.Disconnect(first);
  EXPECT_TRUE(Refusal(daemon, other).ok());
}

// A stream that was cut may be heard after the one that the process opened instead.
TEST(HelloTest, AnOlderStreamOfTheSameProcessTakesNoSeat) {
  CoreHarness daemon(TestConfig());
  wire::Hello newer = TestHello(0);
  newer.session_number = 3;
  const SessionId session = daemon.Join(newer);
  wire::Hello older = TestHello(0);
  older.session_number = 2;
  EXPECT_EQ(Refusal(daemon, older).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(daemon.ClosedWith(session), std::nullopt);
  EXPECT_TRUE(daemon.View().ranks(0).connected());
}

}  // namespace
}  // namespace eplb::core
