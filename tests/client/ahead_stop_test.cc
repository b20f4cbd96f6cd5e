// ClientOptions::ahead: what stops rows between two votes, on all ranks, and what does not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "base/monotonic_clock.h"
#include "tests/client/faulty_channels.h"
#include "tests/client/session/proposals.h"
#include "tests/client/session/scripted_daemon.h"
#include "tests/client/test_job.h"

namespace eplb {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::kTestRanks;
using testing::ProposeTo;
using testing::Running;
using testing::ScriptedDaemon;
using testing::SmallTopology;
using testing::Swapped;
using testing::TestJob;
using testing::TestJobHooks;
using testing::TestRank;

// The first post fails on this rank as if bytes were damaged on their way.
class DamagedTransport final : public testing::CountingTransport {
 public:
  using CountingTransport::CountingTransport;
  absl::StatusOr<Progress> Poll(Ticket ticket, absl::Duration max_wait) override {
    absl::StatusOr<Progress> progress = CountingTransport::Poll(ticket, max_wait);
    if (num_posts() > 1 || !progress.ok() || !progress->done) return progress;
    return absl::DataLossError("post 1: row 0 from rank 3: checksum differs");
  }
};

// A write that comes late: rank 1's of one row into the staging of rank 0. It is held until rank 0
// takes rows of the next post, or waits for the other ranks.
class LateWrite {
 public:
  InprocFaults Faults() {
    return {.after_copy = [this](RankId from, RankId to, int32_t row, std::span<std::byte> staged) {
      if (from != RankId{1} || to != RankId{0} || row != kRow || held_.exchange(true)) return;
      Await(let_go_);
      std::fill(staged.begin(), staged.end(), std::byte{0xEE});
    }};
  }
  void AwaitHeld() const { Await(held_); }
  // Rank 0 did what the late write is to come after.
  void LetGo() {
    if (held_) let_go_ = true;
  }

 private:
  static constexpr int32_t kRow = 2;  // of two tensors an expert: the second expert's weight
  static void Await(const std::atomic<bool>& flag) {
    const absl::Time deadline = MonotonicNow() + absl::Seconds(30);
    while (!flag && MonotonicNow() < deadline) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_TRUE(flag);
  }
  std::atomic<bool> held_ = false;
  std::atomic<bool> let_go_ = false;
};

class LettingTransport final : public testing::ForwardingTransport {
 public:
  LettingTransport(std::unique_ptr<Transport> inner, LateWrite& write)
      : ForwardingTransport(std::move(inner)), write_(write) {}
  absl::StatusOr<Ticket> Post(RowMoves moves) override {
    ++num_posts_;
    return ForwardingTransport::Post(std::move(moves));
  }
  absl::StatusOr<Progress> Poll(Ticket ticket, absl::Duration max_wait) override {
    if (num_posts_ > 1) write_.LetGo();  // the rows between slots of this GPU are in staging
    return ForwardingTransport::Poll(ticket, max_wait);
  }

 private:
  LateWrite& write_;
  std::atomic<int> num_posts_ = 0;
};

class LettingControl final : public ControlChannel {
 public:
  LettingControl(std::unique_ptr<ControlChannel> inner, LateWrite& write)
      : inner_(std::move(inner)), write_(write) {}
  RankId rank() const override { return inner_->rank(); }
  int32_t world_size() const override { return inner_->world_size(); }
  absl::StatusOr<std::vector<int64_t>> AllReduceMin(std::span<const int64_t> values,
                                                    absl::Duration timeout) override {
    return inner_->AllReduceMin(values, timeout);
  }
  absl::Status Barrier(absl::Duration timeout) override {
    write_.LetGo();
    return inner_->Barrier(timeout);
  }
  absl::Status Farewell(absl::Duration timeout) override { return inner_->Farewell(timeout); }

 private:
  std::unique_ptr<ControlChannel> inner_;
  LateWrite& write_;
};

class AheadStopTest : public ::testing::Test {
 protected:
  // Hooks of a job with the option and weights alone.
  static TestJobHooks Hooks() {
    return {.options = [](ClientOptions& options) { options.ahead = true; },
            .tensors =
                [](TestRank&, std::vector<ExpertTensorView>& tensors) {
                  for (ExpertTensorView& view : tensors) view.role = Role::kWeight;
                }};
  }

  // Every rank is PREPARED for it when this returns. count: of proposals so far.
  void Propose(int64_t version, int count = 1) {
    daemon_.WaitForRanks(kTestRanks);
    daemon_.SendAll(ProposeTo(Running(0, first_), second_, version, 1));
    for (int32_t rank = 0; rank < kTestRanks; ++rank) {
      ASSERT_TRUE(daemon_.WaitFor<wire::Prepared>(rank, count).has_value());
    }
  }

  // The result of the last one.
  static absl::StatusOr<BoundaryResult> Steps(TestRank& rank, int64_t first, int64_t last) {
    absl::StatusOr<BoundaryResult> result;
    for (int64_t step = first; step <= last; ++step) {
      result = rank.Step(step);
      if (!result.ok()) return result;
    }
    return result;
  }

