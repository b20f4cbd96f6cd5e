#include "client/rows/paths/bounce_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <list>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/monotonic_clock.h"
#include "client/rows/control/socket.h"
#include "client/rows/link_setup.h"
#include "client/rows/paths/fallback_path.h"
#include "client/rows/transfer_ledger.h"
#include "tests/client/rows/executor_contract.h"
#include "tests/client/rows/paths/bounce_world.h"
#include "tests/client/rows/stubborn_queue.h"

namespace eplb {

namespace {

using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

INSTANTIATE_TEST_SUITE_P(Bounce, TransportContractTest,
                         ::testing::Values(&MakeBounceWorld<BounceWay::kPinned>));
INSTANTIATE_TEST_SUITE_P(BounceCopied, TransportContractTest,
                         ::testing::Values(&MakeBounceWorld<BounceWay::kCopied>));
INSTANTIATE_TEST_SUITE_P(BounceSockets, TransportContractTest,
                         ::testing::Values(&MakeBounceWorld<BounceWay::kSockets>));
INSTANTIATE_TEST_SUITE_P(
    Bounce, ExecutorContractTest,
    ::testing::Values(ExecutorKind{"Pinned", MakeBounceWorld<BounceWay::kPinned>,
                                   StateResidency::kWithPrimary},
                      ExecutorKind{"Sockets", MakeBounceWorld<BounceWay::kSockets>,
                                   StateResidency::kWithPrimary}),
    [](const auto& kind) { return kind.param.name; });

constexpr int64_t kLargeRow = (int64_t{1} << 20) + 65'536;  // more than go down together

// Rank 1 sends rows to rank 0, over queues that the test has a hand in.
class BouncePathTest : public ::testing::TestWithParam<BounceWay> {
 protected:
  struct Stubborn {
    Stubbornness down;
    Stubbornness up;
  };

  void MakeWorld(const Stubborn& sender, const Stubborn& receiver, int64_t staging_bytes) {
    transports_ = MakeBounceWorldOf(2, staging_bytes, GetParam(), [&](int32_t rank) {
      const Stubborn& stubborn = rank == 1 ? sender : receiver;
      auto down = std::make_unique<StubbornQueue>(stubborn.down);
      auto up = std::make_unique<StubbornQueue>(stubborn.up);
      down_[rank] = down.get();
      up_[rank] = up.get();
      return BounceQueues{.down = std::move(down), .up = std::move(up)};
    });
  }

  // Posts rows of these sizes, one after the other, numbered from 4 on.
  void Post(uint64_t post_id, const std::vector<int64_t>& sizes) {
    RowMoves sends = Nothing(post_id);
    RowMoves receives = Nothing(post_id);
    sends.time_rounds = receives.time_rounds = true;
    int64_t offset = 0;
    int32_t row = 4;
    for (const int64_t size : sizes) {
      rows_.push_back(RandomBytes(random_, static_cast<size_t>(size)));
      sends.sends.push_back(
          {.to = RankId{0}, .row = row, .bytes = rows_.back(), .staging_offset = offset});
      receives.receives.push_back(
          {.from = RankId{1}, .row = row++, .staging_offset = offset, .num_bytes = size});
      offset += RoundUpToStaging(size);
    }
    tickets_ = {MustPost(*transports_[0], std::move(receives)),
                MustPost(*transports_[1], std::move(sends))};
  }

  absl::StatusOr<Progress> Poll(int32_t rank) {
    return transports_[rank]->Poll(tickets_[rank], absl::ZeroDuration());
  }

