#include "client/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "absl/time/clock.h"

#include "client/run_log/history.h"
#include "client/run_log/run_directory.h"
#include "proto/wire/placement_files.h"
#include "tests/client/faulty_channels.h"
#include "tests/client/switch_test.h"

namespace eplb {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kLastStep = 1'000'000;  // never reached: a deadline ends the test before

bool Switched(const BoundaryResult& result) { return result.switched; }
bool Voted(const BoundaryResult& result) { return result.voted; }

using ClientTest = SwitchTest;

TEST_F(ClientTest, ARankThatFindsNoDaemonEndsTheStartOnAll) {
  const TestJob lost("", {.options = [](ClientOptions& options) {
                       if (options.rank == 2) options.endpoint = "env:EPLB_TEST_NOT_SET";
                     }});
  EXPECT_NE(std::string(lost.started().message()).find("env:EPLB_TEST_NOT_SET"), std::string::npos)
      << lost.started();
}

TEST_F(ClientTest, AnOptionThatIsWrongOnOneRankEndsTheStartOnAllWithItsName) {
  const TestJob job("", {.options = [](ClientOptions& options) {
                      if (options.rank == 1) options.bind_address = "myhost";
                    }});
  // Message of rank 0, which would otherwise wait for rank 1.
  const std::string message(job.started().message());
  EXPECT_THAT(message, HasSubstr("rank 1"));
  EXPECT_THAT(message, HasSubstr("bind_address: \"myhost\", expected a numeric address"));
}

TEST_F(ClientTest, RanksFindTheirDaemonInAFile) {
  StartedJob job("file:" + Write("endpoint", daemon_.endpoint() + "\n"));
  daemon_.WaitForRanks(kTestRanks);
}

TEST_F(ClientTest, ChunkIsCommittedAtTheSameStepWithItsBytesMoved) {
  StartedJob job(daemon_.endpoint(), {.options = [&](ClientOptions& o) {
                   LogTo(o);
                   o.layers_per_chunk = 2;
                 }});
  daemon_.WaitForRanks(kTestRanks);
  EXPECT_EQ(daemon_.WaitFor<wire::Hello>(0)->staging_layers, 2);
  daemon_.SendAll(propose_);
  std::vector<int64_t> steps(kTestRanks, -1);
  job.Run([&](int32_t r, TestRank& rank) {
    const int32_t* slots = rank.client().placement().physical_to_logical_map.data();
    BoundaryResult boundary;
    const absl::StatusOr<int64_t> step = rank.StepUntil(0, [&](const BoundaryResult& result) {
      boundary = result;
      return result.switched;
    });
    ASSERT_TRUE(step.ok()) << step.status();
    steps[static_cast<size_t>(r)] = *step;
    EXPECT_EQ(rank.WrongSlots(), 0);
    EXPECT_EQ(boundary.version, 7);
    EXPECT_EQ(boundary.reason, propose_.reason);
    EXPECT_EQ(boundary.decided_last_step, 199);
    EXPECT_EQ(boundary.decision, 5);
    EXPECT_EQ(boundary.policy, "incremental");
    EXPECT_EQ(boundary.asked_by, "uid 1000 (alice)");
    EXPECT_EQ(boundary.received_bytes, 2 * (96 + 40));
    EXPECT_EQ(rank.client().placement().physical_to_logical_map.data(), slots);
    EXPECT_EQ(rank.client().placement().version, 7);
    EXPECT_EQ(rank.client().placement().digest, propose_.digest.Hex());
    EXPECT_EQ(rank.client().stats().commits, 1);
    rank.client().Close("finished");
  });
  EXPECT_THAT(steps, Each(steps[0]));
  for (int32_t rank = 0; rank < kTestRanks; ++rank) {
    const auto applied = daemon_.WaitFor<wire::Applied>(rank);
    ASSERT_TRUE(applied.has_value());
    EXPECT_EQ(applied->version, 7);
    EXPECT_EQ(applied->step, steps[0]);
    EXPECT_EQ(applied->received_bytes, 2 * (96 + 40));
    EXPECT_FALSE(daemon_.WaitFor<wire::Goodbye>(rank).value().failed);
  }
  EXPECT_THAT(Violations(), IsEmpty());
  const auto log = ReadPlacementsLog(Path("placements.jsonl")).value();
  ASSERT_EQ(log.size(), 2U);
  EXPECT_EQ(log[1].step, steps[0] + 1);
  EXPECT_EQ(log[1].placement, second_);
  EXPECT_EQ(log[1].decided_first_step, 100);
  EXPECT_EQ(log[1].decision, 5);
  EXPECT_EQ(log[1].policy, "incremental");
  EXPECT_EQ(log[1].asked_by, "uid 1000 (alice)");
}

TEST_F(ClientTest, OnlyABoundaryWithAProposalIsTimedAndItsFiguresAreThoseOfTheResult) {
  StartedJob job(daemon_.endpoint(), {.options = [&](ClientOptions& o) { LogTo(o); }});
  daemon_.WaitForRanks(kTestRanks);
  std::vector<BoundaryResult> boundaries(kTestRanks);
  job.Run([&](int32_t r, TestRank& rank) {
    ASSERT_TRUE(rank.StepUntil(0, Voted).ok());
    EXPECT_TRUE(ReadTimelines(Path("")).value()[static_cast<size_t>(r)].boundaries.empty());
  });
  daemon_.SendAll(propose_);
  job.Run([&](int32_t r, TestRank& rank) {
    ASSERT_TRUE(rank.StepUntil(1,
                               [&](const BoundaryResult& result) {
                                 boundaries[static_cast<size_t>(r)] = result;
                                 return result.switched;
                               })
                    .ok());
    rank.client().Close("finished");
  });
  const std::vector<RankTimeline> timelines = ReadTimelines(Path("")).value();
  ASSERT_EQ(timelines.size(), static_cast<size_t>(kTestRanks));
  for (size_t rank = 0; rank < timelines.size(); ++rank) {
    ASSERT_EQ(timelines[rank].prepared.size(), 1U);
    const BoundaryTimes& times = timelines[rank].boundaries.back().times;
    EXPECT_LE(timelines[rank].prepared[0].unix_micros, times.whole.unix_micros);
    EXPECT_EQ(times.version, 7);
    EXPECT_EQ(times.outcome, "committed");
    EXPECT_NEAR(static_cast<double>(times.whole.micros) / 1e6, boundaries[rank].pause_seconds,
                2e-6);
    std::vector<std::string> names;
    for (const BoundarySpan& span : times.spans) {
      names.push_back(span.name);
      EXPECT_LE(times.whole.unix_micros, span.unix_micros);
      EXPECT_LE(span.unix_micros + span.micros, times.whole.unix_micros + times.whole.micros);
    }
    EXPECT_THAT(names, ElementsAre("vote", "transfer", "second vote", "commit"));
    int64_t sent = 0;
    int64_t received = 0;
    for (const BoundaryRound& round : times.rounds) {
      sent += round.sent_bytes;
      received += round.received_bytes;
    }
    EXPECT_EQ(sent, boundaries[rank].sent_bytes);
    EXPECT_EQ(received, boundaries[rank].received_bytes);
    for (const TimedBoundary& earlier : timelines[rank].boundaries) {
      if (&earlier.times == &times) continue;
      EXPECT_EQ(earlier.times.outcome, "not agreed") << "not all ranks were PREPARED by then";
    }
  }
  EXPECT_THAT(Violations(), IsEmpty());
}

TEST_F(ClientTest, ARankThatVotesNoDelaysTheSwitchToTheNextVote) {
  ScriptedDaemon daemon({});
  TestJob job(daemon.endpoint(), {.options = [&](ClientOptions& o) { LogTo(o); }});
  ASSERT_TRUE(job.started().ok()) << job.started();
  daemon.WaitForRanks(kTestRanks);
  daemon.SendAll(propose_);
  for (int32_t rank = 0; rank < kTestRanks; ++rank) {
    ASSERT_TRUE(daemon.WaitFor<wire::Prepared>(rank).has_value());
  }
  job.Run([&](int32_t r, TestRank& rank) {
    for (int64_t step = 0; step < 4; ++step) {
      if (step == 0 && r == 2) rank.client().VoteNo("gradients accumulate");
      const absl::StatusOr<BoundaryResult> result = rank.Step(step);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->voted, step <= 1) << "a proposal was known until step 1";
      EXPECT_EQ(result->switched, step == 1);
      EXPECT_EQ(result->reason, step == 1             ? propose_.reason
                                : step == 0 && r == 2 ? "gradients accumulate"
                                                      : "");
    }
    EXPECT_EQ(rank.WrongSlots(), 0);
    rank.client().Close("finished");
  });
  EXPECT_THAT(Violations(), IsEmpty());
}