  ScriptedDaemon daemon_{{}};
  const Placement first_ = Placement::Static(SmallTopology());
  const Placement second_ = Swapped(Swapped(first_, 0, 0, 2), 2, 1, 3);
};

TEST_F(AheadStopTest, AWriteOfAStoppedTransferThatComesLateHitsNoRowOfTheNextOne) {
  LateWrite write;
  TestJobHooks hooks = Hooks();
  hooks.faults = write.Faults();
  hooks.transport = [&](int32_t rank,
                        std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
    if (rank != 0) return inner;
    return std::make_unique<LettingTransport>(std::move(inner), write);
  };
  hooks.control = [&](int32_t rank,
                      std::unique_ptr<ControlChannel> inner) -> std::unique_ptr<ControlChannel> {
    if (rank != 0) return inner;
    return std::make_unique<LettingControl>(std::move(inner), write);
  };
  TestJob job(daemon_.endpoint(), hooks);
  ASSERT_TRUE(job.started().ok()) << job.started();
  Propose(7);
  job.Run([&](int32_t, TestRank& rank) {
    ASSERT_TRUE(Steps(rank, 0, 4).ok());
    write.AwaitHeld();
    const absl::Status checked = rank.client().CheckExperts(
        [&](int32_t layer, int32_t slot) { return rank.BytesOf(layer, slot); });
    EXPECT_TRUE(checked.ok()) << checked;
    EXPECT_EQ(rank.WrongSlots(), 0);
    const auto dropped = Steps(rank, 5, 7);
    ASSERT_TRUE(dropped.ok()) << dropped.status();
    EXPECT_FALSE(dropped->switched);
    EXPECT_EQ(rank.WrongSlots(), 0);
  });
}

// A carry like that before each checkpoint of a job in which nothing has moved yet.
TEST_F(AheadStopTest, ACarryThatMovesNothingLetsTheChunkGoOn) {
  TestJob job(daemon_.endpoint(), Hooks());
  ASSERT_TRUE(job.started().ok()) << job.started();
  Propose(7);
  job.Run([&](int32_t, TestRank& rank) {
    ASSERT_TRUE(Steps(rank, 0, 4).ok());
    const absl::Status saved = rank.client().InStaticOrder([&] {
      EXPECT_EQ(rank.WrongSlots(), 0);
      return absl::OkStatus();
    });
    EXPECT_TRUE(saved.ok()) << saved;
    EXPECT_TRUE(Steps(rank, 5, 7)->switched);
    EXPECT_EQ(rank.WrongSlots(), 0);
    rank.client().Close("finished");
  });
}

TEST_F(AheadStopTest, BytesThatAreDamagedOnTheirWayDropTheChunkAndTheOptionStays) {
  TestJobHooks hooks = Hooks();
  hooks.transport = [](int32_t rank,
                       std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
    if (rank != 2) return inner;
    return std::make_unique<DamagedTransport>(std::move(inner));
  };
  TestJob job(daemon_.endpoint(), hooks);
  ASSERT_TRUE(job.started().ok()) << job.started();
  Propose(7);
  job.Run([&](int32_t r, TestRank& rank) {
    const auto dropped = Steps(rank, 0, 7);
    ASSERT_TRUE(dropped.ok()) << dropped.status();
    EXPECT_FALSE(dropped->switched);
    EXPECT_EQ(dropped->reason == "post 1: row 0 from rank 3: checksum differs", r == 2)
        << dropped->reason;
    EXPECT_EQ(rank.WrongSlots(), 0);
  });
  Propose(8, 2);
  job.Run([&](int32_t, TestRank& rank) {
    EXPECT_FALSE(Steps(rank, 8, 11)->switched);
    EXPECT_TRUE(Steps(rank, 12, 15)->switched);
  });
}

TEST_F(AheadStopTest, ARegistrationThatFailsInItsLastRoundLeavesNoRankHalfRegistered) {
  TestJobHooks hooks = Hooks();
  hooks.control = [](int32_t,
                     std::unique_ptr<ControlChannel> inner) -> std::unique_ptr<ControlChannel> {
    return std::make_unique<testing::FaultyControl>(
        std::move(inner), [](auto&) { return absl::AbortedError("the network is gone"); });
  };
  TestJob job("", hooks);
  EXPECT_EQ(job.started(), absl::AbortedError("the network is gone"));
  Client& client = job.rank(1).client();
  EXPECT_TRUE(absl::IsFailedPrecondition(client.StepBoundary(0).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(client.Carry({})));
  client.Close("finished");
}

TEST_F(AheadStopTest, ARankThatCannotMakeItsPartTellsTheOthersWhy) {
  const std::atomic<size_t> num_bytes = 64;
  TestJobHooks hooks = Hooks();
  hooks.transport = [&](int32_t rank,
                        std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
    if (rank != 2) return inner;
    return std::make_unique<testing::NarrowTransport>(std::move(inner), num_bytes);
  };
  const TestJob job("", hooks);
  EXPECT_TRUE(absl::IsFailedPrecondition(job.started())) << job.started();
  EXPECT_THAT(std::string(job.started().message()),
              AllOf(HasSubstr("registration: rank 2 "),
                    HasSubstr("the transport's arena has 64 bytes, staging needs ")));
}

}  // namespace
}  // namespace eplb
