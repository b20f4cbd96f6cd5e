#include "server/core/ranks/expiry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

using ::testing::HasSubstr;

wire::Hello HelloOfJob(const std::string& job, int32_t rank) {
  wire::Hello hello = TestHello(rank);
  hello.job = job;
  return hello;
}

Config Limited(int32_t max_jobs, absl::Duration job_expiry = TestConfig().job_expiry) {
  Config config = TestConfig();
  config.max_jobs = max_jobs;
  config.job_expiry = job_expiry;
  return config;
}

// All ranks of a job say Hello; the sessions.
std::vector<SessionId> Join(CoreHarness& daemon, const std::string& job) {
  std::vector<SessionId> sessions;
  for (int32_t rank = 0; rank < 3; ++rank) {
    sessions.push_back(daemon.Open());
    daemon.Say(sessions.back(), HelloOfJob(job, rank));
  }
  return sessions;
}

void Finish(CoreHarness& daemon, const std::vector<SessionId>& sessions) {
  for (const SessionId session : sessions)
    daemon.Say(session, wire::Goodbye{"finished", {}, false});
}

TEST(ExpiryTest, AJobWithoutRanksIsForgottenAfterItsTimeAndAudited) {
  CoreHarness daemon(Limited(TestConfig().max_jobs, absl::Minutes(10)));
  Finish(daemon, Join(daemon, kJob));
  EXPECT_TRUE(daemon.stored().at(kJob).end.has_value());
  daemon.Advance(absl::Seconds(1));
  daemon.Advance(absl::Minutes(9));
  EXPECT_EQ(daemon.core().Jobs(daemon.now()).size(), 1);
  daemon.Advance(absl::Minutes(1));
  EXPECT_TRUE(daemon.core().Jobs(daemon.now()).empty());
  EXPECT_TRUE(daemon.stored().empty());
  EXPECT_THAT(daemon.LastReason("expired"), HasSubstr("no rank was connected for 10m"));
  EXPECT_EQ(daemon.core().counters().jobs_expired, 1);
}

TEST(ExpiryTest, AConnectedRankKeepsItsJob) {
  CoreHarness daemon(Limited(TestConfig().max_jobs, absl::Minutes(10)));
  const std::vector<SessionId> sessions = Join(daemon, kJob);
  daemon.Disconnect(sessions[0]);
  for (int i = 0; i < 30; ++i) daemon.Advance(absl::Minutes(1));
  EXPECT_EQ(daemon.core().Jobs(daemon.now()).size(), 1);
}