TEST_F(ClientTest, SecondVoteNoRunsTheOldPlacementWithSlotsUntouched) {
  StartedJob job(daemon_.endpoint(), {.options = [&](ClientOptions& o) { LogTo(o); },
                                      .transport = OnRank<LossyTransport>(2)});
  daemon_.WaitForRanks(kTestRanks);
  daemon_.SendAll(propose_);
  std::vector<int64_t> steps(kTestRanks, -1);
  job.Run([&](int32_t r, TestRank& rank) {
    std::string reason;
    const absl::StatusOr<int64_t> step = rank.StepUntil(0, [&](const BoundaryResult& result) {
      reason = result.reason;
      return !result.reason.empty();
    });
    ASSERT_TRUE(step.ok()) << step.status();
    steps[static_cast<size_t>(r)] = *step;
    EXPECT_THAT(reason, HasSubstr(r == 2 ? "row 0 from rank 0 has another checksum"
                                         : "the transfer failed on another rank"));
    EXPECT_EQ(rank.client().placement().version, 0);
    EXPECT_EQ(rank.WrongSlots(), 0);
    EXPECT_EQ(rank.client().stats().dropped_chunks, 1);
    EXPECT_TRUE(rank.StepUntil(*step + 1, Voted).ok());  // training goes on
    rank.client().Close("finished");
  });
  EXPECT_THAT(steps, Each(steps[0]));
  for (int32_t rank = 0; rank < kTestRanks; ++rank) {
    EXPECT_EQ(daemon_.WaitFor<wire::Failed>(rank).value().code, wire::FailedCode::kTransfer);
  }
  EXPECT_THAT(Violations(), IsEmpty());
}