  std::mt19937 random_{5};
  std::list<std::vector<std::byte>> rows_;
  Transports transports_;
  std::vector<Ticket> tickets_;
  StubbornQueue* down_[2] = {};  // by rank
  StubbornQueue* up_[2] = {};
};

INSTANTIATE_TEST_SUITE_P(Ways, BouncePathTest, ::testing::ValuesIn(kBounceWays), &NameBounceWay);

void FlipLast(const std::byte* bytes, int64_t num_bytes) {
  const_cast<std::byte*>(bytes)[num_bytes - 1] ^= std::byte{0x10};
}

TEST_P(BouncePathTest, AByteThatIsDamagedOnAnyHopIsFoundByItsRow) {
  const auto flip_source = [](std::span<const cuda::RowCopy> rows) {
    FlipLast(rows.back().source, rows.back().num_bytes);
  };
  const auto flip_destination = [](std::span<const cuda::RowCopy> rows) {
    FlipLast(rows.back().destination, rows.back().num_bytes);
  };
  for (const char* const hop : {"down", "across", "up"}) {
    SCOPED_TRACE(hop);
    Stubborn sender;
    Stubborn receiver;
    if (hop == std::string("down")) sender.down.after_transfer = flip_destination;
    if (hop == std::string("across")) receiver.up.before_transfer = flip_source;
    if (hop == std::string("up")) receiver.up.after_transfer = flip_destination;
    MakeWorld(sender, receiver, 600'000);
    Post(3, {600'000});
    const auto results = Drive(transports_, tickets_);
    EXPECT_TRUE(results[1].ok()) << results[1].status();
    EXPECT_EQ(results[0].status(), absl::DataLossError("post 3: rank 1: row 4: checksum differs"));
  }
}

TEST_P(BouncePathTest, TheCpuSumsNothing) {
  MakeWorld({}, {}, 2 * kLargeRow);
  Post(1, {kLargeRow, kLargeRow});
  for (const auto& result : Drive(transports_, tickets_)) {
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->rounds.size(), 1U);
    EXPECT_EQ(result->rounds[0].checksum, absl::ZeroDuration());
  }
}

TEST_P(BouncePathTest, ARowIsStagedWhileTheNextComesDown) {
  MakeWorld({.down = {.looks_per_transfer = 100}}, {}, 2 * kLargeRow);
  Post(1, {kLargeRow, kLargeRow});
  bool overlapped = false;
  absl::StatusOr<Progress> received = Progress{};
  while (received.ok() && !received->done) {
    ASSERT_TRUE(Poll(1).ok());
    received = Poll(0);
    overlapped = overlapped || (received.ok() && received->received_bytes == kLargeRow &&
                                down_[1]->num_under_way() > 0);
  }
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_TRUE(overlapped);
}

TEST_P(BouncePathTest, NothingIsAllocatedAfterTheStart) {
  MakeWorld({}, {}, 4 * kLargeRow);
  const auto num_reserved = [this] {
    return down_[0]->num_reserved() + down_[1]->num_reserved() + up_[0]->num_reserved() +
           up_[1]->num_reserved();
  };
  const int32_t at_start = num_reserved();
  EXPECT_THAT(at_start, Gt(0));
  for (uint64_t post_id = 1; post_id <= 4; ++post_id) {
    Post(post_id, std::vector<int64_t>(post_id, kLargeRow));
    MustDrive(transports_, tickets_);
  }
  EXPECT_EQ(num_reserved(), at_start);
}

TEST_P(BouncePathTest, AbortWaitsForWhatIsOnItsWayDown) {
  MakeWorld({.down = {.looks_per_transfer = 1 << 30}}, {}, kLargeRow);
  Post(1, {kLargeRow});
  while (down_[1]->num_under_way() == 0) ASSERT_TRUE(Poll(0).ok() && Poll(1).ok());
  EXPECT_TRUE(transports_[1]->Abort().ok());
  EXPECT_EQ(down_[1]->num_under_way(), 0U);
}

TEST_P(BouncePathTest, AbortWaitsForATransferWhoseChecksumsCouldNotBeBegun) {
  MakeWorld({}, {.up = {.looks_per_transfer = 5, .fail_copies = true}}, 64);
  Post(1, {64});
  absl::StatusOr<Progress> received = Progress{};
  while (received.ok()) {
    ASSERT_TRUE(Poll(1).ok());
    received = Poll(0);
  }
  EXPECT_EQ(received.status(), absl::InternalError("the copy kernel failed"));
  EXPECT_EQ(up_[0]->num_under_way(), 1U);
  EXPECT_TRUE(transports_[0]->Abort().ok());
  EXPECT_EQ(up_[0]->num_under_way(), 0U);
}

TEST_P(BouncePathTest, ADeviceThatHangsInEitherDirectionIsWaitedForOnce) {
  HangingDevice device;
  MakeWorld({.down = device.Failing(), .up = device.Silent()}, {}, 64);
  device.ExpectOneWait(*transports_[1], kSettleTimeout);
  device.Recover();
  transports_.clear();
}

// A rank that only sends, over a socket that takes little at once.
class BounceSenderTest : public ::testing::Test {
 protected:
  BounceSenderTest() {
    int ends[2] = {};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    const int few_bytes = 16'384;
    EXPECT_EQ(setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &few_bytes, sizeof(few_bytes)), 0);
    peer_ = Fd(ends[1]);
    std::vector<PeerLink> links;
    links.push_back(PeerLink({.rank = RankId{1}, .fd = Fd(ends[0]), .staging_bytes = kBytes}));
    links_.emplace(std::move(links));
  }

  // Bytes that the peer has read.
  size_t ReadSome() {
    const ssize_t read = recv(peer_.get(), read_.data(), read_.size(), 0);
    return read < 0 ? 0 : static_cast<size_t>(read);
  }

  static constexpr int64_t kBytes = int64_t{6} << 20;  // more than the ring
  std::vector<std::byte> read_ = std::vector<std::byte>(65'536);
  std::vector<std::byte> staging_ = std::vector<std::byte>(64);
  std::optional<LinkSet> links_;
  Fd peer_;
};

// Without this the transport would sleep until a frame arrives, with a slot to fill or a round to
// begin.
TEST_F(BounceSenderTest, OnceNothingMovesThereIsNothingToDoBeforeThePeerHasRead) {
  const std::vector<std::byte> row(kBytes, std::byte{5});
  RowMoves moves{.post_id = 1};
  for (const int32_t round : {0, 1}) {
    moves.sends.push_back({.to = RankId{1}, .row = round, .round = round, .bytes = row});
  }
  TransferLedger ledger(moves);
  links_->Of(RankId{1}).posted = 1;
  const auto path =
      MakeBouncePathInto(staging_, cuda::MakeHostRowQueue(), cuda::MakeHostRowQueue());
  ASSERT_TRUE(path.ok()) << path.status();
  ASSERT_TRUE((*path)->Open(moves, ledger, *links_).ok());
  size_t num_read = 0;
  int32_t num_waits = 0;
  while (!ledger.complete()) {
    links_->Of(RankId{1}).Flush();
    while (*(*path)->Advance()) continue;
    ASSERT_FALSE(*(*path)->Advance()) << "after wait " << num_waits;
    ++num_waits;
    const size_t read = ReadSome();
    ASSERT_TRUE(read > 0 || ledger.complete()) << "nothing moves any more";
    num_read += read;
  }
  EXPECT_GT(num_waits, 2 * 24) << "the socket took more than a piece at once";
  EXPECT_GT(num_read, size_t{kBytes}) << "both rounds crossed";
  EXPECT_TRUE((*path)->Close(/*done=*/true).ok());
}

// Results that a NamedPath returns, and its fate.
struct NamedPathFate {
  absl::Status closed;  // result of Close
  bool destroyed = false;
};

class NamedPath : public RowPath {
 public:
  NamedPath(std::string name, NamedPathFate& fate) : name_(std::move(name)), fate_(fate) {}
  ~NamedPath() override { fate_.destroyed = true; }
  std::string_view name() const override { return name_; }
  std::span<std::byte> staging() override { return {}; }
  absl::Status Open(const RowMoves&, TransferLedger&, LinkSet&) override {
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Advance() override { return absl::InternalError("NCCL: no way there"); }
  bool busy() const override { return false; }
  absl::StatusOr<std::span<std::byte>> Place(const PeerLink&, const RowMessage& frame) override {
    placed_.push_back(frame.type);
    return std::span<std::byte>();
  }
  absl::Status Take(const PeerLink&, const RowMessage&) override { return absl::OkStatus(); }
  absl::Status Close(bool) override { return fate_.closed; }
  absl::Status DropShared() override {
    ++num_drops_;
    return absl::InternalError("NCCL: it stays");
  }

  const std::vector<RowMessageType>& placed() const { return placed_; }
  int32_t num_drops() const { return num_drops_; }

 private:
  std::vector<RowMessageType> placed_;
  int32_t num_drops_ = 0;
  const std::string name_;
  NamedPathFate& fate_;
};

class FallbackPathTest : public ::testing::Test {
 protected:
  void Open(uint64_t post_id) {
    const RowMoves moves{.post_id = post_id};
    TransferLedger ledger(moves);
    LinkSet links({});
    EXPECT_TRUE(path_->Open(moves, ledger, links).ok());
  }
  void Succeed(uint64_t post_id) {
    Open(post_id);
    EXPECT_TRUE(path_->Close(/*done=*/true).ok());
  }
  // Acts like a rank whose rows arrived, or did not, when the vote failed.
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
  NamedPathFate first_fate_, second_fate_;
  NamedPath* const first_ = new NamedPath("nccl", first_fate_);
  std::unique_ptr<RowPath> path_ = MakeFallbackPath(
      {.first = std::unique_ptr<RowPath>(first_),
       .make_second = [this](std::span<std::byte>) -> absl::StatusOr<std::unique_ptr<RowPath>> {
         if (no_memory_) return absl::ResourceExhaustedError("no memory");
         return std::make_unique<NamedPath>("host", second_fate_);
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
  const RowMoves moves{.post_id = 4};
  TransferLedger ledger(moves);
  LinkSet links({});
  EXPECT_EQ(path_->Open(moves, ledger, links), absl::ResourceExhaustedError("no memory"));
  EXPECT_TRUE(path_->Close(/*done=*/false).ok());
  EXPECT_EQ(path_->way(), 0);
  no_memory_ = false;
  Open(5);
  EXPECT_EQ(path_->way(), 1);
}

TEST_F(FallbackPathTest, StagingIsKeptWhereTheSecondWayMayStillWrite) {
  for (const uint64_t post_id : {1, 2, 3}) Fail(post_id, /*own_rows_came=*/true);
  Succeed(4);
  second_fate_.closed = absl::DeadlineExceededError("the device hangs");
  path_.reset();
  EXPECT_TRUE(second_fate_.destroyed);
  ASSERT_FALSE(first_fate_.destroyed);
  delete first_;
}

TEST_F(FallbackPathTest, StagingIsFreedOnceTheSecondWayHasEnded) {
  for (const uint64_t post_id : {1, 2, 3}) Fail(post_id, /*own_rows_came=*/true);
  Succeed(4);
  path_.reset();
  EXPECT_TRUE(second_fate_.destroyed && first_fate_.destroyed);
}

TEST_F(FallbackPathTest, TheFirstWayKeepsFramesAboutNoRowAndDropsWhatTheRanksShare) {
  Succeed(0);
  for (const uint64_t post_id : {1, 2, 3}) Fail(post_id, /*own_rows_came=*/false);
  EXPECT_EQ(first_->num_drops(), 0);
  Open(4);
  EXPECT_EQ(path_->way(), 1);
  EXPECT_EQ(first_->num_drops(), 1) << "a communicator holds memory";
  const PeerLink link({.rank = RankId{1}, .fd = Fd(), .staging_bytes = 64});
  for (const RowMessageType type :
       {RowMessageType::kMeet, RowMessageType::kRegistered, RowMessageType::kPiece}) {
    EXPECT_TRUE(path_->Place(link, {.type = type}).ok());
  }
  EXPECT_THAT(first_->placed(), ElementsAre(RowMessageType::kMeet, RowMessageType::kRegistered));
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
