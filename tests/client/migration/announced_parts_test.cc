#include "client/migration/announced_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace eplb {
namespace {

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
  EXPECT_EQ(status.message(), "rank 2: row 7: 100 bytes come at 0, expected 64");
}

}  // namespace
}  // namespace eplb
