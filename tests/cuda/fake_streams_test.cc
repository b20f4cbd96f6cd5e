// The stand-in for CUDA: what its streams do so that tests find what a GPU would find seldom.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

#include "cuda/copy.h"
#include "cuda/row_queue.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace eplb::cuda {
namespace {

using ::testing::Each;
using ::testing::Ne;
using ::testing::UnorderedElementsAre;
using ::testing::UnorderedElementsAreArray;

namespace fake = eplb::fake_cuda;

class FakeStreamsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fake::SetSeed(0);
    auto queue = MakeStreamRowQueue({});
    ASSERT_TRUE(queue.ok()) << queue.status();
    queue_ = *std::move(queue);
  }
  ~FakeStreamsTest() override { fake::SetSeed(0); }

  cudaStream_t stream() { return static_cast<cudaStream_t>(queue_->stream()); }
  RowBuffer Filled(int64_t num_bytes, int value) {
    auto buffer = queue_->Allocate(num_bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    EXPECT_EQ(cudaMemset(buffer->bytes.data(), value, buffer->bytes.size()), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return *std::move(buffer);
  }
  std::vector<uint8_t> Read(const RowBuffer& buffer) {
    std::vector<uint8_t> bytes(buffer.bytes.size());
    EXPECT_EQ(cudaMemcpyAsync(bytes.data(), buffer.bytes.data(), bytes.size(),
                              cudaMemcpyDeviceToHost, stream()),
              cudaSuccess);
    return bytes;
  }

  std::unique_ptr<RowQueue> queue_;
};

TEST_F(FakeStreamsTest, AResultThatIsReadTooEarlyIsWrongAlsoWhereItWasRightBefore) {
  const RowBuffer device = Filled(64, 3);
  auto pinned = queue_->AllocatePinned(64);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  std::ranges::fill(pinned->bytes, std::byte{3});
  std::vector<std::byte> before(64);
  for (int32_t round = 0; round < 2; ++round) {
    ASSERT_EQ(cudaMemcpyAsync(pinned->bytes.data(), device.bytes.data(), 64, cudaMemcpyDeviceToHost,
                              stream()),
              cudaSuccess);
    EXPECT_NE(std::memcmp(pinned->bytes.data(), before.data(), 64), 0) << "not what it was";
    std::ranges::copy(pinned->bytes, before.begin());
    EXPECT_THAT(std::vector(pinned->bytes.begin(), pinned->bytes.begin() + 8),
                Ne(std::vector(8, std::byte{3})));
    ASSERT_EQ(cudaStreamSynchronize(stream()), cudaSuccess);
    EXPECT_THAT(pinned->bytes, Each(std::byte{3}));
  }
}

TEST_F(FakeStreamsTest, OthersWriteWhileAKernelRuns) {
  constexpr int64_t kSize = 6 * kCopyTileBytes;
  const RowBuffer source = Filled(kSize, 1);
  const RowBuffer copy = Filled(kSize, 0);
  const RowBuffer sum = Filled(kSize, 0);
  auto writer = MakeStreamRowQueue({});
  ASSERT_TRUE(writer.ok()) << writer.status();
  const RowCopy rows[] = {{source.bytes.data(), copy.bytes.data(), kSize},
                          {source.bytes.data(), sum.bytes.data(), kSize}};
  ASSERT_TRUE(queue_->CopyUnsummed(std::span(rows, 1)).ok());
  ASSERT_TRUE(queue_->Add(std::span(rows + 1, 1), ElementType::kFloat32).ok());
  auto* const other = static_cast<cudaStream_t>((*writer)->stream());
  for (int32_t i = 0; i < 20; ++i) {
    ASSERT_EQ(cudaMemsetAsync(source.bytes.data(), i % 2 + 1, kSize, other), cudaSuccess);
  }
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const auto first_bytes_of_tiles = [&](const RowBuffer& buffer) {
    const std::vector<uint8_t> bytes = Read(buffer);
    std::set<uint8_t> firsts;
    for (size_t at = 0; at < bytes.size(); at += kCopyTileBytes) firsts.insert(bytes[at]);
    return firsts;
  };
  EXPECT_THAT(first_bytes_of_tiles(copy), UnorderedElementsAre(1, 2)) << "no writer came between";
  EXPECT_THAT(first_bytes_of_tiles(sum), UnorderedElementsAre(1, 2)) << "no writer came between";
}

TEST_F(FakeStreamsTest, TilesComeInAnyOrderWithASeed) {
  const std::vector<int64_t> rising = fake::DrawOrder(100);
  EXPECT_TRUE(std::ranges::is_sorted(rising));
  fake::SetSeed(5);
  const std::vector<int64_t> order = fake::DrawOrder(100);
  EXPECT_FALSE(std::ranges::is_sorted(order));
  EXPECT_THAT(order, UnorderedElementsAreArray(rising));
}

TEST_F(FakeStreamsTest, CallsAndBytesAreCountedByStream) {
  constexpr int64_t kSize = 100'000;
  const RowBuffer source = Filled(kSize, 1);
  const RowBuffer destination = Filled(kSize, 0);
  const RowCopy rows[] = {{source.bytes.data(), destination.bytes.data(), kSize},
                          {source.bytes.data(), nullptr, kSize}};
  const auto used = [&](const auto& add) {
    const fake::Usage before = fake::UsageOf(stream());
    EXPECT_TRUE(add().ok());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const fake::Usage after = fake::UsageOf(stream());
    return fake::Usage{.num_enqueued = after.num_enqueued - before.num_enqueued,
                       .read_bytes = after.read_bytes - before.read_bytes,
                       .written_bytes = after.written_bytes - before.written_bytes};
  };
  constexpr int64_t kTable = 2 * int64_t{sizeof(TiledRow)};
  constexpr int64_t kSums = 2 * int64_t{sizeof(uint64_t)};
  const fake::Usage summed = used([&] { return queue_->Copy(rows); });
  EXPECT_EQ(summed.num_enqueued, 4) << "table, kernel, checksums, event";
  EXPECT_EQ(summed.read_bytes, 2 * kSize + kSums);
  EXPECT_EQ(summed.written_bytes, kSize + kTable + kSums);
  const fake::Usage unsummed = used([&] { return queue_->CopyUnsummed(rows); });
  EXPECT_EQ(unsummed.num_enqueued, 3);
  EXPECT_EQ(unsummed.read_bytes, 2 * kSize);
  EXPECT_EQ(unsummed.written_bytes, kSize + kTable);
  const fake::Usage moved = used([&] { return queue_->Transfer(std::span(rows, 1)); });
  EXPECT_EQ(moved.num_enqueued, 2);
  EXPECT_EQ(moved.read_bytes, kSize);
  EXPECT_EQ(moved.written_bytes, kSize);
}

}  // namespace
}  // namespace eplb::cuda
