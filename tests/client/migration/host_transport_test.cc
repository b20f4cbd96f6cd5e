#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "client/control/meeting.h"
#include "client/control/tcp_exchange.h"
#include "client/migration/host_setup.h"
#include "client/migration/row_frame.h"
#include "cuda/checksum.h"
#include "tests/client/control/world.h"
#include "tests/client/migration/transport_contract.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

constexpr char kSecret[] = "host secret";

HostTransportOptions Options(int32_t rank, int32_t world_size, int64_t staging_bytes) {
  return {.rank = RankId{rank},
          .world_size = world_size,
          .staging_bytes = staging_bytes,
          .secret = kSecret,
          .connect_timeout = absl::Seconds(30),
          .peers = {},
          .on_note = {}};
}

Transports MakeHost(int32_t world_size, int64_t staging_bytes, bool use_shared_memory) {
  ThreadExchange exchange(world_size);
  Transports transports(world_size);
  RunRanks(world_size, [&](int32_t rank) {
    HostTransportOptions options = Options(rank, world_size, staging_bytes);
    options.use_shared_memory = use_shared_memory;
    options.on_note = [&](std::string_view line) {
      ADD_FAILURE() << "rank " << rank << ": " << line;
    };
    auto transport = MakeHostTransport(options, exchange.ForRank(rank));
    ASSERT_TRUE(transport.ok()) << transport.status();
    transports[rank] = *std::move(transport);
  });
  return transports;
}

Transports MakeShared(int32_t world_size, int64_t staging_bytes) {
  return MakeHost(world_size, staging_bytes, true);
}
Transports MakeTcp(int32_t world_size, int64_t staging_bytes) {
  return MakeHost(world_size, staging_bytes, false);
}

INSTANTIATE_TEST_SUITE_P(HostSharedMemory, TransportContractTest, ::testing::Values(&MakeShared));
INSTANTIATE_TEST_SUITE_P(HostTcp, TransportContractTest, ::testing::Values(&MakeTcp));

// Rank 0 is a real transport that expects row 7 of 600 bytes at offset 64 in round 2 from rank 1,
// which is this test, speaking the wire by hand.
class RawPeerTest : public ::testing::Test {
 protected:
  static constexpr int64_t kRowBytes = 600;

  void SetUp() override {
    ThreadExchange exchange(2);
    RunRanks(2, [&](int32_t rank) {
      if (rank == 0) {
        auto made = MakeHostTransport(Options(0, 2, 4096), exchange.ForRank(0));
        ASSERT_TRUE(made.ok()) << made.status();
        transport_ = *std::move(made);
        return;
      }
      const HostAddress own{
          .tcp = "127.0.0.1:1", .unix_name = "", .boot_id = "", .staging_bytes = 4096};
      const auto all = exchange.ForRank(1)(own.Encode());
      ASSERT_TRUE(all.ok());
      const auto address = HostAddress::Decode((*all)[0]);
      ASSERT_TRUE(address.ok());
      auto met = MeetPeers(
          "raw",
          {.handshake = {.secret = kSecret, .role = ConnectionRole::kRows, .self = RankId{1}},
           .dial = {{.rank = RankId{0}, .addresses = {address->tcp}}},
           .expect = {},
           .listeners = {},
           .deadline = absl::Now() + absl::Seconds(30)});
      ASSERT_TRUE(met.ok()) << met.status();
      fd_ = std::move(met->peers.at(RankId{0}).fd);
    });
    std::mt19937 random(11);
    row_ = RandomBytes(random, kRowBytes);
  }

  Ticket PostReceive(uint64_t post_id) {
    return MustPost(*transport_, {.post_id = post_id,
                                  .sends = {},
                                  .receives = {{.from = RankId{1},
                                                .row = 7,
                                                .round = 2,
                                                .staging_offset = 64,
                                                .num_bytes = kRowBytes}},
                                  .deadline = absl::Now() + absl::Seconds(30)});
  }

