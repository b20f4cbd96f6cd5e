#include "cuda/copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/cuda/copy_case.h"

namespace eplb::cuda {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// A case's own copy of the destinations, and the rows over it.
class CopyRun {
 public:
  explicit CopyRun(const testing::CopyCase& copy_case)
      : destinations_(copy_case.destinations), checksums_(copy_case.rows.size()) {
    rows_ = copy_case.At(copy_case.sources.data(), destinations_.data());
  }

  const std::vector<RowCopy>& rows() const { return rows_; }
  std::vector<uint64_t>& checksums() { return checksums_; }

  void ExpectCopied(const testing::CopyCase& copy_case) const {
    EXPECT_TRUE(testing::SameBytes(destinations_, copy_case.ExpectedDestinations()));
  }

 private:
  std::vector<std::byte> destinations_;
  std::vector<RowCopy> rows_;
  std::vector<uint64_t> checksums_;
};

TEST(CopyRowsOnHostTest, CopiesAndSums) {
  constexpr uint64_t kSeed = 203;
  const testing::CopyCase copy_case = testing::MakeCopyCase(kSeed);
  CopyRun run(copy_case);
  ASSERT_TRUE(CopyRowsOnHost(run.rows(), run.checksums()).ok());
  run.ExpectCopied(copy_case);
  EXPECT_EQ(run.checksums(), copy_case.ExpectedChecksums()) << "seed " << kSeed;
}

TEST(CopyRowsOnHostTest, NoChecksumsAndNoRowsAreRight) {
  constexpr uint64_t kSeed = 204;
  const testing::CopyCase copy_case = testing::MakeCopyCase(kSeed);
  CopyRun run(copy_case);
  ASSERT_TRUE(CopyRowsOnHost(run.rows(), {}).ok());
  run.ExpectCopied(copy_case);
  EXPECT_TRUE(CopyRowsOnHost({}, {}).ok());
}

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

TEST(CheckCopyArgsTest, RefusalNamesTheNumber) {
  const TiledRow row;
  EXPECT_TRUE(CheckCopyArgs({}).ok());
  EXPECT_TRUE(CheckCopyArgs({.rows = &row, .num_rows = 1, .num_tiles = 1}).ok());
  EXPECT_THAT(CheckCopyArgs({.rows = &row, .num_rows = -1}).message(), HasSubstr("-1 rows"));
  EXPECT_THAT(CheckCopyArgs({.rows = &row, .num_rows = 2, .num_tiles = 1}).message(),
              HasSubstr("2 rows in 1 tiles"));
  EXPECT_THAT(CheckCopyArgs({.num_rows = 1, .num_tiles = 1}).message(), HasSubstr("it is null"));
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