TEST_F(ClientTest, DeadRankIsNamedOnAllOthersAndTheErrorStays) {
  StartedJob job(daemon_.endpoint(),
                 {.options = [](ClientOptions& o) { o.vote_deadline = absl::Seconds(2); }});
  daemon_.WaitForRanks(kTestRanks);
  job.Run([&](int32_t r, TestRank& rank) {
    ASSERT_TRUE(rank.StepUntil(0, Voted).ok());
    if (r == 1) {
      rank.Stop();
      return;
    }
    const absl::Status status = rank.StepUntil(1, Switched).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_THAT(MissingRanks(status), ElementsAre(RankId{1}));
    EXPECT_THAT(std::string(status.message()), HasSubstr("1"));
    EXPECT_EQ(rank.Step(8).status(), status);
    EXPECT_EQ(rank.client().Record(0, std::vector<int64_t>(4, 1)), status);
    rank.client().Close("error");
  });
  for (const int32_t rank : {0, 2, 3}) {
    const auto goodbye = daemon_.WaitFor<wire::Goodbye>(rank);
    ASSERT_TRUE(goodbye.has_value());
    EXPECT_TRUE(goodbye->failed);
    EXPECT_THAT(goodbye->missing_ranks, ElementsAre(1));
  }
}

// The process of the rank that closes goes on: no rank waits for vote_deadline, which is minutes.
TEST_F(ClientTest, RankThatClosesEarlyIsNamedByTheNextVote) {
  StartedJob job("");
  job.Run([&](int32_t r, TestRank& rank) {
    ASSERT_TRUE(rank.StepUntil(0, Voted).ok());
    if (r == 3) {
      rank.client().Close("out of memory");
      EXPECT_EQ(rank.client().RegisterExperts({}),
                absl::FailedPreconditionError("the client is closed"));
      return;
    }
    const absl::Time began = absl::Now();
    const absl::Status status = rank.StepUntil(1, Switched).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_THAT(MissingRanks(status), ElementsAre(RankId{3}));
    EXPECT_LT(absl::Now() - began, absl::Seconds(15));
  });
}

