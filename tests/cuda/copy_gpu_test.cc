#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "cuda/copy.h"
#include "cuda/runtime.h"
#include "tests/cuda/copy_case.h"
#include "tests/cuda/on_device.h"
#include "tests/cuda/require_gpu.h"

namespace eplb::cuda {
namespace {

using testing::OnDevice;

std::vector<TiledRow> TableOf(const std::vector<RowCopy>& rows, int64_t& num_tiles) {
  std::vector<TiledRow> table(rows.size());
  num_tiles = TileRows(rows, table);
  return table;
}

// A case's arenas and table on the device.
class CopyOnDevice {
 public:
  explicit CopyOnDevice(const testing::CopyCase& copy_case)
      : sources_(copy_case.sources),
        destinations_(copy_case.destinations),
        table_(TableOf(copy_case.At(sources_.data(), destinations_.data()), num_tiles_)),
        checksums_(std::vector<uint64_t>(copy_case.rows.size(), 99)),
        args_{.rows = table_.data(),
              .num_rows = static_cast<int32_t>(copy_case.rows.size()),
              .num_tiles = num_tiles_,
              .checksums = checksums_.data()} {}

  const CopyArgs& args() const { return args_; }
  std::vector<uint64_t> Checksums() const { return checksums_.Read(); }
  std::vector<std::byte> Destinations() const { return destinations_.Read(); }

 private:
  int64_t num_tiles_ = 0;
  OnDevice<std::byte> sources_;
  OnDevice<std::byte> destinations_;
  OnDevice<TiledRow> table_;
  OnDevice<uint64_t> checksums_;
  CopyArgs args_;
};

class LaunchCopyRowsTest : public testing::StreamTest<> {};

TEST_F(LaunchCopyRowsTest, CopiesAndSumsAsTheHostDoesOnAnyGrid) {
  constexpr uint64_t kSeed = 210;
  const testing::CopyCase copy_case = testing::MakeCopyCase(kSeed, testing::kLargeRow);
  for (const int32_t max_blocks : {0, 1, 3, 64}) {
    const CopyOnDevice on_device(copy_case);
    const absl::Status launched = LaunchCopyRows(on_device.args(), max_blocks, stream_.get());
    ASSERT_TRUE(launched.ok()) << launched;
    Synchronize();
    EXPECT_EQ(on_device.Checksums(), copy_case.ExpectedChecksums()) << "seed " << kSeed;
    EXPECT_TRUE(testing::SameBytes(on_device.Destinations(), copy_case.ExpectedDestinations()));
  }
}

TEST_F(LaunchCopyRowsTest, WithoutChecksumsItOnlyCopies) {
  constexpr uint64_t kSeed = 211;
  const testing::CopyCase copy_case = testing::MakeCopyCase(kSeed, testing::kLargeRow);
  const CopyOnDevice on_device(copy_case);
  CopyArgs args = on_device.args();
  args.checksums = nullptr;
  ASSERT_TRUE(LaunchCopyRows(args, 0, stream_.get()).ok());
  Synchronize();
  EXPECT_TRUE(testing::SameBytes(on_device.Destinations(), copy_case.ExpectedDestinations()));
  EXPECT_EQ(on_device.Checksums(), std::vector<uint64_t>(copy_case.rows.size(), 99));
}

TEST_F(LaunchCopyRowsTest, RowsWithoutDestinationAreSummedAndNothingIsWritten) {
  constexpr uint64_t kSeed = 212;
  testing::CopyCase copy_case = testing::MakeCopyCase(kSeed, testing::kLargeRow);
  for (testing::CopyCase::Row& row : copy_case.rows) {
    row.destination = testing::CopyCase::kNoDestination;
  }
  const CopyOnDevice on_device(copy_case);
  ASSERT_TRUE(LaunchCopyRows(on_device.args(), 0, stream_.get()).ok());
  Synchronize();
  EXPECT_EQ(on_device.Checksums(), copy_case.ExpectedChecksums()) << "seed " << kSeed;
  EXPECT_TRUE(testing::SameBytes(on_device.Destinations(), copy_case.destinations));
}

TEST_F(LaunchCopyRowsTest, ACapturedGraphCopiesAtEachLaunch) {
  constexpr uint64_t kSeed = 213;
  const testing::CopyCase copy_case = testing::MakeCopyCase(kSeed, testing::kLargeRow);
  const CopyOnDevice on_device(copy_case);
  const testing::GraphExec graph = testing::Capture(stream_.get(), [&](cudaStream_t stream) {
    return LaunchCopyRows(on_device.args(), 0, stream);
  });
  EXPECT_TRUE(testing::SameBytes(on_device.Destinations(), copy_case.destinations));
  for (int i = 0; i < 2; ++i) ASSERT_EQ(cudaGraphLaunch(graph.get(), stream_.get()), cudaSuccess);
  Synchronize();
  EXPECT_TRUE(testing::SameBytes(on_device.Destinations(), copy_case.ExpectedDestinations()));
  EXPECT_EQ(on_device.Checksums(), copy_case.ExpectedChecksums()) << "set, not added to";
}

TEST_F(LaunchCopyRowsTest, NoRowsLaunchNothingAndBadSizesAreRefused) {
  EXPECT_TRUE(LaunchCopyRows({}, 0, stream_.get()).ok());
}

}  // namespace
}  // namespace eplb::cuda
