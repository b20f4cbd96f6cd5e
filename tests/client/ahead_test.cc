// ClientOptions::ahead in a job of 2 EP groups: rows move between two votes, and what ends that.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/monotonic_clock.h"
#include "tests/client/faulty_channels.h"
#include "tests/client/switch_test.h"

namespace eplb {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Every registered tensor is a weight.
void WeightsAlone(TestRank&, std::vector<ExpertTensorView>& tensors) {
  for (ExpertTensorView& view : tensors) view.role = Role::kWeight;
}

// Counts the posts that are done on its rank.
class CountedTransport final : public ForwardingTransport {
 public:
  CountedTransport(std::unique_ptr<Transport> inner, std::atomic<int>& done)
      : ForwardingTransport(std::move(inner)), done_(done) {}
  absl::StatusOr<Progress> Poll(Ticket ticket, absl::Duration max_wait) override {
    absl::StatusOr<Progress> progress = ForwardingTransport::Poll(ticket, max_wait);
    if (progress.ok() && progress->done) ++done_;
    return progress;
  }

 private:
  std::atomic<int>& done_;
};

// Rows neither come nor go, and no error explains it.
class HungTransport final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;
  absl::StatusOr<Progress> Poll(Ticket, absl::Duration max_wait) override {
    absl::SleepFor(max_wait);
    return Progress{};
  }
};

class RenamedTransport final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;
  std::string_view name() const override { return "nccl"; }
};

template <class T>
TransportHook Wrapped() {
  return [](int32_t, std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
    return std::make_unique<T>(std::move(inner));
  };
}

class AheadTest : public SwitchTest {
 protected:
  static constexpr int64_t kVoteEvery = 4;  // value of TestOptions

  // Hooks of a job with the option, whose rows are counted.
  TestJobHooks Ahead(OptionsHook more = nullptr) {
    return {.options =
                [this, more](ClientOptions& options) {
                  options.ahead = true;
                  LogTo(options);
                  if (more) more(options);
                },
            .tensors = &WeightsAlone,
            .transport =
                [this](int32_t rank, std::unique_ptr<Transport> inner) {
                  return std::make_unique<CountedTransport>(std::move(inner),
                                                            done_[static_cast<size_t>(rank)]);
                }};
  }

