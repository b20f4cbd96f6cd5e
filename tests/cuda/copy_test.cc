#include "cuda/copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/cuda/copy_case.h"

namespace eplb::cuda {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

template <class Index>
std::vector<Index> Shuffled(Index size, std::mt19937_64& random) {
  std::vector<Index> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

// The kernel's loop for one block, its threads in random order; the barrier of the block's sum is
// the end of the inner loop.
template <bool kChecksum>
void RunBlock(const CopyArgs& args, const CopyGrid& grid, int32_t block, std::mt19937_64& random) {
  for (int64_t tile = block; tile < args.num_tiles; tile += grid.blocks) {
    const int32_t index = RowOfTile(args.rows, args.num_rows, tile);
    const TiledRow& row = args.rows[index];
    uint64_t sum = 0;
    for (const int32_t thread : Shuffled(grid.threads, random)) {
      sum += CopyTilePart<kChecksum>(row.copy, tile - row.first_tile, thread, grid.threads);
    }
    if constexpr (kChecksum) {
      std::atomic_ref(args.checksums[index]).fetch_add(sum, std::memory_order_relaxed);
    } else {
      EXPECT_EQ(sum, 0U);
    }
  }
}

// A case's own copy of the destinations, and the arguments over it.
class CopyRun {
 public:
  explicit CopyRun(const testing::CopyCase& copy_case)
      : destinations_(copy_case.destinations),
        table_(copy_case.rows.size()),
        checksums_(copy_case.rows.size()) {
    rows_ = copy_case.At(copy_case.sources.data(), destinations_.data());
    args_ = {.rows = table_.data(),
             .num_rows = static_cast<int32_t>(rows_.size()),
             .num_tiles = TileRows(rows_, table_),
             .checksums = checksums_.data()};
  }

  const CopyArgs& args() const { return args_; }
  const std::vector<RowCopy>& rows() const { return rows_; }
  std::vector<uint64_t>& checksums() { return checksums_; }

  void ExpectCopied(const testing::CopyCase& copy_case) const {
    EXPECT_TRUE(testing::SameBytes(destinations_, copy_case.ExpectedDestinations()));
  }

 private:
  std::vector<std::byte> destinations_;
  std::vector<RowCopy> rows_;
  std::vector<TiledRow> table_;
  std::vector<uint64_t> checksums_;
  CopyArgs args_;
};

TEST(CopyBodyTest, AnyGridInAnyOrderCopiesAndSumsAsTheHostDoes) {
  constexpr uint64_t kSeed = 200;
  const testing::CopyCase copy_case = testing::MakeCopyCase(kSeed);
  std::mt19937_64 random(kSeed);
  for (const CopyGrid& grid : {CopyGrid{1, 1}, CopyGrid{1, 96}, CopyGrid{7, 256}}) {
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, " grid ", grid.blocks, " x ", grid.threads));
    CopyRun run(copy_case);
    for (const int32_t block : Shuffled(grid.blocks, random)) {
      RunBlock<true>(run.args(), grid, block, random);
    }
    run.ExpectCopied(copy_case);
    EXPECT_EQ(run.checksums(), copy_case.ExpectedChecksums());
  }
}

TEST(CopyBodyTest, WithoutChecksumsItOnlyCopies) {
  constexpr uint64_t kSeed = 201;
  const testing::CopyCase copy_case = testing::MakeCopyCase(kSeed);
  std::mt19937_64 random(kSeed);
  CopyRun run(copy_case);
  for (const int32_t block : Shuffled(3, random)) {
    RunBlock<false>(run.args(), {3, 256}, block, random);
  }
  run.ExpectCopied(copy_case);
  EXPECT_THAT(run.checksums(), Each(0U));
}

TEST(CopyBodyTest, BlocksMayRunAtOnce) {
  constexpr uint64_t kSeed = 202;
  constexpr CopyGrid kGrid{.blocks = 6, .threads = 128};
  const testing::CopyCase copy_case = testing::MakeCopyCase(kSeed);
  CopyRun run(copy_case);
  std::vector<std::thread> blocks;
  blocks.reserve(kGrid.blocks);
  for (int32_t block = 0; block < kGrid.blocks; ++block) {
    blocks.emplace_back([&run, kGrid, block] {
      std::mt19937_64 random(kSeed + static_cast<uint64_t>(block));
      RunBlock<true>(run.args(), kGrid, block, random);
    });
  }
  for (std::thread& block : blocks) block.join();
  run.ExpectCopied(copy_case);
  EXPECT_EQ(run.checksums(), copy_case.ExpectedChecksums()) << "seed " << kSeed;
}

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
