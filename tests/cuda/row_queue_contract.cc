#include "tests/cuda/row_queue_contract.h"

#include <gmock/gmock.h>

#include <random>
#include <thread>

#include "absl/time/clock.h"

#include "cuda/checksum.h"
#include "tests/cuda/copy_case.h"
#include "tests/cuda/gpu_is_required.h"
#include "tests/cuda/gradient_case.h"

namespace eplb::cuda {

using ::testing::IsEmpty;
using ::testing::SizeIs;

void RowQueueContractTest::SetUp() {
  absl::StatusOr<std::unique_ptr<RowQueue>> made = GetParam()();
  if (made.status().code() == absl::StatusCode::kFailedPrecondition && !testing::GpuIsRequired()) {
    GTEST_SKIP() << made.status();
  }
  ASSERT_TRUE(made.ok()) << made.status();
  queue_ = *std::move(made);
}

RowBuffer RowQueueContractTest::Put(std::span<const std::byte> bytes) {
  auto buffer = queue().Allocate(static_cast<int64_t>(bytes.size()));
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  const RowCopy row{.source = bytes.data(),
                    .destination = buffer->bytes.data(),
                    .num_bytes = static_cast<int64_t>(bytes.size())};
  const auto batch = queue().Transfer({&row, 1});
  EXPECT_TRUE(batch.ok()) << batch.status();
  WaitFor(*batch);
  return *std::move(buffer);
}

std::vector<std::byte> RowQueueContractTest::Get(const std::byte* address, size_t num_bytes) {
  std::vector<std::byte> bytes(num_bytes);
  const RowCopy row{
      .source = address, .destination = bytes.data(), .num_bytes = static_cast<int64_t>(num_bytes)};
  const auto batch = queue().Transfer({&row, 1});
  EXPECT_TRUE(batch.ok()) << batch.status();
  WaitFor(*batch);
  return bytes;
}

void RowQueueContractTest::WaitFor(int64_t batch) {
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  while (true) {
    const absl::StatusOr<bool> ended = queue().Ended(batch);
    ASSERT_TRUE(ended.ok()) << ended.status();
    if (*ended) return;
    ASSERT_LT(absl::Now(), deadline) << "batch " << batch << " has not ended";
    std::this_thread::yield();
  }
}

int64_t RowQueueContractTest::MustCopy(std::span<const RowCopy> rows) {
  const absl::StatusOr<int64_t> batch = queue().Copy(rows);
  EXPECT_TRUE(batch.ok()) << batch.status();
  return batch.value_or(-1);
}

namespace {

TEST_P(RowQueueContractTest, MemoryIsAlignedAndOfTheSizeAsked) {
  for (const int64_t size : {0, 1, 63, 64, 4097}) {
    const auto buffer = queue().Allocate(size);
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    EXPECT_EQ(buffer->bytes.size(), static_cast<size_t>(size));
    EXPECT_TRUE(IsAligned(buffer->bytes.data(), 64)) << size;
  }
  EXPECT_EQ(queue().Allocate(-1).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(RowQueueContractTest, CopyMovesRowsOfAnySizeAndAlignmentAndSumsThem) {
  constexpr uint64_t kSeed = 300;
  const testing::CopyCase copy_case = testing::MakeCopyCase(kSeed);
  const RowBuffer sources = Put(copy_case.sources);
  const RowBuffer destinations = Put(copy_case.destinations);
  const int64_t batch = MustCopy(copy_case.At(sources.bytes.data(), destinations.bytes.data()));
  WaitFor(batch);
  EXPECT_EQ(queue().TakeChecksums(batch), copy_case.ExpectedChecksums()) << "seed " << kSeed;
  EXPECT_TRUE(testing::SameBytes(Get(destinations.bytes.data(), destinations.bytes.size()),
                                 copy_case.ExpectedDestinations()));
}

TEST_P(RowQueueContractTest, CopyUnsummedMovesRowsAndHasNothingToTake) {
  constexpr uint64_t kSeed = 304;
  const testing::CopyCase copy_case = testing::MakeCopyCase(kSeed);
  const RowBuffer sources = Put(copy_case.sources);
  const RowBuffer destinations = Put(copy_case.destinations);
  const auto batch =
      queue().CopyUnsummed(copy_case.At(sources.bytes.data(), destinations.bytes.data()));
  ASSERT_TRUE(batch.ok()) << batch.status();
  WaitFor(*batch);
  EXPECT_THAT(queue().TakeChecksums(*batch), IsEmpty());
  EXPECT_TRUE(testing::SameBytes(Get(destinations.bytes.data(), destinations.bytes.size()),
                                 copy_case.ExpectedDestinations()));
  // It holds no room once it has ended.
  for (int32_t i = 0; i < 2 * RowQueue::kMaxBatches; ++i) {
    const auto next = queue().CopyUnsummed(std::vector<RowCopy>(3));
    ASSERT_TRUE(next.ok()) << next.status();
    WaitFor(*next);
  }
  EXPECT_EQ(queue().CopyUnsummed(std::vector<RowCopy>(1, {.num_bytes = -1})).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(queue().CopyUnsummed(std::vector<RowCopy>(RowQueue::kMaxRows + 1)).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_P(RowQueueContractTest, BatchesRunAndEndInTheOrderTheyWereAdded) {
  constexpr uint64_t kSeed = 301;
  constexpr int64_t kSize = 1 << 20;
  std::mt19937_64 random(kSeed);
  std::vector<RowBuffer> chain;
  chain.push_back(Put(testing::RandomBytes(kSize, random)));
  std::vector<int64_t> batches;
  for (int32_t i = 0; i < 20; ++i) {
    chain.push_back(Put(testing::RandomBytes(kSize, random)));
  }
  for (size_t i = 1; i < chain.size(); ++i) {
    const RowCopy row{chain[i - 1].bytes.data(), chain[i].bytes.data(), kSize};
    const auto batch = i % 3 == 0 ? queue().Transfer({&row, 1}) : queue().Copy({&row, 1});
    ASSERT_TRUE(batch.ok()) << batch.status();
    batches.push_back(*batch);
  }
  for (size_t i = batches.size(); i-- > 1;) {
    ASSERT_LT(batches[i - 1], batches[i]);
    const auto later = queue().Ended(batches[i]);
    const auto earlier = queue().Ended(batches[i - 1]);
    ASSERT_TRUE(later.ok() && earlier.ok());
    ASSERT_LE(*later, *earlier);
  }
  EXPECT_TRUE(testing::SameBytes(Get(chain.back().bytes.data(), kSize),
                                 Get(chain.front().bytes.data(), kSize)));
}

TEST_P(RowQueueContractTest, RowTablesAreTheCallersAgainAfterCopy) {
  const std::vector<std::byte> bytes(1000, std::byte{7});
  const RowBuffer source = Put(bytes);
  const RowBuffer destination = Put(std::vector<std::byte>(1000));
  std::vector<RowCopy> rows{{source.bytes.data(), destination.bytes.data(), 1000}};
  const int64_t batch = MustCopy(rows);
  rows.front() = {};
  WaitFor(batch);
  EXPECT_TRUE(testing::SameBytes(Get(destination.bytes.data(), 1000), bytes));
}

TEST_P(RowQueueContractTest, ABatchMayHaveMoreRowsThanALaunch) {
  constexpr uint64_t kSeed = 302;
  constexpr size_t kRows = 2500;  // rows of three launches
  constexpr size_t kSize = 24;
  std::mt19937_64 random(kSeed);
  const std::vector<std::byte> bytes = testing::RandomBytes(kRows * kSize, random);
  const RowBuffer source = Put(bytes);
  const RowBuffer destination = Put(std::vector<std::byte>(bytes.size()));
  std::vector<RowCopy> rows;
  std::vector<uint64_t> expected;
  for (size_t i = 0; i < kRows; ++i) {
    rows.push_back({&source.bytes[i * kSize], &destination.bytes[i * kSize], kSize});
    expected.push_back(ChecksumOnHost(std::span(bytes).subspan(i * kSize, kSize)));
  }
  const int64_t batch = MustCopy(rows);
  WaitFor(batch);
  EXPECT_EQ(queue().TakeChecksums(batch), expected);
  EXPECT_TRUE(testing::SameBytes(Get(destination.bytes.data(), bytes.size()), bytes));
}

TEST_P(RowQueueContractTest, AddAndSquareWorkOnRowsOfEveryTypeAfterWhatWasAddedBefore) {
  constexpr uint64_t kSeed = 303;
  for (const ElementType type : testing::kElementTypes) {
    const testing::GradientCase gradients = testing::MakeGradientCase(type, kSeed);
    const RowBuffer sources = Put(std::vector<std::byte>(gradients.sources.size()));
    const RowBuffer arrived = Put(gradients.sources);
    const RowBuffer destinations = Put(gradients.destinations);
    const auto rows = gradients.At(sources.bytes.data(), destinations.bytes.data());
    const int64_t before = MustCopy(std::vector<RowCopy>{
        {arrived.bytes.data(), sources.bytes.data(), std::ssize(gradients.sources)}});
    const auto added = queue().Add(rows, type);
    ASSERT_TRUE(added.ok()) << added.status();
    const auto squared = queue().Square(rows, type);
    ASSERT_TRUE(squared.ok()) << squared.status();
    WaitFor(*squared);
    EXPECT_THAT(queue().TakeChecksums(before), SizeIs(1));
    EXPECT_THAT(queue().TakeChecksums(*added), IsEmpty());
    EXPECT_EQ(queue().TakeSquares(*squared), gradients.squares) << "seed " << kSeed;
    EXPECT_TRUE(testing::SameBytes(Get(destinations.bytes.data(), destinations.bytes.size()),
                                   gradients.sums));
  }
}

TEST_P(RowQueueContractTest, AdditionsHoldNoRoomOnceTheyHaveEnded) {
  const RowBuffer ones = Put(std::vector<std::byte>(4));
  const std::vector<RowCopy> rows(
      5000, {.source = ones.bytes.data(), .destination = ones.bytes.data(), .num_bytes = 0});
  for (int32_t i = 0; i < 2 * RowQueue::kMaxBatches; ++i) {
    const auto batch = queue().Add(rows, ElementType::kFloat32);
    ASSERT_TRUE(batch.ok()) << batch.status();
    WaitFor(*batch);
  }
  EXPECT_EQ(queue()
                .Add(std::vector<RowCopy>{{ones.bytes.data(), ones.bytes.data(), 3}},
                     ElementType::kFloat16)
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(RowQueueContractTest, ChecksumsAreTakenOnce) {
  const std::vector<RowCopy> rows(3);
  const int64_t batch = MustCopy(rows);
  WaitFor(batch);
  EXPECT_THAT(queue().TakeChecksums(batch), SizeIs(3));
  EXPECT_THAT(queue().TakeChecksums(batch), IsEmpty());
  EXPECT_TRUE(*queue().Ended(batch)) << "it stays ended";
}

TEST_P(RowQueueContractTest, TransferMarkAndAnEmptyCopyEndWithoutChecksums) {
  // More than kMaxBatches: what has no checksums to take is under way only until it ends.
  for (int32_t i = 0; i < 3 * RowQueue::kMaxBatches; ++i) {
    const auto batch = i % 3 == 0   ? queue().Transfer({})
                       : i % 3 == 1 ? queue().Mark()
                                    : queue().Copy({});
    ASSERT_TRUE(batch.ok()) << batch.status();
    WaitFor(*batch);
    ASSERT_THAT(queue().TakeChecksums(*batch), IsEmpty());
  }
}

TEST_P(RowQueueContractTest, RefusesWhatIsNoRow) {
  std::byte byte{};
  EXPECT_EQ(queue().Copy(std::vector<RowCopy>{{&byte, &byte, -1}}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(queue().Transfer(std::vector<RowCopy>{{nullptr, &byte, 1}}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(queue().Ended(0).status().code(), absl::StatusCode::kInvalidArgument);
  const auto mark = queue().Mark();
  ASSERT_TRUE(mark.ok()) << mark.status();
  WaitFor(*mark);
  EXPECT_EQ(queue().Ended(*mark + 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(queue().Ended(-1).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(RowQueueContractTest, AFullQueueRefusesUntilChecksumsAreTaken) {
  const std::vector<RowCopy> one(1);
  const std::vector<RowCopy> rest(RowQueue::kMaxRows - (RowQueue::kMaxBatches - 2));
  std::vector<int64_t> batches;
  batches.reserve(RowQueue::kMaxBatches);
  for (int32_t i = 0; i < RowQueue::kMaxBatches - 2; ++i) batches.push_back(MustCopy(one));
  batches.push_back(MustCopy(rest));
  EXPECT_EQ(queue().Copy(one).status().code(), absl::StatusCode::kResourceExhausted) << "rows";
  WaitFor(batches[5]);
  EXPECT_THAT(queue().TakeChecksums(batches[5]), SizeIs(1));
  batches[5] = MustCopy(one);
  WaitFor(batches[7]);
  EXPECT_THAT(queue().TakeChecksums(batches[7]), SizeIs(1));
  batches[7] = MustCopy(one);
  for (const int64_t batch : batches) {
    WaitFor(batch);
    ASSERT_FALSE(queue().TakeChecksums(batch).empty());
  }
  batches.clear();
  for (int32_t i = 0; i < RowQueue::kMaxBatches; ++i) batches.push_back(MustCopy(one));
  EXPECT_EQ(queue().Copy(one).status().code(), absl::StatusCode::kResourceExhausted) << "batches";
  WaitFor(batches.back());
  EXPECT_EQ(queue().Mark().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(queue().TakeChecksums(batches.back()), SizeIs(1));
  MustCopy(one);
}

TEST_P(RowQueueContractTest, FollowsTheDefaultStreamAndLetsItFollow) {
  EXPECT_TRUE(queue().Follow(nullptr).ok());
  const int64_t batch = MustCopy(std::vector<RowCopy>(2));
  EXPECT_TRUE(queue().LetFollow(nullptr).ok());
  WaitFor(batch);
}

}  // namespace
}  // namespace eplb::cuda