  RowFrame Good(uint64_t post_id) const {
    return {.type = RowFrameType::kPiece,
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
  void Send(const RowFrame& frame) {
    const RowFrame sealed = SealFrame(frame);
    Send(std::as_bytes(std::span(&sealed, 1)));
  }

  // Polls until done or failed.
  absl::StatusOr<Progress> Finish(Ticket ticket) {
    absl::StatusOr<Progress> result = Progress{};
    while (result.ok() && !result->done) result = transport_->Poll(ticket, absl::Seconds(1));
    return result;
  }

  // The receiver blames rank 1 with `why` for what `send` puts on the wire.
  void ExpectBlamed(const std::function<void()>& send, const char* why) {
    std::ranges::fill(transport_->staging(), std::byte{0xEE});
    const Ticket ticket = PostReceive(1);
    send();
    const absl::Status status = Finish(ticket).status();
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

TEST_F(RawPeerTest, HandWrittenRowIsTakenAlsoInSmallPieces) {
  const Ticket ticket = PostReceive(1);
  for (int64_t at = 0; at < kRowBytes; at += 200) {
    const std::span<const std::byte> piece =
        std::span<const std::byte>(row_).subspan(static_cast<size_t>(at), 200);
    RowFrame frame = Good(1);
    frame.offset = at;
    frame.bytes = 200;
    frame.checksum = cuda::ChecksumOnHost(piece);
    Send(frame);
    Send(piece);
  }
  const auto result = Finish(ticket);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(std::ranges::equal(transport_->staging().subspan(64, kRowBytes), row_));
}

TEST_F(RawPeerTest, WrongByteIsDataLossNamingPeerAndRow) {
  ExpectBlamed(
      [this] {
        Send(Good(1));
        row_[599] ^= std::byte{1};
        Send(row_);
      },
      "row 7: checksum differs");
}

TEST_F(RawPeerTest, UnknownRowIsBlamed) {
  RowFrame frame = Good(1);
  frame.row = 8;
  ExpectBlamed([&] { Send(frame); }, "row 8 was not expected");
}

TEST_F(RawPeerTest, OtherSizeOffsetOrRoundThanAgreedIsBlamed) {
  RowFrame frame = Good(1);
  frame.staging_offset = 0;
  ExpectBlamed([&] { Send(frame); }, "expected 600 at 64 in round 2");
}

TEST_F(RawPeerTest, PieceBeyondTheRowIsBlamed) {
  RowFrame frame = Good(1);
  frame.bytes = kRowBytes + 1;
  ExpectBlamed([&] { Send(frame); }, "bytes 0+601 came");
}

TEST_F(RawPeerTest, PieceOutOfOrderIsBlamed) {
  RowFrame frame = Good(1);
  frame.offset = 100;
  frame.bytes = 100;
  ExpectBlamed([&] { Send(frame); }, "bytes 100+100 came, expected from 0");
}

TEST_F(RawPeerTest, OversizePieceIsBlamedBeforeItIsRead) {
  RowFrame frame = Good(1);
  frame.bytes = int64_t{1} << 40;
  ExpectBlamed([&] { Send(frame); }, "no rank writes");
}

TEST_F(RawPeerTest, NegativeSizesAreBlamed) {
  RowFrame frame = Good(1);
  frame.bytes = -1;
  ExpectBlamed([&] { Send(frame); }, "no rank writes");
}

TEST_F(RawPeerTest, LandedRowWithoutSharedMemoryIsBlamed) {
  RowFrame frame = Good(1);
  frame.type = RowFrameType::kLanded;
  ExpectBlamed([&] { Send(frame); }, "memory that is not shared");
}

TEST_F(RawPeerTest, DamagedHeaderIsBlamed) {
  ExpectBlamed(
      [this] {
        RowFrame frame = SealFrame(Good(1));
        frame.offset ^= 1;
        Send(std::as_bytes(std::span(&frame, 1)));
      },
      "damaged frame");
}

TEST_F(RawPeerTest, RowOfAPostNotYetMadeIsBlamed) {
  ExpectBlamed([&] { Send(Good(2)); }, "before it was posted here");
}

TEST_F(RawPeerTest, DuplicateRowIsBlamed) {
  const Ticket first = MustPost(
      *transport_,
      {.post_id = 1,
       .sends = {},
       .receives =
           {{.from = RankId{1}, .row = 7, .round = 2, .staging_offset = 64, .num_bytes = kRowBytes},
            {.from = RankId{1}, .row = 8, .round = 2, .staging_offset = 1024, .num_bytes = 1}},
       .deadline = absl::Now() + absl::Seconds(30)});
  for (int32_t copy = 0; copy < 2; ++copy) {
    Send(Good(1));
    Send(row_);
  }
  const absl::Status status = Finish(first).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("row 7 was not expected twice"));
}

TEST_F(RawPeerTest, LateRowOfAnOldPostIsDroppedAndTheStreamGoesOn) {
  const Ticket old_ticket = PostReceive(1);
  Send(Good(1));
  Send(std::span<const std::byte>(row_).first(100));  // in the middle of a row
  EXPECT_TRUE(transport_->Poll(old_ticket, absl::ZeroDuration()).ok());
  transport_->Abort();
  std::ranges::fill(transport_->staging(), std::byte{0xEE});
  const Ticket ticket = PostReceive(2);
  Send(std::span<const std::byte>(row_).subspan(100));  // the rest of the old row
  Send(Good(1));                                        // and a whole one
  Send(row_);
  Send({.type = RowFrameType::kEnded, .post_id = 1});
  for (int32_t turn = 0; turn < 5; ++turn) {
    ASSERT_TRUE(transport_->Poll(ticket, absl::ZeroDuration()).ok());
  }
  EXPECT_TRUE(
      std::ranges::all_of(transport_->staging(), [](auto b) { return b == std::byte{0xEE}; }));
  Send(Good(2));
  Send(row_);
  const auto result = Finish(ticket);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(std::ranges::equal(transport_->staging().subspan(64, kRowBytes), row_));
}

TEST(HostTransportTest, FlippedByteInSharedStagingIsFound) {
  Transports transports = MakeShared(2, 1000);
  const std::vector<std::byte> row(1000, std::byte{9});
  const Ticket receive = MustPost(
      *transports[0],
      {.post_id = 3,
       .sends = {},
       .receives =
           {{.from = RankId{1}, .row = 4, .round = 0, .staging_offset = 0, .num_bytes = 1000}},
       .deadline = absl::Now() + absl::Seconds(30)});
  const Ticket send = MustPost(
      *transports[1],
      {.post_id = 3,
       .sends = {{.to = RankId{0}, .row = 4, .round = 0, .bytes = row, .staging_offset = 0}},
       .receives = {},
       .deadline = absl::Now() + absl::Seconds(30)});
  absl::StatusOr<Progress> sent = Progress{};
  while (sent.ok() && !sent->done) sent = transports[1]->Poll(send, absl::Seconds(1));
  ASSERT_TRUE(sent.ok()) << sent.status();
  ASSERT_EQ(transports[0]->staging()[500], std::byte{9}) << "memory is shared";
  transports[0]->staging()[500] = std::byte{8};
  const absl::Status status = transports[0]->Poll(receive, absl::Seconds(30)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(status.message(), "post 3: rank 1: row 4: checksum differs");
}

TEST(HostTransportTest, OptionsThatCannotWorkAreRefusedByName) {
  const Exchange never = [](std::string_view) -> absl::StatusOr<std::vector<std::string>> {
    return absl::InternalError("must not be called");
  };
  const auto refused = [&](const HostTransportOptions& options, const char* name) {
    const absl::Status status = MakeHostTransport(options, never).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  };
  HostTransportOptions options = Options(0, 1, 64);
  options.max_row_bytes = 0;
  refused(options, "max_row_bytes");
  options = Options(1, 1, 64);
  refused(options, "rank 1");
  options = Options(0, 1, 64);
  options.secret.clear();
  refused(options, "secret");
  options = Options(0, 1, 64);
  options.peers = {RankId{4}};
  refused(options, "peer 4");
  options = Options(0, 1, -1);
  refused(options, "staging of -1");
}

TEST(HostTransportTest, OversizeRowIsRefusedAtPost) {
  ThreadExchange exchange(2);
  Transports transports(2);
  RunRanks(2, [&](int32_t rank) {
    HostTransportOptions options = Options(rank, 2, 4096);
    options.max_row_bytes = 100;
    transports[rank] = *MakeHostTransport(options, exchange.ForRank(rank));
  });
  const std::vector<std::byte> row(101);
  const absl::Status status =
      transports[0]
          ->Post({.post_id = 1,
                  .sends =
                      {{.to = RankId{1}, .row = 3, .round = 0, .bytes = row, .staging_offset = 0}},
                  .receives = {},
                  .deadline = absl::InfiniteFuture()})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the largest row is 100"));
}

TEST(HostTransportTest, RankWithoutTheSecretIsNotLetIn) {
  ThreadExchange exchange(2);
  RunRanks(2, [&](int32_t rank) {
    HostTransportOptions options = Options(rank, 2, 64);
    options.connect_timeout = absl::Milliseconds(150);
    if (rank == 1) options.secret = "guessed";
    const absl::Status status = MakeHostTransport(options, exchange.ForRank(rank)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(status.message()), HasSubstr(rank == 0 ? "rank 1" : "rank 0"));
  });
}

TEST(HostTransportTest, MissingSharedMemoryIsNotedWithItsReason) {
  ThreadExchange exchange(2);
  std::vector<std::string> notes;
  RunRanks(2, [&](int32_t rank) {
    HostTransportOptions options = Options(rank, 2, 64);
    options.use_shared_memory = rank == 0;
    if (rank == 0) options.on_note = [&](std::string_view line) { notes.emplace_back(line); };
    EXPECT_TRUE(MakeHostTransport(options, exchange.ForRank(rank)).ok());
  });
  EXPECT_THAT(notes, ::testing::ElementsAre(
                         "rows to rank 1 go over the socket: one of us has no unix socket"));
}

TEST(HostTransportTest, OnlyTheNamedPeersAreConnected) {
  // Two lanes of two: no rank of the other lane is a peer.
  ThreadExchange exchange(4);
  Transports transports(4);
  RunRanks(4, [&](int32_t rank) {
    HostTransportOptions options = Options(rank, 4, 64);
    options.peers = {RankId{rank / 2 * 2}, RankId{rank / 2 * 2 + 1}};
    auto transport = MakeHostTransport(options, exchange.ForRank(rank));
    ASSERT_TRUE(transport.ok()) << transport.status();
    transports[rank] = *std::move(transport);
  });
  const std::vector<std::byte> row(64);
  const auto send_to = [&](int32_t to) {
    return transports[0]->Post(
        {.post_id = 1,
         .sends = {{.to = RankId{to}, .row = 0, .round = 0, .bytes = row, .staging_offset = 0}},
         .receives = {},
         .deadline = absl::InfiniteFuture()});
  };
  EXPECT_THAT(std::string(send_to(2).status().message()), HasSubstr("not a peer"));
  EXPECT_TRUE(send_to(1).ok());
}

TEST(HostTransportTest, StagingThatDoesNotFitTheHostIsAnError) {
  ThreadExchange exchange(1);
  EXPECT_EQ(MakeHostTransport(Options(0, 1, int64_t{1} << 60), exchange.ForRank(0)).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(HostAddressTest, TextSurvivesAndOtherTextIsRefused) {
  const HostAddress address{
      .tcp = "[::1]:77", .unix_name = "", .boot_id = "abc", .staging_bytes = 12};
  const auto again = HostAddress::Decode(address.Encode());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->Encode(), address.Encode());
  for (const char* text : {"", "eplb-rows-1", "eplb-rows-2\na\nb\nc\n1", "eplb-rows-1\na\nb\nc\n-1",
                           "eplb-rows-1\n\nb\nc\n1", "eplb-rows-1\na\nb\nc\n1\n2"}) {
    EXPECT_FALSE(HostAddress::Decode(text).ok()) << text;
  }
}

// Ranks as processes. The body runs in a child of fork() and returns whether all went well.
class ProcessesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto listener = ListenTcp("127.0.0.1", 0);
    ASSERT_TRUE(listener.ok());
    uint32_t port = 0;
    ASSERT_TRUE(
        absl::SimpleAtoi(listener->address.substr(listener->address.rfind(':') + 1), &port));
    port_ = static_cast<uint16_t>(port);
  }

  void RunProcesses(int32_t world_size, const std::function<bool(int32_t, const Exchange&)>& body) {
    std::vector<pid_t> children;
    for (int32_t rank = 0; rank < world_size; ++rank) {
      const pid_t child = fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        auto exchange = MakeTcpExchange({.rank = RankId{rank},
                                         .world_size = world_size,
                                         .port = port_,
                                         .timeout = absl::Seconds(30)});
        _exit(exchange.ok() && body(rank, *exchange) ? 0 : 1);
      }
      children.push_back(child);
    }
    for (size_t rank = 0; rank < children.size(); ++rank) {
      int result = -1;
      ASSERT_EQ(waitpid(children[rank], &result, 0), children[rank]);
      EXPECT_EQ(result, 0) << "rank " << rank;
    }
  }

  uint16_t port_ = 0;
};

constexpr int64_t kRingBytes = 1'000'000;

// A row from each rank to the next one.
RowMoves Ring(int32_t rank, int32_t world_size, std::span<const std::byte> row) {
  return {.post_id = 1,
          .sends = {{.to = RankId{(rank + 1) % world_size},
                     .row = 0,
                     .round = 0,
                     .bytes = row,
                     .staging_offset = 0}},
          .receives = {{.from = RankId{(rank + world_size - 1) % world_size},
                        .row = 0,
                        .round = 0,
                        .staging_offset = 0,
                        .num_bytes = kRingBytes}},
          .deadline = absl::Now() + absl::Seconds(30)};
}

TEST_F(ProcessesTest, RowsGoRoundARingOfProcessesThroughSharedMemory) {
  RunProcesses(3, [](int32_t rank, const Exchange& exchange) {
    HostTransportOptions options = Options(rank, 3, kRingBytes);
    bool noted = false;
    options.on_note = [&](std::string_view) { noted = true; };
    auto transport = MakeHostTransport(options, exchange);
    if (!transport.ok() || noted) return false;
    const std::vector<std::byte> row(kRingBytes, static_cast<std::byte>(rank + 1));
    const auto ticket = (*transport)->Post(Ring(rank, 3, row));
    absl::StatusOr<Progress> result = Progress{};
    while (result.ok() && !result->done) result = (*transport)->Poll(*ticket, absl::Seconds(1));
    const auto expected = static_cast<std::byte>((rank + 2) % 3 + 1);
    return result.ok() &&
           std::ranges::all_of((*transport)->staging(), [&](auto b) { return b == expected; });
  });
}

TEST_F(ProcessesTest, KilledProcessIsNamedByTheOthers) {
  RunProcesses(3, [](int32_t rank, const Exchange& exchange) {
    auto transport = MakeHostTransport(Options(rank, 3, kRingBytes), exchange);
    if (!transport.ok()) return false;
    if (rank == 2) return true;  // leaves without a word, as _exit runs no destructor
    const std::vector<std::byte> row(kRingBytes, std::byte{1});
    const auto ticket = (*transport)->Post(Ring(rank, 3, row));
    if (absl::IsFailedPrecondition(ticket.status())) return true;  // it was gone before the post
    absl::StatusOr<Progress> result = Progress{};
    while (result.ok() && !result->done) result = (*transport)->Poll(*ticket, absl::Seconds(1));
    return absl::IsUnavailable(result.status()) || absl::IsAborted(result.status());
  });
}

TEST_F(ProcessesTest, ForkedCopyIsRefusedAndDoesNotDisturb) {
  Transports transports = MakeShared(2, 64);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool refused = absl::IsFailedPrecondition(
        transports[0]
            ->Post({.post_id = 1, .sends = {}, .receives = {}, .deadline = absl::InfiniteFuture()})
            .status());
    transports.clear();
    _exit(refused ? 0 : 1);
  }
  int result = -1;
  ASSERT_EQ(waitpid(child, &result, 0), child);
  EXPECT_EQ(result, 0);
  const std::vector<std::byte> row(64, std::byte{3});
  const Ticket receive = MustPost(
      *transports[0],
      {.post_id = 1,
       .sends = {},
       .receives =
           {{.from = RankId{1}, .row = 0, .round = 0, .staging_offset = 0, .num_bytes = 64}},
       .deadline = absl::Now() + absl::Seconds(30)});
  const Ticket send = MustPost(
      *transports[1],
      {.post_id = 1,
       .sends = {{.to = RankId{0}, .row = 0, .round = 0, .bytes = row, .staging_offset = 0}},
       .receives = {},
       .deadline = absl::Now() + absl::Seconds(30)});
  for (const auto& progress : Drive(transports, {receive, send})) EXPECT_TRUE(progress.ok());
}

}  // namespace
}  // namespace eplb
