// ClientOptions::ahead: what stops rows between two votes, on all ranks, and what does not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "base/monotonic_clock.h"
#include "tests/client/faulty_channels.h"
#include "tests/client/switch_test.h"

namespace eplb {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A late write of rank 1 into one row of rank 0's staging. It is held until rank 0 takes rows of
// the next post, or waits for the other ranks.
class LateWrite {
 public:
  static constexpr int32_t kRow = 2;  // weight of the second expert, as each expert has two tensors

  void SetStaging(std::span<std::byte> staging) { staging_ = staging; }
  void Land(const RowSend& send) {
    held_ = true;
    Await(let_go_);
    const std::span<std::byte> row = staging_.subspan(static_cast<size_t>(send.staging_offset));
    std::fill_n(row.begin(), send.bytes.size(), std::byte{0xEE});
  }
  void AwaitHeld() const { Await(held_); }
  // Rank 0 did what the late write is to come after.
  void LetGo() {
    if (held_) let_go_ = true;
  }

 private:
  static void Await(const std::atomic<bool>& flag) {
    const absl::Time deadline = MonotonicNow() + absl::Seconds(30);
    while (!flag && MonotonicNow() < deadline) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_TRUE(flag);
  }
  std::span<std::byte> staging_;  // staging of rank 0
  std::atomic<bool> held_ = false;
  std::atomic<bool> let_go_ = false;
};

// Rank 1's transport, which makes the late write in its first post.
class LateWriteTransport final : public ForwardingTransport {
 public:
  LateWriteTransport(std::unique_ptr<Transport> inner, LateWrite& write)
      : ForwardingTransport(std::move(inner)), write_(write) {}
  absl::StatusOr<Ticket> Post(RowMoves moves) override {
    if (num_posts_++ == 0) {
      for (const RowSend& send : moves.sends) {
        if (send.to == RankId{0} && send.row == LateWrite::kRow) late_ = send;
      }
    }
    return ForwardingTransport::Post(std::move(moves));
  }
  absl::StatusOr<Progress> Poll(Ticket ticket, absl::Duration max_wait) override {
    if (late_.has_value()) write_.Land(*std::exchange(late_, std::nullopt));
    return ForwardingTransport::Poll(ticket, max_wait);
  }

 private:
  LateWrite& write_;
  std::optional<RowSend> late_;
  int num_posts_ = 0;
};

class LettingTransport final : public ForwardingTransport {
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

class LettingControl final : public ForwardingControl {
 public:
  LettingControl(std::unique_ptr<ControlChannel> inner, LateWrite& write)
      : ForwardingControl(std::move(inner)), write_(write) {}
  absl::Status Barrier(absl::Duration timeout) override {
    write_.LetGo();
    return ForwardingControl::Barrier(timeout);
  }

 private:
  LateWrite& write_;
};

class AheadStopTest : public SwitchTest {
 protected:
  // Hooks of a job with the option, which registers weights alone.
  static TestJobHooks Hooks() {
    return {.options = [](ClientOptions& options) { options.ahead = true; },
            .tensors =
                [](TestRank&, std::vector<ExpertTensorView>& tensors) {
                  for (ExpertTensorView& view : tensors) view.role = Role::kWeight;
                }};
  }

  void ProposeVersion(int64_t version, int count = 1) {
    Propose(daemon_, ProposeTo(Running(0, first_), second_, version, 1), count);
  }
};

TEST_F(AheadStopTest, AWriteOfAStoppedTransferThatComesLateHitsNoRowOfTheNextOne) {
  LateWrite write;
  TestJobHooks hooks = Hooks();
  hooks.transport = [&](int32_t rank,
                        std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
    if (rank == 1) return std::make_unique<LateWriteTransport>(std::move(inner), write);
    if (rank != 0) return inner;
    write.SetStaging(inner->staging());
    return std::make_unique<LettingTransport>(std::move(inner), write);
  };
  hooks.control = [&](int32_t rank,
                      std::unique_ptr<ControlChannel> inner) -> std::unique_ptr<ControlChannel> {
    if (rank != 0) return inner;
    return std::make_unique<LettingControl>(std::move(inner), write);
  };
  StartedJob job(daemon_.endpoint(), hooks);
  ProposeVersion(7);
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

// A job does this before each checkpoint until its first switch.
TEST_F(AheadStopTest, ACarryThatMovesNothingLetsTheChunkGoOn) {
  StartedJob job(daemon_.endpoint(), Hooks());
  ProposeVersion(7);
  job.Run([&](int32_t, TestRank& rank) {
    ASSERT_TRUE(Steps(rank, 0, 4).ok());
    const absl::Status saved = rank.client().Carry({});
    EXPECT_TRUE(saved.ok()) << saved;
    EXPECT_TRUE(Steps(rank, 5, 7)->switched);
    EXPECT_EQ(rank.WrongSlots(), 0);
    rank.client().Close("finished");
  });
}

TEST_F(AheadStopTest, BytesThatAreDamagedOnTheirWayDropTheChunkAndTheOptionStays) {
  TestJobHooks hooks = Hooks();
  hooks.transport = OnRank<LossyTransport>(2, 1, 1);
  StartedJob job(daemon_.endpoint(), hooks);
  ProposeVersion(7);
  job.Run([&](int32_t r, TestRank& rank) {
    const auto dropped = Steps(rank, 0, 7);
    ASSERT_TRUE(dropped.ok()) << dropped.status();
    EXPECT_FALSE(dropped->switched);
    EXPECT_EQ(dropped->reason == "row 0 from rank 0 has another checksum", r == 2)
        << dropped->reason;
    EXPECT_EQ(rank.WrongSlots(), 0);
  });
  ProposeVersion(8, 2);
  job.Run([&](int32_t, TestRank& rank) {
    EXPECT_FALSE(Steps(rank, 8, 11)->switched);
    EXPECT_TRUE(Steps(rank, 12, 15)->switched);
  });
}

TEST_F(AheadStopTest, ARegistrationThatFailsInItsLastRoundLeavesNoRankHalfRegistered) {
  TestJobHooks hooks = Hooks();
  hooks.control = [](int32_t,
                     std::unique_ptr<ControlChannel> inner) -> std::unique_ptr<ControlChannel> {
    return std::make_unique<FaultyControl>(
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
  hooks.transport = OnRank<NarrowTransport>(2, std::cref(num_bytes));
  const TestJob job("", hooks);
  EXPECT_TRUE(absl::IsFailedPrecondition(job.started())) << job.started();
  EXPECT_THAT(std::string(job.started().message()),
              AllOf(HasSubstr("registration: rank 2 "),
                    HasSubstr("the transport's arena has 64 bytes, staging needs ")));
}

}  // namespace
}  // namespace eplb
