#include "server/core/hello.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

absl::Status Refusal(CoreHarness& daemon, const wire::Hello& hello) {
  const SessionId session = daemon.Open();
  daemon.Say(session, hello);
  return daemon.ClosedWith(session).value_or(absl::OkStatus());
}

TEST(CheckHelloTest, EveryFieldOutOfItsRangeIsNamed) {
  struct Case {
    const char* expected;
    std::function<void(wire::Hello&)> spoil;
  };
  const Case cases[] = {
      {"job must be", [](wire::Hello& h) { h.job = "a b"; }},
      {"job must be", [](wire::Hello& h) { h.job = ""; }},
      {"incarnation has 129", [](wire::Hello& h) { h.incarnation = std::string(129, 'x'); }},
      {"running_version is -1", [](wire::Hello& h) { h.running_version = -1; }},
      {"highest_term is", [](wire::Hello& h) { h.highest_term = INT64_MAX; }},
      {"highest_version is", [](wire::Hello& h) { h.highest_version = INT64_MAX; }},
      {"vote_every is 0", [](wire::Hello& h) { h.vote_every = 0; }},
      {"report_every is 0", [](wire::Hello& h) { h.report_every = 0; }},
      {"staging_rows is -1", [](wire::Hello& h) { h.staging_rows = -1; }},
      {"staging_layers is -1", [](wire::Hello& h) { h.staging_layers = -1; }},
      {"weight_bytes is -2", [](wire::Hello& h) { h.weight_bytes = -2; }},
      {"num_slots is 5", [](wire::Hello& h) { h.shape.num_slots = 5; }},
      {"world_size is 4", [](wire::Hello& h) { h.world_size = 4; }},
      {"rank is 3", [](wire::Hello& h) { h.rank = 3; }},
      {"not GPU 2", [](wire::Hello& h) { h.gpu = 2; }},
      {"of lane 1", [](wire::Hello& h) { h.lane = 1; }},
  };
  EXPECT_TRUE(CheckHello(TestHello(0), TestConfig()).ok());
  for (const Case& one : cases) {
    wire::Hello hello = TestHello(0);
    one.spoil(hello);
    const absl::Status status = CheckHello(hello, TestConfig());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << one.expected;
    EXPECT_NE(std::string(status.message()).find(one.expected), std::string::npos) << status;
  }
}

TEST(CheckHelloTest, ASecondLaneIsTheNextNumGpusRanks) {
  wire::Hello hello = TestHello(1);
  hello.rank = 4;
  hello.world_size = 6;
  hello.lane = 1;
  EXPECT_TRUE(CheckHello(hello, TestConfig()).ok());
}

TEST(CheckHelloTest, TooManyRanksIsResourceExhausted) {
  Config config = TestConfig();
  config.max_ranks_per_job = 2;
  EXPECT_EQ(CheckHello(TestHello(0), config).code(), absl::StatusCode::kResourceExhausted);
}

TEST(HelloTest, WelcomeCarriesTheTermAndTheDaemonsVersion) {
  CoreHarness daemon(TestConfig());
  const SessionId session = daemon.Open();
  daemon.Say(session, TestHello(0));
  const auto welcome = Only<wire::Welcome>(daemon.Take(session));
  ASSERT_EQ(welcome.size(), 1u);
  EXPECT_EQ(welcome[0].term, 1);
  EXPECT_EQ(welcome[0].server_version, "test");
}

TEST(HelloTest, AHigherTermSeenByARankIsOutbidAndStoredBeforeWelcome) {
  CoreHarness daemon(TestConfig());
  wire::Hello hello = TestHello(0);
  hello.highest_term = 41;
  const SessionId session = daemon.Open();
  daemon.Say(session, hello);
  EXPECT_EQ(Only<wire::Welcome>(daemon.Take(session))[0].term, 42);
  EXPECT_EQ(daemon.stored_term(), 42);
  EXPECT_EQ(daemon.core().term(), 42);
}

TEST(HelloTest, ATermThatCannotBeStoredIsNotWelcomedAndIsStoredByTheNextHello) {
  CoreHarness daemon(TestConfig());
  daemon.term_store_works = false;
  wire::Hello hello = TestHello(0);
  hello.highest_term = 41;
  const SessionId first = daemon.Open();
  daemon.Say(first, hello);
  EXPECT_EQ(daemon.ClosedWith(first)->code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(daemon.Take(first).empty());
  EXPECT_FALSE(daemon.core().Readiness().ok());
  daemon.term_store_works = true;
  const SessionId second = daemon.Open();
  daemon.Say(second, hello);
  EXPECT_EQ(Only<wire::Welcome>(daemon.Take(second))[0].term, 42);
  EXPECT_TRUE(daemon.core().Readiness().ok());
}

TEST(HelloTest, AMessageBeforeHelloAndASecondHelloEndTheSession) {
  CoreHarness daemon(TestConfig());
  const SessionId early = daemon.Open();
  daemon.Say(early, wire::Goodbye{});
  EXPECT_EQ(daemon.ClosedWith(early)->code(), absl::StatusCode::kInvalidArgument);
  const SessionId twice = daemon.Open();
  daemon.Say(twice, TestHello(0));
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
  EXPECT_NE(std::string(status.message()).find("DUPLICATE_RANK"), std::string::npos);
}

TEST(HelloTest, AnotherProcessOfAnAwayRankNeedsANewIncarnation) {
  TestJob job;
  job.ConnectAll();
  job.Disconnect(0);
  wire::Hello other = TestHello(0);
  other.nonce = 7;
  EXPECT_EQ(Refusal(job.daemon, other).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(HelloTest, TheSameProcessAgainReplacesItsOlderSession) {
  TestJob job;
  job.ConnectAll();
  const SessionId older = job.ranks[0].session;
  job.Connect(0);
  EXPECT_EQ(job.daemon.ClosedWith(older)->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(job.daemon.ClosedWith(job.ranks[0].session), std::nullopt);
  EXPECT_EQ(job.daemon.View().connected_ranks, 3);
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
  EXPECT_NE(refused([](wire::Hello& h) { h.vote_every = 4; }).find("vote_every is 4"),
            std::string::npos);
  EXPECT_NE(refused([](wire::Hello& h) { h.reduce = wire::Reduce::kRoot; }).find("reduce is root"),
            std::string::npos);
  EXPECT_NE(refused([](wire::Hello& h) { h.world_size = 6; }).find("world_size is 6"),
            std::string::npos);
  EXPECT_NE(refused([](wire::Hello& h) { h.shape.num_layers = 5; }).find("5 layers"),
            std::string::npos);
}

TEST(HelloTest, JobsAreBoundedAndOnesThatLeftNoTraceMakeRoom) {
  Config config = TestConfig();
  config.max_jobs = 1;
  CoreHarness daemon(config);
  const SessionId first = daemon.Open();
  daemon.Say(first, TestHello(0));
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
  const SessionId session = daemon.Open();
  daemon.Say(session, newer);
  wire::Hello older = TestHello(0);
  older.session_number = 2;
  EXPECT_EQ(Refusal(daemon, older).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(daemon.ClosedWith(session), std::nullopt);
  EXPECT_TRUE(daemon.View().ranks[0].connected);
}

TEST(HelloTest, ADrainingDaemonRefuses) {
  CoreHarness daemon(TestConfig());
  daemon.Handle(DrainRequested{absl::Seconds(10)});
  EXPECT_EQ(Refusal(daemon, TestHello(0)).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace eplb::core
