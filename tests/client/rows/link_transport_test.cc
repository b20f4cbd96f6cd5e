// A peer that breaks the rules of the wire, one at a time.
#include "client/rows/link_transport.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>

#include "absl/time/clock.h"

#include "client/rows/control/meeting.h"
#include "client/rows/link_setup.h"
#include "client/rows/row_message.h"
#include "cuda/checksum.h"
#include "tests/client/rows/control/world.h"
#include "tests/client/rows/paths/host_world.h"
#include "tests/client/rows/transport_contract.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

// Rank 0 is a real transport that expects row 7 of 600 bytes at offset 64 in round 2 from rank 1,
// which is this test, speaking the wire by hand.
class LinkTransportTest : public ::testing::Test {
 protected:
  static constexpr int64_t kRowBytes = 600;

  void SetUp() override {
    ThreadAllGather all_gather(2);
    RunRanks(2, [&](int32_t rank) {
      if (rank == 0) {
        auto made = MakeHostTransport(HostOptions(0, 2, 4096), all_gather.ForRank(0));
        ASSERT_TRUE(made.ok()) << made.status();
        transport_ = *std::move(made);
        return;
      }
      const LinkAddress own{.tcp = "127.0.0.1:1", .staging_bytes = 4096};
      const auto all = all_gather.ForRank(1)(own.Encode());
      ASSERT_TRUE(all.ok());
      const auto address = LinkAddress::Decode((*all)[0]);
      ASSERT_TRUE(address.ok());
      auto met = MeetPeers(
          "raw",
          {.handshake = {.secret = kHostSecret, .role = ConnectionRole::kRows, .self = RankId{1}},
           .dial = {{.rank = RankId{0}, .addresses = {address->tcp}}},
           .deadline = absl::Now() + absl::Seconds(30)});
      ASSERT_TRUE(met.ok()) << met.status();
      fd_ = std::move(met->peers.at(RankId{0}).fd);
    });
    std::mt19937 random(11);
    row_ = RandomBytes(random, kRowBytes);
  }

  Ticket PostReceive(uint64_t post_id) {
    return MustPost(*transport_, {.post_id = post_id,
                                  .receives = {{.from = RankId{1},
                                                .row = 7,
                                                .round = 2,
                                                .staging_offset = 64,
                                                .num_bytes = kRowBytes}},
                                  .deadline = absl::Now() + absl::Seconds(30)});
  }

  RowMessage Good(uint64_t post_id) const {
    return {.type = RowMessageType::kPiece,
            .row = 7,
            .round = 2,
            .post_id = post_id,
            .row_bytes = kRowBytes,
            .staging_offset = 64,
            .offset = 0,
            .bytes = kRowBytes,
            .checksum = cuda::ChecksumOnHost(row_)};
  }

  void Send(std::span<const std::byte> bytes) {
    ASSERT_TRUE(SendAll(fd_.get(), bytes, absl::Now() + absl::Seconds(30)).ok());
  }
  void Send(const RowMessage& frame) {
    const RowMessage sealed = SealFrame(frame);
    Send(std::as_bytes(std::span(&sealed, 1)));
  }

  // The receiver blames rank 1 with `why` for what `send` puts on the wire.
  void ExpectBlamed(const std::function<void()>& send, const char* why) {
    std::ranges::fill(transport_->staging(), std::byte{0xEE});
    const Ticket ticket = PostReceive(1);
    send();
    const absl::Status status = Finish(*transport_, ticket).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    const auto staging = transport_->staging();  // nothing landed outside the row
    EXPECT_TRUE(
        std::ranges::all_of(staging.first(64), [](auto b) { return b == std::byte{0xEE}; }));
    EXPECT_TRUE(std::ranges::all_of(staging.subspan(64 + kRowBytes),
                                    [](auto b) { return b == std::byte{0xEE}; }));
  }

  std::unique_ptr<Transport> transport_;
  Fd fd_;
  std::vector<std::byte> row_;
};

TEST_F(LinkTransportTest, HandWrittenRowIsTakenAlsoInSmallPieces) {
  const Ticket ticket = PostReceive(1);
  for (int64_t at = 0; at < kRowBytes; at += 200) {
    const std::span<const std::byte> piece =
        std::span<const std::byte>(row_).subspan(static_cast<size_t>(at), 200);
    RowMessage frame = Good(1);
    frame.offset = at;
    frame.bytes = 200;
    frame.checksum = cuda::ChecksumOnHost(piece);
    Send(frame);
    Send(piece);
  }
  const auto result = Finish(*transport_, ticket);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(std::ranges::equal(transport_->staging().subspan(64, kRowBytes), row_));
}

TEST_F(LinkTransportTest, WrongByteIsDataLossNamingPeerAndRow) {
  ExpectBlamed(
      [this] {
        Send(Good(1));
        row_[599] ^= std::byte{1};
        Send(row_);
      },
      "row 7: checksum differs");
}