TEST_F(ClientTest, UnknownSecondVoteEndsTheRunWithoutASwitch) {
  StartedJob job(daemon_.endpoint(),
                 {.options = [](ClientOptions& o) { o.vote_deadline = absl::Seconds(2); },
                  .control = OnRank<FaultyControl>(3, [](std::vector<int64_t>& values) {
                    const std::vector<RankId> missing = {RankId{0}};
                    return values.size() == 5
                               ? MissingRanksError("vote", missing, "connection closed")
                               : absl::OkStatus();
                  })});
  daemon_.WaitForRanks(kTestRanks);
  daemon_.SendAll(propose_);
  job.Run([&](int32_t r, TestRank& rank) {
    const absl::Status status = rank.StepUntil(0, Switched).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_THAT(MissingRanks(status), ElementsAre(RankId{r == 3 ? 0 : 3}));
    EXPECT_EQ(rank.client().placement().version, 0);
    EXPECT_EQ(rank.WrongSlots(), 0);
    EXPECT_EQ(rank.Step(kLastStep).status(), status);
  });
}

TEST_F(ClientTest, RanksOnDifferentPlacementsStopWithDataLoss) {
  StartedJob job("", {.control = OnRank<FaultyControl>(1, [](std::vector<int64_t>& values) {
                        ++values[4];
                        --values[5];
                        return absl::OkStatus();
                      })});
  job.Run([&](int32_t /*r*/, TestRank& rank) {
    const absl::Status status = rank.StepUntil(0, Voted).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr("after step 0"));
    EXPECT_EQ(rank.Step(1).status(), status);
  });
}

TEST_F(ClientTest, StepOutOfOrderIsRefusedAndTheRightOneStillRuns) {
  StartedJob job("", {.options = [](ClientOptions& o) { o.first_step = 10; }});
  job.Run([](int32_t /*r*/, TestRank& rank) {
    EXPECT_EQ(rank.Step(0).status(),
              absl::FailedPreconditionError("StepBoundary of step 0, expected 10"));
    EXPECT_TRUE(rank.Step(10).ok());
    EXPECT_EQ(rank.Step(10).status(),
              absl::FailedPreconditionError("StepBoundary of step 10, expected 11"));
    rank.client().Close("finished");
    EXPECT_EQ(rank.Step(11).status(), absl::FailedPreconditionError("the client is closed"));
  });
}

TEST_F(ClientTest, TheDaemonHearsWhatCarriesTheRows) {
  setenv("NCCL_IB_TC", "106", 1);
  StartedJob job(daemon_.endpoint());
  unsetenv("NCCL_IB_TC");
  const auto hello = daemon_.WaitFor<wire::Hello>(1);
  ASSERT_TRUE(hello.has_value());
  EXPECT_EQ(hello->transport.name, "host");
  EXPECT_EQ(hello->transport.fallback_reason, "");
  EXPECT_FALSE(hello->transport.device.has_value()) << "the tensors lie in host memory";
  EXPECT_THAT(hello->transport.settings,
              Contains(wire::TransportInfo::Setting{"NCCL_IB_TC", "106"}));
}

TEST_F(ClientTest, DisabledClientsDoNothingOnTheStaticPlacement) {
  setenv("EPLB_DISABLE", "1", 1);
  StartedJob job("127.0.0.1:1", {.options = [&](ClientOptions& o) { LogTo(o); }});
  unsetenv("EPLB_DISABLE");
  TestRank& rank = job.rank(1);  // alone: no rank votes
  for (int64_t step = 0; step < 20; ++step) EXPECT_FALSE(rank.Step(step)->voted);
  EXPECT_EQ(rank.client().placement().digest, DigestOf(first_).Hex());
  EXPECT_EQ(rank.client().stats().votes, 0);
  EXPECT_FALSE(std::filesystem::exists(Path("rank-1.jsonl")));
}

}  // namespace
}  // namespace eplb
