#include "client/rows/paths/nccl_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

namespace eplb {

namespace {

using ::testing::HasSubstr;

const std::byte kMemory[1 << 20] = {};

RowSend Send(int32_t to, int32_t row, int32_t round, int64_t bytes, int64_t offset) {
  return {.to = RankId{to},
          .row = row,
          .round = round,
          .bytes = std::span(kMemory, static_cast<size_t>(bytes)),
          .staging_offset = offset};
}
RowReceive Receive(int32_t from, int32_t row, int32_t round, int64_t bytes, int64_t offset) {
  return {.from = RankId{from},
          .row = row,
          .round = round,
          .staging_offset = offset,
          .num_bytes = bytes};
}
RowMoves Moves(std::vector<RowSend> sends, std::vector<RowReceive> receives) {
  return {.post_id = 1, .sends = std::move(sends), .receives = std::move(receives)};
}

TEST(NcclGroupsTest, NothingToMoveIsNoGroup) {
  EXPECT_TRUE(CutIntoGroups({}, 64)->empty());
  EXPECT_TRUE(CutIntoGroups(Moves({Send(1, 0, 0, 0, 0)}, {}), 64)->empty()) << "a row of no bytes";
}

TEST(NcclGroupsTest, RowsThatFollowEachOtherInStagingAreOnePiece) {
  const auto groups =
      *CutIntoGroups(Moves({Send(1, 0, 0, 100, 0), Send(1, 1, 0, 30, 128), Send(1, 2, 0, 64, 320)},
                           {Receive(2, 0, 0, 64, 64)}),
                     1024);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].send->num_bytes, 158) << "two rows and what lies between them";
  EXPECT_EQ(groups[0].send->fragments[1].at, 128);
  EXPECT_EQ(groups[0].receive->peer, RankId{2});
  EXPECT_EQ(groups[1].send->staging_offset, 320) << "behind a gap begins another piece";
  EXPECT_FALSE(groups[1].receive.has_value());
}

TEST(NcclGroupsTest, ALongRowIsCut) {
  const auto groups = *CutIntoGroups(Moves({}, {Receive(2, 5, 3, 200, 64)}), 128);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].round, 3);
  EXPECT_EQ(groups[0].receive->num_bytes, 128);
  EXPECT_EQ(groups[1].receive->num_bytes, 72);
  EXPECT_EQ(groups[1].receive->staging_offset, 64 + 128);
  EXPECT_EQ(groups[1].receive->fragments[0].offset, 128);
}

TEST(NcclGroupsTest, RoundsOfTwoPeersAndCrookedOffsetsAreRefused) {
  const auto error = [](const RowMoves& moves) {
    return std::string(CutIntoGroups(moves, 64).status().message());
  };
  EXPECT_THAT(error(Moves({Send(1, 0, 2, 9, 0), Send(3, 1, 2, 9, 64)}, {})),
              HasSubstr("round 2 sends to ranks 1 and 3"));
  EXPECT_THAT(error(Moves({}, {Receive(1, 0, 0, 9, 0), Receive(3, 1, 0, 9, 64)})),
              HasSubstr("round 0 receives from ranks 1 and 3"));
  EXPECT_THAT(error(Moves({Send(1, 7, 0, 9, 8)}, {})), HasSubstr("row 7"));
}