TEST_F(LinkTransportTest, UnknownRowIsBlamed) {
  RowMessage frame = Good(1);
  frame.row = 8;
  ExpectBlamed([&] { Send(frame); }, "row 8 was not expected");
}

TEST_F(LinkTransportTest, OtherSizeOffsetOrRoundThanAgreedIsBlamed) {
  RowMessage frame = Good(1);
  frame.staging_offset = 0;
  ExpectBlamed([&] { Send(frame); }, "expected 600 at 64 in round 2");
}

TEST_F(LinkTransportTest, PieceBeyondTheRowIsBlamed) {
  RowMessage frame = Good(1);
  frame.bytes = kRowBytes + 1;
  ExpectBlamed([&] { Send(frame); }, "bytes 0+601 arrived");
}

TEST_F(LinkTransportTest, PieceOutOfOrderIsBlamed) {
  RowMessage frame = Good(1);
  frame.offset = 100;
  frame.bytes = 100;
  ExpectBlamed([&] { Send(frame); }, "bytes 100+100 arrived, expected from 0");
}

TEST_F(LinkTransportTest, OversizePieceIsBlamedBeforeItIsRead) {
  RowMessage frame = Good(1);
  frame.bytes = int64_t{1} << 40;
  ExpectBlamed([&] { Send(frame); }, "no rank writes");
}

TEST_F(LinkTransportTest, NegativeSizesAreBlamed) {
  RowMessage frame = Good(1);
  frame.bytes = -1;
  ExpectBlamed([&] { Send(frame); }, "no rank writes");
}

TEST_F(LinkTransportTest, LandedRowWithoutSharedMemoryIsBlamed) {
  RowMessage frame = Good(1);
  frame.type = RowMessageType::kLanded;
  ExpectBlamed([&] { Send(frame); }, "memory that is not shared");
}

TEST_F(LinkTransportTest, DamagedHeaderIsBlamed) {
  ExpectBlamed(
      [this] {
        RowMessage frame = SealFrame(Good(1));
        frame.offset ^= 1;
        Send(std::as_bytes(std::span(&frame, 1)));
      },
      "damaged frame");
}

TEST_F(LinkTransportTest, RowOfAPostNotYetMadeIsBlamed) {
  ExpectBlamed([&] { Send(Good(2)); }, "before it was posted here");
}

TEST_F(LinkTransportTest, DuplicateRowIsBlamed) {
  const Ticket first = MustPost(
      *transport_,
      {.post_id = 1,
       .receives =
           {{.from = RankId{1}, .row = 7, .round = 2, .staging_offset = 64, .num_bytes = kRowBytes},
            {.from = RankId{1}, .row = 8, .round = 2, .staging_offset = 1024, .num_bytes = 1}},
       .deadline = absl::Now() + absl::Seconds(30)});
  for (int32_t copy = 0; copy < 2; ++copy) {
    Send(Good(1));
    Send(row_);
  }
  const absl::Status status = Finish(*transport_, first).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("row 7 was not expected twice"));
}

TEST_F(LinkTransportTest, RankThatCarriesItsRowsAnotherWayEndsThePost) {
  const Ticket ticket = PostReceive(1);
  Send({.type = RowMessageType::kPosted, .round = 1, .post_id = 1});
  const absl::Status status = Finish(*transport_, ticket).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(status.message(), "post 1: rank 1 uses another transport for its rows");
}

TEST_F(LinkTransportTest, LateRowOfAnOldPostIsDroppedAndTheStreamGoesOn) {
  const Ticket old_ticket = PostReceive(1);
  Send(Good(1));
  Send(std::span<const std::byte>(row_).first(100));  // in the middle of a row
  EXPECT_TRUE(transport_->Poll(old_ticket, absl::ZeroDuration()).ok());
  EXPECT_TRUE(transport_->Abort().ok());
  std::ranges::fill(transport_->staging(), std::byte{0xEE});
  const Ticket ticket = PostReceive(2);
  Send(std::span<const std::byte>(row_).subspan(100));  // the rest of the old row
  Send(Good(1));                                        // and a whole one
  Send(row_);
  Send({.type = RowMessageType::kEnded, .post_id = 1});
  for (int32_t turn = 0; turn < 5; ++turn) {
    ASSERT_TRUE(transport_->Poll(ticket, absl::ZeroDuration()).ok());
  }
  EXPECT_TRUE(
      std::ranges::all_of(transport_->staging(), [](auto b) { return b == std::byte{0xEE}; }));
  Send(Good(2));
  Send(row_);
  const auto result = Finish(*transport_, ticket);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(std::ranges::equal(transport_->staging().subspan(64, kRowBytes), row_));
}

}  // namespace
}  // namespace eplb
