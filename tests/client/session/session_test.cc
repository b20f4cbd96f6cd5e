#include "client/session/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "proto/wire/report_counts.h"
#include "tests/client/switch_test.h"

namespace eplb {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

bool SessionSwitched(const BoundaryResult& result) { return result.switched; }
bool SessionVoted(const BoundaryResult& result) { return result.voted; }

// Waits at most 20 s for the daemon's refusal to arrive.
bool WasRefused(const Client& client) {
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (client.stats().refusals == 0 && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  return client.stats().refusals > 0;
}

// Waits at most 20 s for the session to be connected, or not to be.
bool Becomes(const Client& client, bool connected) {
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (client.stats().connected != connected && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  return client.stats().connected == connected;
}

// Sessions of whole clients, against a daemon that says what the test tells it to.
using SessionTest = SwitchTest;

TEST_F(SessionTest, HelloDescribesTheRank) {
  StartedJob job(daemon_.endpoint());
  const auto hello = daemon_.WaitFor<wire::Hello>(3);
  ASSERT_TRUE(hello.has_value());
  EXPECT_EQ(hello->job, "job");
  EXPECT_EQ(hello->run_id, job.rank(3).client().run_id());
  EXPECT_THAT(hello->run_id, ::testing::StartsWith("run-0."));
  EXPECT_FALSE(hello->take_over);
  EXPECT_EQ(hello->world_size, 4);
  EXPECT_EQ(hello->gpu, 1);
  EXPECT_EQ(hello->ep_group, 1);
  EXPECT_EQ(hello->shape.num_slots, 4);
  EXPECT_EQ(hello->running_digest, DigestOf(first_));
  EXPECT_EQ(hello->vote_every, 4);
  EXPECT_EQ(hello->weight_bytes, 96);
  EXPECT_EQ(hello->state_bytes, 40);
  EXPECT_EQ(hello->staging_rows, 2);
}

TEST_F(SessionTest, SessionComesBackToADaemonThatWasKilled) {
  auto daemon = std::make_unique<ScriptedDaemon>(ScriptedDaemon::Options{});
  const int port = daemon->port();
  StartedJob job(daemon->endpoint());
  daemon->WaitForRanks(kTestRanks);
  daemon->SendAll(propose_);
  std::vector<int64_t> steps(kTestRanks);
  job.Run([&](int32_t r, TestRank& rank) {
    steps[static_cast<size_t>(r)] = rank.StepUntil(0, SessionSwitched).value();
  });
  daemon.reset();
  job.Run([&](int32_t r, TestRank& rank) {  // training never waits for it
    for (int64_t step = steps[static_cast<size_t>(r)] + 1; step % 4 != 0 || step < 64; ++step) {
      ASSERT_TRUE(rank.Step(step).ok());
      steps[static_cast<size_t>(r)] = step;
    }
  });
  ScriptedDaemon second({.port = port, .term = 2});
  for (int32_t rank = 0; rank < kTestRanks; ++rank) {
    const auto hello = second.WaitFor<wire::Hello>(rank);
    ASSERT_TRUE(hello.has_value());
    EXPECT_EQ(hello->running_version, 7);
    EXPECT_EQ(hello->running_digest, propose_.digest);
    EXPECT_EQ(hello->highest_term, 1);
    EXPECT_EQ(hello->highest_version, 7);
  }
  second.SendAll(ProposeTo(Running(7, second_), first_, 8, 2));
  job.Run([&](int32_t r, TestRank& rank) {
    ASSERT_TRUE(rank.StepUntil(steps[static_cast<size_t>(r)] + 1, SessionSwitched).ok());
    EXPECT_EQ(rank.WrongSlots(), 0);
    EXPECT_GE(rank.client().stats().reconnects, 1);
    EXPECT_GT(rank.client().stats().disconnected_seconds, 0);
  });
}

TEST_F(SessionTest, DrainEndsTheSessionWhichComesBackLater) {
  StartedJob job(daemon_.endpoint());
  daemon_.WaitForRanks(kTestRanks);
  daemon_.SendAll(wire::Drain{.grace_ms = 1000});
  for (int32_t rank = 0; rank < kTestRanks; ++rank) {
    EXPECT_TRUE(daemon_.WaitFor<wire::Hello>(rank, 2).has_value());
  }
  for (const wire::UpMessage& message : daemon_.Said(0)) {
    EXPECT_FALSE(std::holds_alternative<wire::Goodbye>(message));
  }
}

TEST_F(SessionTest, ReportsCarryTheTokensOfTheirWindow) {
  StartedJob job(daemon_.endpoint());
  job.Run([](int32_t /*r*/, TestRank& rank) {
    for (int64_t step = 0; step < 16; ++step) ASSERT_TRUE(rank.Step(step).ok());
  });
  const auto report = daemon_.WaitFor<wire::LoadReport>(2, 2);
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->first_step, 8);
  EXPECT_EQ(report->last_step, 15);
  EXPECT_TRUE((wire::CountsOf(*report) == LoadMatrix::Constant(3, 4, 8)).all());
  EXPECT_EQ(job.rank(2).client().stats().reports_sent, 2);
}

TEST_F(SessionTest, JobRunsWithoutADaemonAndCountsWhatItDrops) {
  const std::string endpoint = ScriptedDaemon({}).endpoint();  // port without a listener
  StartedJob job(endpoint, {.options = [](ClientOptions& o) {
                   o.start_deadline = absl::Seconds(1);
                   o.report_max_steps = 16;
                 }});
  job.Run([](int32_t /*r*/, TestRank& rank) {
    for (int64_t step = 0; step < 40; ++step) ASSERT_TRUE(rank.Step(step).ok());
    const ClientStats stats = rank.client().stats();
    EXPECT_FALSE(stats.connected);
    EXPECT_GT(stats.votes, 10);  // a change is expected at the start
    EXPECT_EQ(stats.dropped_steps, 24);
  });
}

// A thousand ranks must not write a thousand lines: rank 0 speaks for all.
TEST_F(SessionTest, OneRankTellsThatTheDaemonIsAwayAndThatItIsBack) {
  ::testing::internal::CaptureStderr();
  std::string endpoint;
  {
    auto daemon = std::make_unique<ScriptedDaemon>(ScriptedDaemon::Options{});
    endpoint = daemon->endpoint();
    const int port = daemon->port();
    StartedJob job(endpoint);
    daemon->WaitForRanks(kTestRanks);
    daemon.reset();
    job.Run([](int32_t /*r*/, TestRank& rank) { EXPECT_TRUE(Becomes(rank.client(), false)); });
    absl::SleepFor(absl::Milliseconds(300));  // long enough that every rank tried again
    daemon = std::make_unique<ScriptedDaemon>(ScriptedDaemon::Options{.port = port, .term = 2});
    job.Run([](int32_t /*r*/, TestRank& rank) { EXPECT_TRUE(Becomes(rank.client(), true)); });
    job.Run([](int32_t /*r*/, TestRank& rank) { rank.Stop(); });
  }
  const std::string told = ::testing::internal::GetCapturedStderr();
  const std::string who = absl::StrCat("eplb: rank 0 for all ranks: eplbd at ", endpoint, " ");
  EXPECT_THAT(told, HasSubstr(who + "is away: "));
  EXPECT_THAT(told, ContainsRegex(who + "is back after [0-9.ms]+\n"));
  EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 2) << told;
}

TEST_F(SessionTest, AnOperatorMayLetARunTakeOver) {
  StartedJob job(daemon_.endpoint(), {.options = [](ClientOptions& o) { o.take_over = true; }});
  EXPECT_TRUE(daemon_.WaitFor<wire::Hello>(2).value().take_over);
}

TEST_F(SessionTest, OneRankTellsThatARunWaitsAndThatItIsBalanced) {
  ::testing::internal::CaptureStderr();
  std::string endpoint;
  {
    ScriptedDaemon daemon({.waits = "run 3 of job job trains"});
    endpoint = daemon.endpoint();
    StartedJob job(endpoint);
    daemon.WaitForRanks(kTestRanks);
    daemon.SendAll(wire::Keep{.run_number = 4});
    daemon.SendAll(wire::Keep{.run_number = 4});
    daemon.SendAll(propose_);
    for (int32_t rank = 0; rank < kTestRanks; ++rank) {
      EXPECT_TRUE(daemon.WaitFor<wire::Prepared>(rank).has_value());
    }
    job.Run([](int32_t /*r*/, TestRank& rank) { rank.Stop(); });
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            absl::StrCat("eplb: eplbd at ", endpoint,
                         ": this run is not balanced yet: run 3 of job job trains\n"
                         "eplb: eplbd at ",
                         endpoint, ": this run is balanced now\n"));
}

// Field 40 with the bytes "later": what a daemon with more kinds of messages sends.
TEST_F(SessionTest, AMessageOfALaterDaemonIsSkippedAndTheStreamGoesOn) {
  ::testing::internal::CaptureStderr();
  {
    ScriptedDaemon daemon({});
    StartedJob job(daemon.endpoint());
    daemon.WaitForRanks(kTestRanks);
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(daemon.SendBytes(1, std::string("\xc2\x02\x05later", 8)));
    }
    ASSERT_TRUE(daemon.Send(1, propose_));
    EXPECT_TRUE(daemon.WaitFor<wire::Prepared>(1).has_value());
    EXPECT_EQ(job.rank(1).client().stats().unknown_messages, 3);
    EXPECT_EQ(job.rank(1).client().stats().reconnects, 0);
    job.Run([](int32_t /*r*/, TestRank& rank) { rank.Stop(); });
  }
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(told, HasSubstr("of the unknown kind 40, of a later version; rank 1 skips it\n"));
  EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 1) << told;
}

