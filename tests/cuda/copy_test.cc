#include "cuda/copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace eplb::cuda {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

TEST(CopyRowsOnHostTest, ARefusedBatchCopiesNothing) {
  const std::vector<std::byte> source(4, std::byte{1});
  std::vector<std::byte> destination(4);
  std::vector<uint64_t> checksums(3);
  const std::vector<RowCopy> rows{{source.data(), destination.data(), 4},
                                  {source.data(), destination.data(), -1}};
  EXPECT_THAT(CopyRowsOnHost(rows, std::span(checksums).first(2)).message(),
              HasSubstr("row 1 of the copy has -1 bytes"));
  EXPECT_THAT(CopyRowsOnHost(std::span(rows).first(1), checksums).message(),
              HasSubstr("copy of 1 rows has room for 3 checksums"));
  EXPECT_THAT(destination, Each(std::byte{0}));
}

TEST(CheckRowCopiesTest, RefusalNamesRowAndNumber) {
  const std::byte byte{};
  EXPECT_TRUE(CheckRowCopies({}).ok());
  EXPECT_TRUE(CheckRowCopies(std::vector<RowCopy>{{nullptr, nullptr, 0}}).ok());
  EXPECT_TRUE(CheckRowCopies(std::vector<RowCopy>{{&byte, nullptr, 1}}).ok());
  EXPECT_THAT(CheckRowCopies(std::vector<RowCopy>{{}, {nullptr, nullptr, 5}}).message(),
              HasSubstr("row 1 of the copy has 5 bytes and no source"));
}

TEST(TileRowsTest, EveryRowHasATileAndEveryTileItsRow) {
  const std::vector<RowCopy> rows{{nullptr, nullptr, 0},
                                  {nullptr, nullptr, 3 * kCopyTileBytes + 1},
                                  {nullptr, nullptr, 0},
                                  {nullptr, nullptr, 1},
                                  {nullptr, nullptr, kCopyTileBytes}};
  std::vector<TiledRow> table(rows.size());
  ASSERT_EQ(TileRows(rows, table), 1 + 4 + 1 + 1 + 1);
  std::vector<int32_t> row_of_tile(8);
  for (size_t tile = 0; tile < row_of_tile.size(); ++tile) {
    row_of_tile[tile] = RowOfTile(table.data(), 5, static_cast<int64_t>(tile));
  }
  EXPECT_THAT(row_of_tile, ::testing::ElementsAre(0, 1, 1, 1, 1, 2, 3, 4));
  EXPECT_EQ(TileRows({}, {}), 0);
}

TEST(ChooseCopyGridTest, ABlockATileUpToFourAMultiprocessor) {
  EXPECT_EQ(ChooseCopyGrid(0, 132, 0).blocks, 0);
  EXPECT_EQ(ChooseCopyGrid(1, 132, 0).blocks, 1);
  EXPECT_EQ(ChooseCopyGrid(528, 132, 0).blocks, 528);
  EXPECT_EQ(ChooseCopyGrid(int64_t{1} << 40, 132, 0).blocks, 528);
  EXPECT_EQ(ChooseCopyGrid(1, 132, 0).threads % 32, 0) << "the block's sum needs whole warps";
}

TEST(ChooseCopyGridTest, TheCallerMayCapTheBlocks) {
  EXPECT_EQ(ChooseCopyGrid(1000, 132, 16).blocks, 16);
  EXPECT_EQ(ChooseCopyGrid(3, 132, 16).blocks, 3);
  EXPECT_EQ(ChooseCopyGrid(1000, 132, 100000).blocks, 528);
}

}  // namespace
}  // namespace eplb::cuda