  // Until the rows of `posts` posts are in staging, and so read, on this rank.
  void AwaitRows(int32_t rank, int posts = 1) {
    const absl::Time deadline = MonotonicNow() + absl::Seconds(30);
    while (done_[static_cast<size_t>(rank)] < posts) {
      ASSERT_LT(MonotonicNow(), deadline) << "rank " << rank << " has no rows";
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

  // "3 begun", "7 committed": of rank 0's boundaries with a proposal.
  std::vector<std::string> Boundaries(int32_t rank = 0) const {
    std::vector<std::string> all;
    const auto timelines = ReadTimelines(Path("")).value();
    for (const TimedBoundary& boundary : timelines[static_cast<size_t>(rank)].boundaries) {
      all.push_back(absl::StrCat(boundary.times.step, " ", boundary.times.outcome));
    }
    return all;
  }

  const wire::Propose again_ = ProposeTo(Running(0, first_), second_, 8, 1);
  std::vector<std::atomic<int>> done_ = std::vector<std::atomic<int>>(kTestRanks);
};

TEST_F(AheadTest, TheSwitchComesAtTheVoteAfterTheOneThatAgreed) {
  StartedJob job(daemon_.endpoint(), Ahead());
  Propose(daemon_, propose_);
  job.Run([&](int32_t, TestRank& rank) {
    const auto agreed = Steps(rank, 0, 3);
    ASSERT_TRUE(agreed.ok()) << agreed.status();
    EXPECT_TRUE(agreed->voted);
    EXPECT_FALSE(agreed->switched);
    EXPECT_EQ(agreed->received_bytes, 0);
    EXPECT_EQ(rank.client().transport(), "host");
    EXPECT_EQ(rank.client().placement().version, 0);
    const auto switched = Steps(rank, 4, 7);
    ASSERT_TRUE(switched.ok()) << switched.status();
    EXPECT_TRUE(switched->switched);
    EXPECT_EQ(switched->received_bytes, 2 * (96 + 40));
    EXPECT_EQ(switched->sent_bytes, 2 * (96 + 40));
    EXPECT_EQ(rank.client().placement().version, 7);
    EXPECT_EQ(rank.WrongSlots(), 0);
    EXPECT_TRUE(Steps(rank, 8, 11).ok());
    rank.client().Close("finished");
  });
  for (int32_t rank = 0; rank < kTestRanks; ++rank) {
    const auto applied = daemon_.WaitFor<wire::Applied>(rank);
    ASSERT_TRUE(applied.has_value());
    EXPECT_EQ(applied->version, 7);
    EXPECT_EQ(applied->step, 7);
    EXPECT_EQ(applied->received_bytes, 2 * (96 + 40));
    EXPECT_THAT(Boundaries(rank), ElementsAre("3 begun", "7 committed"));
  }
  EXPECT_THAT(Violations(), IsEmpty());
}

TEST_F(AheadTest, PipelineStagesThatVoteEachStepSwitchAtTheNextStep) {
  StartedJob job(daemon_.endpoint(), Ahead([](ClientOptions& options) {
                   options.pipeline_parallel_size = 2;
                   options.vote_every = 1;
                 }));
  Propose(daemon_, propose_);
  job.Run([&](int32_t, TestRank& rank) {
    ASSERT_TRUE(Steps(rank, 0, 0).ok());
    EXPECT_TRUE(Steps(rank, 1, 1)->switched);
    EXPECT_EQ(rank.WrongSlots(), 0);
    rank.client().Close("finished");
  });
  EXPECT_THAT(Violations(), IsEmpty());
}

// A promise that is not kept costs a chunk, and nothing else.
TEST_F(AheadTest, ARowThatAStepChangesDropsTheChunkAndTheNextIsStagedAtTheBoundary) {
  StartedJob job(daemon_.endpoint(), Ahead());
  Propose(daemon_, propose_);
  std::vector<std::string> reasons(kTestRanks);
  job.Run([&](int32_t r, TestRank& rank) {
    ASSERT_TRUE(Steps(rank, 0, 3).ok());
    AwaitRows(r);
    std::byte& byte = static_cast<std::byte*>(rank.Tensors().front().base)[5];
    if (r == 1) byte ^= std::byte{1};  // a byte of slot 2's row, which this rank sends
    const auto dropped = Steps(rank, 4, 7);
    ASSERT_TRUE(dropped.ok()) << dropped.status();
    EXPECT_FALSE(dropped->switched);
    reasons[static_cast<size_t>(r)] = dropped->reason;
    if (r == 1) byte ^= std::byte{1};
    EXPECT_EQ(rank.client().placement().version, 0);
    EXPECT_EQ(rank.client().stats().dropped_chunks, 1);
    EXPECT_EQ(rank.WrongSlots(), 0);
  });
  const std::string advice =
      ". Rows are staged at the boundary from now on. Do not set `ahead` for experts that steps "
      "change.";
  for (int32_t r = 0; r < kTestRanks; ++r) {
    const std::string& reason = reasons[static_cast<size_t>(r)];
    EXPECT_EQ(reason, (r == 1 ? "the row of slot 2 of tensor \"layers.0.w\" of layer 0 changed "
                                "between the boundaries"
                              : "rows of another rank changed between the boundaries") +
                          advice);
    EXPECT_EQ(daemon_.WaitFor<wire::Failed>(r)->detail, reason);
  }
  Propose(daemon_, again_, 2);
  job.Run([&](int32_t, TestRank& rank) {
    EXPECT_TRUE(Steps(rank, 8, 11)->switched);
    EXPECT_EQ(rank.WrongSlots(), 0);
    rank.client().Close("finished");
  });
  for (int32_t r = 0; r < kTestRanks; ++r) {
    EXPECT_EQ(daemon_.WaitFor<wire::Applied>(r)->fallback_reason,
              "rows are staged at the boundary: they changed while they were staged ahead");
    EXPECT_THAT(Boundaries(r), ElementsAre("3 begun", "7 dropped", "11 committed"));
  }
  EXPECT_THAT(Violations(), IsEmpty());
}

// Carry needs the staging: the chunk goes, the promise holds.
TEST_F(AheadTest, ACarryBetweenTheVotesDropsTheChunkAndTheNextIsStagedAheadAgain) {
  for (const bool checks : {false, true}) {
    ScriptedDaemon daemon({});
    RemoveLogs();
    StartedJob job(daemon.endpoint(), Ahead());
    Propose(daemon, propose_);
    job.Run([&](int32_t, TestRank& rank) {
      Client& client = rank.client();
      ASSERT_TRUE(Steps(rank, 0, 4).ok());
      if (checks) {
        EXPECT_TRUE(client
                        .CheckExperts(
                            [&](int32_t layer, int32_t slot) { return rank.BytesOf(layer, slot); })
                        .ok());
      } else {
        const auto& map = client.placement().physical_to_logical_map;
        const std::vector<int32_t> reversed(map.rbegin(), map.rend());
        EXPECT_TRUE(client.Carry(reversed).ok());
        EXPECT_EQ(rank.WrongSlots(), 0);
        EXPECT_TRUE(client.Carry({}).ok());
      }
      EXPECT_EQ(rank.WrongSlots(), 0);
      const auto dropped = Steps(rank, 5, 7);
      ASSERT_TRUE(dropped.ok()) << dropped.status();
      EXPECT_FALSE(dropped->switched);
      EXPECT_THAT(dropped->reason,
                  HasSubstr(checks ? "the experts were checked before the next vote"
                                   : "the rows were carried before the next vote"));
      EXPECT_EQ(rank.WrongSlots(), 0);
    });
    Propose(daemon, again_, 2);
    job.Run([&](int32_t, TestRank& rank) {
      EXPECT_TRUE(Steps(rank, 8, 15)->switched);
      EXPECT_EQ(rank.WrongSlots(), 0);
      rank.client().Close("finished");
    });
    EXPECT_THAT(Boundaries(), ElementsAre("3 begun", "7 dropped", "11 begun", "15 committed"));
    EXPECT_THAT(Violations(), IsEmpty());
  }
}

// The ranks' vote is the commit point: what it agreed on is frozen.
TEST_F(AheadTest, AProposalThatIsCancelledBetweenTheVotesIsCommitted) {
  StartedJob job(daemon_.endpoint(), Ahead());
  Propose(daemon_, propose_);
  job.Run([&](int32_t, TestRank& rank) { ASSERT_TRUE(Steps(rank, 0, 3).ok()); });
  daemon_.SendAll(wire::Cancel{.version = 7, .reason = "too late"});
  // Messages come in order: once this one is answered, that one was read.
  daemon_.SendAll(ProposeTo(Running(0, first_), Swapped(first_, 1, 0, 3), 9, 1));
  for (int32_t rank = 0; rank < kTestRanks; ++rank) {
    EXPECT_EQ(daemon_.WaitFor<wire::Nack>(rank)->code, wire::NackCode::kBusy);
  }
  job.Run([&](int32_t, TestRank& rank) {
    EXPECT_TRUE(Steps(rank, 4, 7)->switched);
    EXPECT_EQ(rank.WrongSlots(), 0);
    rank.client().Close("finished");
  });
  for (int32_t rank = 0; rank < kTestRanks; ++rank) {
    EXPECT_EQ(daemon_.WaitFor<wire::Applied>(rank)->version, 7);
  }
  EXPECT_THAT(Violations(), IsEmpty());
}

// The daemon that comes back learns from Hello what is under way, and of the switch from Applied.
TEST_F(AheadTest, ADaemonThatRestartsBetweenTheVotesHearsOfTheSwitch) {
  auto daemon = std::make_unique<ScriptedDaemon>(ScriptedDaemon::Options{});
  const int port = daemon->port();
  StartedJob job(daemon->endpoint(), Ahead());
  Propose(*daemon, propose_);
  job.Run([&](int32_t, TestRank& rank) { ASSERT_TRUE(Steps(rank, 0, 3).ok()); });
  daemon.reset();
  daemon = std::make_unique<ScriptedDaemon>(ScriptedDaemon::Options{.port = port, .term = 2});
  daemon->WaitForRanks(kTestRanks);
  EXPECT_EQ(daemon->WaitFor<wire::Hello>(0)->prepared_version, 7);
  daemon->SendAll(wire::Cancel{.version = 7, .reason = "this daemon does not have it in flight"});
  job.Run([&](int32_t, TestRank& rank) {
    EXPECT_TRUE(Steps(rank, 4, 7)->switched);
    EXPECT_EQ(rank.WrongSlots(), 0);
  });
  for (int32_t rank = 0; rank < kTestRanks; ++rank) {
    EXPECT_EQ(daemon->WaitFor<wire::Applied>(rank)->version, 7);
  }
}

TEST_F(AheadTest, ARankThatDiesBetweenTheVotesIsNamedByTheNextOne) {
  StartedJob job(daemon_.endpoint(), Ahead());
  Propose(daemon_, propose_);
  job.Run([&](int32_t r, TestRank& rank) {
    ASSERT_TRUE(Steps(rank, 0, 3).ok());
    if (r == 1) {
      rank.Stop();
      return;
    }
    const absl::Status status = Steps(rank, 4, 7).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_THAT(MissingRanks(status), ElementsAre(RankId{1}));
    EXPECT_EQ(rank.client().placement().version, 0);
    EXPECT_EQ(rank.WrongSlots(), 0);
    EXPECT_EQ(rank.Step(8).status(), status);
  });
}

TEST_F(AheadTest, ARunThatEndsBetweenTheVotesWaitsForNoRow) {
  TestJobHooks hooks =
      Ahead([](ClientOptions& options) { options.transfer_deadline = absl::Minutes(20); });
  hooks.transport = Wrapped<HungTransport>();
  StartedJob job(daemon_.endpoint(), hooks);
  Propose(daemon_, propose_);
  const absl::Time began = MonotonicNow();
  job.Run([&](int32_t r, TestRank& rank) {
    ASSERT_TRUE(Steps(rank, 0, 5).ok());
    EXPECT_EQ(rank.client().placement().version, 0);
    EXPECT_EQ(rank.WrongSlots(), 0);
    if (r % 2 == 0) rank.client().Close("finished");
    rank.Stop();
  });
  EXPECT_LT(MonotonicNow() - began, absl::Minutes(5));
  EXPECT_THAT(Violations(), IsEmpty());
}

TEST_F(AheadTest, StateIsRefusedAtTheRegistrationByName) {
  TestJobHooks hooks = Ahead();
  hooks.tensors = nullptr;
  const TestJob job("", hooks);
  EXPECT_EQ(job.started(), absl::InvalidArgumentError(
                               "tensor \"layers.0.m\" is state, which steps change; the option "
                               "ahead is for experts that nothing changes: drop it, or register "
                               "weights alone"));
}

TEST_F(AheadTest, OverNcclRowsAreStagedAtTheBoundaryAndTheDaemonHearsWhy) {
  TestJobHooks hooks = Ahead();
  hooks.transport = Wrapped<RenamedTransport>();
  StartedJob job(daemon_.endpoint(), hooks);
  EXPECT_EQ(daemon_.WaitFor<wire::Hello>(3)->transport.fallback_reason,
            "rows are staged at the boundary: kernels of transport nccl and those of a step's own "
            "collectives can wait for each other");
  Propose(daemon_, propose_);
  job.Run([&](int32_t, TestRank& rank) {
    EXPECT_TRUE(Steps(rank, 0, 0)->switched);
    EXPECT_EQ(rank.WrongSlots(), 0);
  });
}

TEST_F(AheadTest, CallsThatWouldMoveOtherRowsAreRefused) {
  StartedJob job("", Ahead());
  for (const absl::Status& refused :
       {job.rank(0).client().ReduceGradients({}), job.rank(0).client().BroadcastWeights({}),
        job.rank(0).client().ExpertSquares({}).status()}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("with the option ahead"));
  }
}

// Random placements one after the other, a carry now and then.
class AheadSeedTest : public AheadTest, public ::testing::WithParamInterface<uint32_t> {
 protected:
  // Returns a digest of each expert row at the end, after the same proposals.
  std::vector<uint64_t> Run(bool ahead) {
    std::mt19937 random(GetParam());
    ScriptedDaemon daemon({});
    RemoveLogs();
    const auto vote_every = static_cast<int32_t>(1 + random() % 3);
    TestJob job(daemon.endpoint(), Ahead([&](ClientOptions& options) {
                  options.ahead = ahead;
                  options.vote_every = vote_every;
                }));
    EXPECT_TRUE(job.started().ok()) << job.started();
    daemon.WaitForRanks(kTestRanks);
    RunningPlacement running = Running(0, first_);
    int64_t version = 0;
    std::vector<int64_t> next(kTestRanks, 0);
    for (int switches = 0; switches < 4; ++switches) {
      Placement target = *running.placement;
      for (int32_t layer = 0; layer < 3; ++layer) {
        target = Swapped(target, layer, static_cast<int32_t>(random() % 2),
                         static_cast<int32_t>(2 + random() % 2));
      }
      bool carries = random() % 2 == 0;
      const auto carried_at = static_cast<int64_t>(random() % 4);
      while (running.version != version || version == 0 || *running.placement != target) {
        ++version;
        Propose(daemon, ProposeTo(running, target, version, 1), static_cast<int>(version));
        std::vector<char> switched(kTestRanks, 0);
        job.Run([&](int32_t r, TestRank& rank) {
          const auto i = static_cast<size_t>(r);
          const int64_t first = next[i];
          for (bool decided = false; !decided; ++next[i]) {
            if (carries && next[i] == first + carried_at) {
              const auto& map = rank.client().placement().physical_to_logical_map;
              EXPECT_TRUE(rank.client().Carry(std::vector<int32_t>(map.rbegin(), map.rend())).ok());
              EXPECT_EQ(rank.WrongSlots(), 0);
              EXPECT_TRUE(rank.client().Carry({}).ok());
            }
            const auto result = rank.Step(next[i]);
            ASSERT_TRUE(result.ok()) << result.status();
            switched[i] = result->switched ? 1 : 0;
            decided = result->switched || !result->reason.empty();
            EXPECT_EQ(rank.WrongSlots(), 0);
          }
        });
        EXPECT_THAT(switched, Each(switched[0]));
        carries = false;  // it dropped the chunk, or it did not
        if (switched[0] != 0) running = Running(version, target);
      }
    }
    std::vector<uint64_t> bytes;
    for (int32_t r = 0; r < kTestRanks; ++r) {
      EXPECT_EQ(job.rank(r).client().placement().digest, running.digest.Hex());
      for (int32_t layer = 0; layer < 3; ++layer) {
        for (const int32_t slot : {0, 1}) bytes.push_back(job.rank(r).BytesOf(layer, slot));
      }
      job.rank(r).client().Close("finished");
    }
    EXPECT_THAT(Violations(), IsEmpty());
    return bytes;
  }
};

INSTANTIATE_TEST_SUITE_P(Seeds, AheadSeedTest, ::testing::Range(1U, 9U));

TEST_P(AheadSeedTest, TheExpertsEndWhereTheyEndWithoutTheOption) {
  EXPECT_EQ(Run(/*ahead=*/true), Run(/*ahead=*/false));
}

}  // namespace
}  // namespace eplb
