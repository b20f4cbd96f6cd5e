#include "client/migration/bounce_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/migration/host_path.h"
#include "tests/client/migration/bounce_world.h"
#include "tests/client/migration/executor_contract.h"
#include "tests/client/migration/stubborn_queue.h"

namespace eplb {

namespace {

INSTANTIATE_TEST_SUITE_P(Bounce, TransportContractTest, ::testing::Values(&MakeBounceWorld));
INSTANTIATE_TEST_SUITE_P(Bounce, ExecutorContractTest,
                         ::testing::Values(ExecutorKind{"WithPrimary", MakeBounceWorld,
                                                        StateResidency::kWithPrimary}),
                         [](const auto& kind) { return kind.param.name; });

TEST(BouncePathTest, AbortWaitsForATransferWhoseChecksumsCouldNotBeBegun) {
  auto made =
      std::make_unique<StubbornQueue>(Stubbornness{.looks_per_transfer = 5, .fail_copies = true});
  StubbornQueue& queue = *made;
  const std::vector<std::byte> row(8);
  const RowMoves moves{
      .post_id = 1,
      .sends = {{.to = RankId{1}, .row = 3, .round = 0, .bytes = row, .staging_offset = 0}},
      .receives = {}};
  auto arena = StagingArena::Make(64);
  ASSERT_TRUE(arena.ok()) << arena.status();
  auto path = MakeBouncePath(MakeHostPath(*std::move(arena), {}), std::move(made));
  ASSERT_TRUE(path.ok()) << path.status();
  TransferLedger ledger(moves);
  LinkSet links({});
  EXPECT_EQ((*path)->Open(moves, ledger, links), absl::InternalError("the copy kernel failed"));
  EXPECT_EQ(queue.num_under_way(), 1U);
  EXPECT_TRUE((*path)->Close(/*done=*/false).ok());
  EXPECT_EQ(queue.num_under_way(), 0U);
}

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class NamedPath : public RowPath {
 public:
  explicit NamedPath(std::string name) : name_(std::move(name)) {}
  std::string_view name() const override { return name_; }
  std::span<std::byte> staging() override { return {}; }
  absl::Status Open(const RowMoves&, TransferLedger&, LinkSet&) override {
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Advance() override { return absl::InternalError("NCCL: no way there"); }
  bool busy() const override { return false; }
  absl::StatusOr<std::span<std::byte>> Place(const PeerLink&, const RowMessage&) override {
    return std::span<std::byte>();
  }
  absl::Status Take(const PeerLink&, const RowMessage&) override { return absl::OkStatus(); }
  absl::Status Close(bool) override { return absl::OkStatus(); }

 private:
  const std::string name_;
};

class FallbackPathTest : public ::testing::Test {
 protected:
  void Open(uint64_t post_id) {
    const RowMoves moves{.post_id = post_id, .sends = {}, .receives = {}};
    TransferLedger ledger(moves);
    LinkSet links({});
    EXPECT_TRUE(path_->Open(moves, ledger, links).ok());
  }
  void Succeed(uint64_t post_id) {
    Open(post_id);
    EXPECT_TRUE(path_->Close(/*done=*/true).ok());
  }
  // As a rank whose rows came, or did not, when the vote said no.
  void Fail(uint64_t post_id, bool own_rows_came) {
    Open(post_id);
    if (own_rows_came) {
      EXPECT_TRUE(path_->Close(/*done=*/true).ok());
    } else {
      EXPECT_FALSE(path_->Advance().ok());
      EXPECT_TRUE(path_->Close(/*done=*/false).ok());
    }
    EXPECT_TRUE(path_->Close(/*done=*/false).ok());
  }

  std::vector<std::string> notes_;
  bool no_memory_ = false;  // for the second way
  std::unique_ptr<RowPath> path_ = MakeFallbackPath(
      {.first = std::make_unique<NamedPath>("nccl"),
       .make_second = [this](std::span<std::byte>) -> absl::StatusOr<std::unique_ptr<RowPath>> {
         if (no_memory_) return absl::ResourceExhaustedError("no memory");
         return std::make_unique<NamedPath>("host");
       },
       .on_note = [this](std::string_view line) { notes_.emplace_back(line); }});
};

TEST_F(FallbackPathTest, ThreeFailuresInARowChangeTheWayForGood) {
  Succeed(0);
  Fail(1, false);
  Fail(2, true);
  Succeed(3);
  for (const uint64_t post_id : {4, 5, 6}) {
    Fail(post_id, post_id == 5);
    EXPECT_EQ(path_->way(), 0);
  }
  EXPECT_THAT(notes_, IsEmpty());
  EXPECT_EQ(path_->fallback_reason(), "");
  Succeed(7);
  EXPECT_EQ(path_->way(), 1);
  EXPECT_EQ(path_->name(), "host");
  EXPECT_EQ(
      path_->fallback_reason(),
      "transport nccl was given up: 3 migrations in a row failed, the last one with: NCCL: no "
      "way there");
  Succeed(8);
  EXPECT_EQ(path_->way(), 1);
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("NCCL: no way there")));
}

TEST_F(FallbackPathTest, RankThatNeverSawAnErrorChangesAtTheSamePost) {
  Succeed(0);
  for (const uint64_t post_id : {1, 2, 3}) Fail(post_id, /*own_rows_came=*/true);
  EXPECT_EQ(path_->way(), 0);
  Open(4);
  EXPECT_EQ(path_->way(), 1);
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("an error of another rank")));
}

TEST_F(FallbackPathTest, ASecondWayThatCannotBeMadeRefusesThePostAndIsTriedAgain) {
  Succeed(0);
  for (const uint64_t post_id : {1, 2, 3}) Fail(post_id, /*own_rows_came=*/false);
  no_memory_ = true;
  const RowMoves moves{.post_id = 4, .sends = {}, .receives = {}};
  TransferLedger ledger(moves);
  LinkSet links({});
  EXPECT_EQ(path_->Open(moves, ledger, links), absl::ResourceExhaustedError("no memory"));
  EXPECT_TRUE(path_->Close(/*done=*/false).ok());
  EXPECT_EQ(path_->way(), 0);
  no_memory_ = false;
  Open(5);
  EXPECT_EQ(path_->way(), 1);
}

TEST_F(FallbackPathTest, PostsThatWereRefusedHereCountAsFailed) {
  Succeed(0);
  Fail(1, false);
  EXPECT_TRUE(path_->Close(/*done=*/false).ok());  // posts 2 and 3 never came here
  Open(4);
  EXPECT_EQ(path_->way(), 1);
}

}  // namespace

}  // namespace eplb
