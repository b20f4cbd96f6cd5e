// The numbers of placements: which are given out, reserved, adopted or refused.
#include "server/core/decisions/versions.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/server/core/core_harness.h"

namespace eplb::core {

namespace {

// Another run, whose rank 0 brought a placement of its own as `version`.
void RelaunchWith(TestJob& job, const Placement& placement, int64_t version) {
  for (FakeRank& rank : job.ranks) {
    rank.Relaunch("run-2");
    rank.identity.take_over = true;
  }
  job.SetRunning(placement, version);
}

absl::StatusOr<int64_t> Reserve(CoreHarness& daemon, int64_t ticket,
                                const std::string& job = kJob) {
  daemon.Handle(ReserveVersion{.ticket = ticket, .job = job});
  const absl::StatusOr<ChangeOutcome>& reply = daemon.replies().at(ticket);
  if (!reply.ok()) return reply.status();
  return reply->version;
}

// Version 1 is committed: layers 0 and 1 are exchanged.
void CommitOne(TestJob& job) {
  job.Propose(Exchanged({0, 1}));
  job.Deliver();
  ASSERT_TRUE(job.VoteAndDeliver(12));
  ASSERT_EQ(job.daemon.View().version(), 1);
}

TEST(VersionsTest, AReservedNumberIsStoredBeforeTheAnswerAndGivenToNobodyElse) {
  ConnectedJob job;
  EXPECT_EQ(*Reserve(job.daemon, 1), 1);
  EXPECT_EQ(job.daemon.stored().at(kJob).next_version, 2);
  EXPECT_EQ(*Reserve(job.daemon, 2), 2);
  job.daemon.Restart();
  EXPECT_EQ(*Reserve(job.daemon, 3), 3);
  job.Propose(Exchanged({0, 1}));
  job.Deliver();
  EXPECT_EQ(job.ranks[0].proposals.at(0).version, 4);
}

TEST(VersionsTest, ANumberThatCannotBeStoredIsNotReserved) {
  ConnectedJob job;
  job.daemon.store_works = false;
  EXPECT_EQ(Reserve(job.daemon, 1).status().code(), absl::StatusCode::kUnavailable);
  job.daemon.store_works = true;
  EXPECT_EQ(*Reserve(job.daemon, 2), 1);
}

// Each costs a durable write.
TEST(VersionsTest, ARankThatReservesWithoutEndIsSlowedDown) {
  ConnectedJob job;
  int64_t ticket = 0;
  for (int64_t version = 1; version <= 64; ++version) {
    ASSERT_EQ(*Reserve(job.daemon, ++ticket), version);
  }
  const int64_t writes = job.daemon.num_job_writes();
  EXPECT_EQ(Reserve(job.daemon, ++ticket).status(),
            absl::ResourceExhaustedError("job train reserved 64 versions and gets another each "
                                         "10s; retry later"));
  EXPECT_EQ(job.daemon.num_job_writes(), writes);
  job.daemon.Advance(absl::Seconds(11));
  EXPECT_EQ(*Reserve(job.daemon, ++ticket), 65);
}

TEST(VersionsTest, OfAnUnknownJobNoNumberIsReserved) {
  CoreHarness daemon(TestConfig());
  EXPECT_EQ(Reserve(daemon, 1, "x").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(daemon.core().Jobs(daemon.now()).empty());
}

TEST(VersionsTest, AStoreOlderThanWhatRanksHaveSeenIsToldOnceAndNoNumberComesAgain) {
  ConnectedJob job;
  const std::map<std::string, StoredJob> copy = job.daemon.stored();
  const int64_t term = job.daemon.stored_term();
  CommitOne(job);
  job.daemon.Restart();
  job.ConnectAll();
  EXPECT_EQ(job.daemon.CountEvents("store_behind"), 0);
  const int64_t led = job.daemon.View().term();

  job.daemon.RestoreStore(copy, term);
  job.ConnectAll();
  EXPECT_EQ(job.daemon.CountEvents("store_behind"), 1);
  EXPECT_EQ(job.daemon.LastReason("store_behind"),
            "rank 0 has seen version 1, and the store knows none above 0: it is older than what "
            "runs; the next version is above both");
  EXPECT_EQ(job.daemon.core().counters().stores_behind, 1);
  EXPECT_GT(job.daemon.View().term(), led);
  EXPECT_EQ(job.daemon.View().version(), 1);
  EXPECT_EQ(*Reserve(job.daemon, 1), 2);
}

TEST(VersionsTest, OneNumberWithTwoPlacementsOfOneShapeIsToldOnceAndTheFirstStays) {
  TestJob job;
  CommitOne(job);
  const std::string ran = DigestOf(Exchanged({0, 1})).Hex().substr(0, 12);
  const std::string now = DigestOf(Exchanged({2})).Hex().substr(0, 12);
  RelaunchWith(job, Exchanged({2}), 1);
  job.ConnectAll();
  EXPECT_EQ(job.daemon.View().run_id(), "run-2");
  EXPECT_EQ(job.daemon.CountEvents("version_reused"), 1);
  EXPECT_EQ(job.daemon.LastReason("version_reused"),
            "run run-2 runs version 1 with digest " + now + ", the job ran digest " + ran +
                " under that number before, which stays in the history; the next version is "
                "2");
  EXPECT_EQ(job.daemon.core().PlacementInForce(kJob)->placement, Exchanged({2}));
}

TEST(VersionsTest, AReusedNumberIsToldOfARunThatOnlyWaits) {
  TestJob job;
  CommitOne(job);
  RelaunchWith(job, Exchanged({2}), 1);
  for (FakeRank& rank : job.ranks) rank.identity.take_over = false;
  job.Connect(0);
  EXPECT_EQ(job.daemon.View().run_id(), "run-1");
  EXPECT_EQ(job.daemon.CountEvents("version_reused"), 1);
}

TEST(VersionsTest, TheSamePlacementUnderItsOldNumberIsNothing) {
  TestJob job;
  CommitOne(job);
  RelaunchWith(job, Exchanged({0, 1}), 1);
  job.ConnectAll();
  EXPECT_EQ(job.daemon.View().run_id(), "run-2");
  EXPECT_EQ(job.daemon.CountEvents("version_reused"), 0);
}

TEST(VersionsTest, WhatRanBeforeARestartIsKnownFromTheHistory) {
  StoredJob stored{.job = kJob, .version = 4, .next_version = 9, .placement = Exchanged({1})};
  stored.history = {{3, DigestOf(Exchanged({0}))}, {4, DigestOf(Exchanged({1}))}};
  Core core(TestConfig(), 0, {stored}, absl::UnixEpoch());
  wire::Hello hello = TestHello(0);
  hello.running_version = 3;
  hello.highest_version = 3;
  hello.running_digest = DigestOf(Exchanged({2}));
  const Decision decision = core.Handle(SessionMessage{1, hello}, absl::UnixEpoch());
  bool told = false;
  for (const Effect& effect : decision.effects) {
    const auto* record = std::get_if<Record>(&effect);
    told |= record != nullptr && record->event.name() == "version_reused";
  }
  EXPECT_TRUE(told);
}

TEST(VersionsTest, AnAnswerAboutAVersionThatNobodyProposedEndsItsStreamAndRaisesNothing) {
  constexpr int64_t kFarTerm = int64_t{1} << 40;
  const wire::UpMessage answers[] = {wire::Prepared{kFarTerm, {}, {}},
                                     wire::Nack{kFarTerm, wire::NackCode::kBusy, ""},
                                     wire::Failed{kFarTerm, wire::FailedCode::kTransfer, "", 0},
                                     wire::Applied{kFarTerm, {}, 0, 0, 0}};
  ConnectedJob job;
  for (const wire::UpMessage& answer : answers) {
    const SessionId session = job.ranks[1].session;
    job.daemon.Say(session, answer);
    ASSERT_TRUE(job.daemon.ClosedWith(session).has_value());
    EXPECT_EQ(job.daemon.ClosedWith(session)->code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(*job.daemon.core().NextVersion(kJob), 1);
    job.Connect(1);
  }
  EXPECT_NE(job.daemon.state(), "QUARANTINE");
}

}  // namespace

}  // namespace eplb::core