TEST_F(SessionTest, AMessageThatCannotBeParsedEndsTheStreamAndTheRankComesBack) {
  StartedJob job(daemon_.endpoint());
  daemon_.WaitForRanks(kTestRanks);
  ASSERT_TRUE(daemon_.SendUnreadable(1));
  EXPECT_TRUE(daemon_.WaitFor<wire::Hello>(1, 2).has_value()) << "it waits for a stream that stays";
  job.Run([](int32_t /*r*/, TestRank& rank) { rank.Stop(); });
}

TEST_F(SessionTest, AnotherDaemonOfTheListStandsInForOneThatIsGone) {
  auto first = std::make_unique<ScriptedDaemon>(ScriptedDaemon::Options{});
  ScriptedDaemon second({.term = 2});
  StartedJob job(absl::StrCat(first->endpoint(), ",", second.endpoint()));
  first->WaitForRanks(kTestRanks);
  EXPECT_TRUE(second.Said(0).empty());
  first.reset();
  second.WaitForRanks(kTestRanks);
  EXPECT_EQ(second.WaitFor<wire::Hello>(3).value().highest_term, 1);
}

TEST_F(SessionTest, ADaemonThatRefusesStrangersDoesNotKeepThemFromTheOther) {
  ScriptedDaemon closed({.refusal = absl::PermissionDeniedError("no member of this job")});
  ScriptedDaemon open(ScriptedDaemon::Options{});
  StartedJob job(absl::StrCat(closed.endpoint(), ",", open.endpoint()));
  open.WaitForRanks(kTestRanks);
  for (int32_t rank = 0; rank < kTestRanks; ++rank) {
    EXPECT_TRUE(Becomes(job.rank(rank).client(), /*connected=*/true));
  }
}