// Both ends of every transfer have the same pieces at the same (round, k), and every byte of every
// row is in exactly one of them.
TEST(NcclGroupsTest, TheEndsAgreeAndEveryByteGoesOnce) {
  std::mt19937 random(17);
  for (int32_t trial = 0; trial < 300; ++trial) {
    SCOPED_TRACE(trial);
    constexpr int32_t kRanks = 5;
    std::vector<RowMoves> moves(kRanks);
    std::vector<int64_t> used(kRanks, 0);
    const int64_t piece_bytes = 64 << random() % 6;
    for (int32_t round = 0; round < 4; ++round) {
      const auto shift = static_cast<int32_t>(1 + random() % (kRanks - 1));
      for (int32_t from = 0; from < kRanks; ++from) {
        const int32_t to = (from + shift) % kRanks;
        for (auto rows = static_cast<int32_t>(random() % 4); rows > 0; --rows) {
          const auto bytes = static_cast<int64_t>(random() % 700);
          const auto row = static_cast<int32_t>(moves[to].receives.size());
          moves[from].sends.push_back(Send(to, row, round, bytes, used[to]));
          moves[to].receives.push_back(Receive(from, row, round, bytes, used[to]));
          used[to] += (bytes + 63) / 64 * 64 + (random() % 3 == 0 ? 64 : 0);
        }
      }
    }
    // (sender, receiver, round) -> pieces as (k, offset, bytes)
    using Pieces = std::map<std::tuple<int32_t, int32_t, int32_t>,
                            std::vector<std::tuple<int32_t, int64_t, int64_t>>>;
    Pieces sent;
    Pieces received;
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      const auto groups = *CutIntoGroups(moves[rank], piece_bytes);
      std::map<int32_t, int32_t> next;
      std::vector<int64_t> covered(moves[rank].sends.size(), 0);
      for (const NcclGroup& group : groups) {
        const int32_t k = next[group.round]++;
        EXPECT_TRUE(group.send.has_value() || group.receive.has_value());
        if (group.send.has_value()) {
          EXPECT_LE(group.send->num_bytes, piece_bytes);
          sent[{rank, group.send->peer.value, group.round}].emplace_back(
              k, group.send->staging_offset, group.send->num_bytes);
          for (const RowFragment& part : group.send->fragments) {
            EXPECT_EQ(covered[part.index], part.offset);
            covered[part.index] += part.num_bytes;
          }
        }
        if (group.receive.has_value()) {
          received[{group.receive->peer.value, rank, group.round}].emplace_back(
              k, group.receive->staging_offset, group.receive->num_bytes);
        }
      }
      for (size_t i = 0; i < covered.size(); ++i) {
        EXPECT_EQ(covered[i], static_cast<int64_t>(moves[rank].sends[i].bytes.size()));
      }
    }
    EXPECT_EQ(sent, received);
  }
}

TEST(AnnouncedPartsTest, APieceIsCoveredOnceAllItsPartsWereAnnounced) {
  const std::vector<RowReceive> receives = {
      {.from = RankId{2}, .row = 7, .round = 0, .staging_offset = 0, .num_bytes = 100},
      {.from = RankId{2}, .row = 8, .round = 0, .staging_offset = 128, .num_bytes = 30}};
  const NcclPiece piece{
      .peer = RankId{2},
      .num_bytes = 158,
      .fragments = {{.index = 0, .num_bytes = 100}, {.index = 1, .num_bytes = 30, .at = 128}}};
  AnnouncedParts parts;
  size_t num_seen = 0;
  parts.Add(RankId{2}, {.row = 8, .offset = 0, .bytes = 30, .checksum = 5});
  parts.Add(RankId{1}, {.row = 7, .offset = 0, .bytes = 100, .checksum = 6});
  EXPECT_FALSE(*parts.Covers(piece, receives, num_seen)) << "the same row of another rank";
  parts.Add(RankId{2}, {.row = 7, .offset = 0, .bytes = 100, .checksum = 7});
  EXPECT_TRUE(*parts.Covers(piece, receives, num_seen));
  EXPECT_EQ(num_seen, 2U);
  EXPECT_EQ(parts.ChecksumOf(receives[0], piece.fragments[0]), 7U);
  EXPECT_EQ(parts.ChecksumOf(receives[1], piece.fragments[1]), 5U);
  parts.Clear();
  num_seen = 0;
  EXPECT_FALSE(*parts.Covers(piece, receives, num_seen));
}

TEST(AnnouncedPartsTest, ARowThatIsCutOtherwiseIsBlamed) {
  const std::vector<RowReceive> receives = {{.from = RankId{2}, .row = 7, .num_bytes = 100}};
  const NcclPiece piece{.peer = RankId{2}, .num_bytes = 64, .fragments = {{.num_bytes = 64}}};
  AnnouncedParts parts;
  parts.Add(RankId{2}, {.row = 7, .offset = 0, .bytes = 100});
  size_t num_seen = 0;
  const absl::Status status = parts.Covers(piece, receives, num_seen).status();
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_EQ(status.message(), "rank 2: row 7: 100 bytes arrive at 0, expected 64");
}

}  // namespace

}  // namespace eplb