TEST(ExpiryTest, AFullTableMakesRoomByTheJobThatEndedLongestAgo) {
  CoreHarness daemon(Limited(3));
  for (const char* name : {"b", "a", "live"}) {
    const std::vector<SessionId> sessions = Join(daemon, name);
    if (std::string(name) != "live") Finish(daemon, sessions);
    daemon.Advance(absl::Seconds(1));
  }
  const std::vector<SessionId> fourth = Join(daemon, "fourth");
  EXPECT_FALSE(daemon.ClosedWith(fourth[0]).has_value());
  EXPECT_FALSE(daemon.core().Job("b", daemon.now()).ok());
  EXPECT_TRUE(daemon.core().Job("a", daemon.now()).ok());
  Join(daemon, "fifth");
  EXPECT_FALSE(daemon.core().Job("a", daemon.now()).ok());
  // Only live ones are left.
  const std::vector<SessionId> sixth = Join(daemon, "sixth");
  EXPECT_EQ(daemon.ClosedWith(sixth[0])->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(daemon.core().Job("live", daemon.now()).ok());
}

TEST(ExpiryTest, AJobWhoseRanksMayBeOnTheWayBackIsNoRoomForAnother) {
  CoreHarness daemon(Limited(1));
  for (const SessionId session : Join(daemon, kJob)) daemon.Disconnect(session);
  daemon.Advance(absl::Seconds(1));
  daemon.Advance(absl::Seconds(9));
  EXPECT_EQ(daemon.ClosedWith(Join(daemon, "other")[0])->code(),
            absl::StatusCode::kResourceExhausted);
  daemon.Restart();
  EXPECT_EQ(daemon.ClosedWith(Join(daemon, "other")[0])->code(),
            absl::StatusCode::kResourceExhausted);
  daemon.Advance(absl::Seconds(1));
  daemon.Advance(absl::Seconds(11));
  EXPECT_FALSE(daemon.ClosedWith(Join(daemon, "other")[0]).has_value());
}

TEST(ExpiryTest, AFullTableOfKilledJobsMakesRoomByTheOneAwayLongest) {
  CoreHarness daemon(Limited(3));
  for (const char* name : {"b", "a", "c"}) {
    for (const SessionId session : Join(daemon, name)) daemon.Disconnect(session);
    daemon.Advance(absl::Seconds(11));
  }
  daemon.Advance(absl::Seconds(11));
  ASSERT_EQ(daemon.core().Job("b", daemon.now())->ending(), v1::RUN_ENDING_LOST);
  EXPECT_FALSE(daemon.ClosedWith(Join(daemon, "fourth")[0]).has_value());
  EXPECT_FALSE(daemon.core().Job("b", daemon.now()).ok());
  EXPECT_TRUE(daemon.core().Job("a", daemon.now()).ok());
  EXPECT_EQ(daemon.LastReason("expired"),
            "job b is forgotten: the table of jobs is full and its ranks have been away for 33s");
}

// Pauses or observes the job, whose ranks are gone.
void Stop(CoreHarness& daemon, Verb verb) {
  const std::vector<SessionId> sessions = Join(daemon, kJob);
  ASSERT_TRUE(daemon.Ask(std::move(verb)).ok());
  Finish(daemon, sessions);
}

TEST(ExpiryTest, AJobThatSomebodyStoppedIsForgottenByNoTimeAndLastUnderPressure) {
  const Verb verbs[] = {Pause{}, SetPolicy{{{"mode", "observe"}}}};
  for (const Verb& verb : verbs) {
    CoreHarness daemon(Limited(2, absl::Minutes(10)));
    Stop(daemon, verb);
    for (int hour = 0; hour < 24; ++hour) daemon.Advance(absl::Hours(1));
    EXPECT_TRUE(daemon.core().Job(kJob, daemon.now()).ok());
    Finish(daemon, Join(daemon, "ended-later"));
    Join(daemon, "third");
    EXPECT_TRUE(daemon.core().Job(kJob, daemon.now()).ok());
    EXPECT_FALSE(daemon.core().Job("ended-later", daemon.now()).ok());
    Join(daemon, "fourth");
    EXPECT_FALSE(daemon.core().Job(kJob, daemon.now()).ok());
    EXPECT_THAT(daemon.LastReason("expired"), HasSubstr("although it was stopped"));
  }
}

TEST(ExpiryTest, AJobInQuarantineIsForgottenByNoTime) {
  TestJob job(Limited(TestConfig().max_jobs, absl::Minutes(10)));
  job.Propose(Exchanged({0, 1}));
  job.Deliver();
  job.daemon.Say(job.ranks[1].session, wire::Applied{1, DigestOf(Exchanged({2})), 12, 0, 0});
  ASSERT_EQ(job.daemon.state(), "QUARANTINE");
  job.DisconnectAll();
  for (int hour = 0; hour < 24; ++hour) job.daemon.Advance(absl::Hours(1));
  EXPECT_EQ(job.daemon.state(), "QUARANTINE");
}

TEST(ExpiryTest, AJobThatEndedBeforeTheRestartMakesRoom) {
  CoreHarness daemon(Limited(1));
  Finish(daemon, Join(daemon, kJob));
  daemon.Restart();
  EXPECT_FALSE(daemon.ClosedWith(Join(daemon, "other")[0]).has_value());
}

}  // namespace
}  // namespace eplb::core