TEST_F(SessionTest, ARunThatIsToWaitWaitsWhereItWasTold) {
  ScriptedDaemon leading({.refusal = absl::AbortedError("another one came before")});
  ScriptedDaemon other(ScriptedDaemon::Options{});
  StartedJob job(absl::StrCat(leading.endpoint(), ",", other.endpoint()));
  while (leading.Said(0).size() < 3) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_TRUE(other.Said(0).empty());
}

TEST_F(SessionTest, ARankGoesToTheDaemonThatLeadsItsRun) {
  ScriptedDaemon left({.term = 7});
  ScriptedDaemon leading({.term = 8, .leads_with = 3});
  StartedJob job(absl::StrCat(left.endpoint(), ",", leading.endpoint()));
  left.WaitForRanks(kTestRanks);
  leading.WaitForRanks(kTestRanks);
  const auto moved = left.WaitFor<wire::Moved>(2);
  ASSERT_TRUE(moved.has_value());
  EXPECT_EQ(moved->term, 8);
  EXPECT_EQ(moved->endpoint, leading.endpoint());
  EXPECT_EQ(leading.asked_for(), job.rank(0).client().run_id());
}

TEST_F(SessionTest, RefusedSessionIsToldOnceAndTrainingGoesOn) {
  ::testing::internal::CaptureStderr();
  {
    ScriptedDaemon daemon(
        {.refusal = absl::AlreadyExistsError("another process speaks for this rank")});
    StartedJob job(daemon.endpoint());
    daemon.WaitForRanks(kTestRanks);
    job.Run([](int32_t /*r*/, TestRank& rank) { EXPECT_TRUE(WasRefused(rank.client())); });
    job.Run([](int32_t /*r*/, TestRank& rank) {
      EXPECT_TRUE(rank.StepUntil(0, SessionVoted).ok());
      rank.Stop();
    });
    EXPECT_EQ(daemon.Said(0).size(), 1U + 1U);  // and once more when it closes
  }
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(told, HasSubstr("refuses rank 2: another process speaks for this rank; training "
                              "continues unbalanced"));
}

}  // namespace
}  // namespace eplb
