#include "client/rows/row_carrier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "base/monotonic_clock.h"
#include "cuda/checksum.h"
#include "tests/client/rows/stubborn_queue.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Notes what it is asked for. A post is done after `polls_left` more polls.
class NotedTransport final : public Transport {
 public:
  struct Notes {
    std::optional<size_t> under_way_at_post;  // transfers of the queue that had not ended
    int32_t polls_left = 0;
    int32_t num_aborts = 0;
    std::optional<uint64_t> refused;
    absl::Status aborted;
  };
  NotedTransport(Notes& notes, const StubbornQueue& queue) : notes_(notes), queue_(queue) {}

  std::string_view name() const override { return "noted"; }
  std::span<std::byte> staging() override { return {}; }
  absl::StatusOr<Ticket> Post(RowMoves) override {
    notes_.under_way_at_post = queue_.num_under_way();
    return 1;
  }
  absl::StatusOr<Progress> Poll(Ticket, absl::Duration) override {
    return Progress{.done = notes_.polls_left-- <= 0};
  }
  void Refuse(uint64_t post_id) override { notes_.refused = post_id; }
  absl::Status Abort() override {
    ++notes_.num_aborts;
    return notes_.aborted;
  }
  void Leave() override {}

 private:
  Notes& notes_;
  const StubbornQueue& queue_;
};

class RowCarrierTest : public ::testing::Test {
 protected:
  RowCarrier& Make(Stubbornness stubbornness) {
    auto queue = std::make_unique<StubbornQueue>(stubbornness);
    queue_ = queue.get();
    auto transport = std::make_unique<NotedTransport>(notes_, *queue_);
    carrier_.emplace(std::move(transport), std::move(queue));
    return *carrier_;
  }
  static absl::Time Soon() { return MonotonicNow() + absl::Seconds(10); }

  NotedTransport::Notes notes_;
  StubbornQueue* queue_ = nullptr;
  std::optional<RowCarrier> carrier_;
};

TEST_F(RowCarrierTest, TheLastBatchGivesItsChecksumsOnce) {
  RowCarrier& carrier = Make({});
  const std::array<std::byte, 8> source{std::byte{1}};
  std::array<std::byte, 8> destination{};
  const cuda::RowCopy row{
      .source = source.data(), .destination = destination.data(), .num_bytes = 8};
  const auto batch = carrier.queue().Copy({&row, 1});
  ASSERT_TRUE(batch.ok()) << batch.status();
  carrier.SetLastBatch(*batch);
  const auto checksums = carrier.AwaitLastBatch(Soon());
  ASSERT_TRUE(checksums.ok()) << checksums.status();
  EXPECT_THAT(*checksums, ElementsAre(cuda::ChecksumOnHost(source)));
  EXPECT_EQ(destination, source);
  EXPECT_THAT(carrier.AwaitLastBatch(Soon()).value(), IsEmpty());
}

TEST_F(RowCarrierTest, APostBeginsWhenTheLastBatchHasEnded) {
  RowCarrier& carrier = Make({.looks_per_transfer = 5});
  carrier.SetLastBatch(carrier.queue().Transfer({}).value());
  int stream = 0;
  ASSERT_TRUE(carrier.Post({.deadline = Soon(), .stream = &stream}).ok());
  EXPECT_EQ(notes_.under_way_at_post, 0U);
  EXPECT_THAT(queue_->followed(), ElementsAre(&stream));
}

TEST_F(RowCarrierTest, ABatchThatDoesNotEndIsNotPostedOver) {
  RowCarrier& carrier = Make({.looks_per_transfer = 1 << 30});
  carrier.SetLastBatch(carrier.queue().Transfer({}).value());
  const auto ticket = carrier.Post({.deadline = MonotonicNow() + absl::Milliseconds(20)});
  EXPECT_TRUE(absl::IsDeadlineExceeded(ticket.status())) << ticket.status();
  EXPECT_EQ(notes_.under_way_at_post, std::nullopt);
}

TEST_F(RowCarrierTest, APostThatDoesNotBeginIsRefusedSoThatPeersDoNotWait) {
  RowCarrier& carrier = Make({.fail_follow = true});
  const auto ticket = carrier.Post({.post_id = 7, .deadline = Soon()});
  EXPECT_TRUE(absl::IsFailedPrecondition(ticket.status())) << ticket.status();
  EXPECT_EQ(notes_.refused, 7U);
  carrier.Settle();
  EXPECT_TRUE(carrier.may_vote());
}

TEST_F(RowCarrierTest, AwaitPollsUntilThePostIsDone) {
  RowCarrier& carrier = Make({});
  notes_.polls_left = 3;
  const auto ticket = carrier.Post({.deadline = Soon()});
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  const auto progress = carrier.Await(*ticket);
  ASSERT_TRUE(progress.ok()) << progress.status();
  EXPECT_TRUE(progress->done);
  EXPECT_LT(notes_.polls_left, 0);
}

TEST_F(RowCarrierTest, ASettledCarrierMayVote) {
  RowCarrier& carrier = Make({.looks_per_transfer = 5});
  carrier.SetLastBatch(carrier.queue().Transfer({}).value());
  carrier.Settle();
  EXPECT_EQ(notes_.num_aborts, 1);
  EXPECT_EQ(queue_->num_under_way(), 0U);
  EXPECT_TRUE(carrier.may_vote());
}

TEST_F(RowCarrierTest, AWriteThatMayStillLandForbidsToVoteForGood) {
  RowCarrier& carrier = Make({});
  notes_.aborted = absl::InternalError("the copy did not end");
  carrier.Settle();
  EXPECT_FALSE(carrier.may_vote());
  notes_.aborted = absl::OkStatus();
  carrier.Settle();
  EXPECT_FALSE(carrier.may_vote());
}

TEST_F(RowCarrierTest, ALostDeviceForbidsToVoteAndThePostEndsAllTheSame) {
  RowCarrier& carrier = Make({.fail_drain = true});
  carrier.Settle();
  EXPECT_EQ(notes_.num_aborts, 1);
  EXPECT_FALSE(carrier.may_vote());
}

}  // namespace
}  // namespace eplb
