// State of a trainer's thread after calls of this library: its own device and context, and no
// further context. On the stand-in for CUDA, whose calls make contexts as CUDA's do.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <cuda.h>

#include "cuda/peer_arena.h"
#include "cuda/row_queue.h"
#include "cuda/runtime.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace eplb::cuda {
namespace {

namespace fake = eplb::fake_cuda;

constexpr int32_t kOurs = 1;
constexpr int kNone = -1;

// On a thread that has used no device, of a process that has used none.
void OnFreshThread(const std::function<void()>& body) {
  std::thread([&] {
    fake::ForgetContexts();
    body();
  }).join();
}

void UseOurs() {
  const auto guard = DeviceGuard::Make(kOurs);
  ASSERT_TRUE(guard.ok()) << guard.status();
  EXPECT_EQ(fake::CurrentDevice(), kOurs);
}

TEST(DeviceGuardTest, AThreadWithoutAContextHasNoneAfterwards) {
  OnFreshThread([] {
    UseOurs();
    EXPECT_EQ(fake::CurrentContext(), kNone) << "a framework would take our device for its own";
    EXPECT_FALSE(fake::HasContext(0));
  });
}

TEST(DeviceGuardTest, AThreadWithoutAContextKeepsItsDeviceWhereTheProcessUsesThat) {
  OnFreshThread([] {
    std::thread([] { EXPECT_EQ(cudaSetDevice(0), cudaSuccess); }).join();
    UseOurs();
    EXPECT_EQ(fake::CurrentContext(), kNone);
    EXPECT_EQ(fake::CurrentDevice(), 0);
  });
}

TEST(DeviceGuardTest, AThreadWithAContextHasItAgain) {
  OnFreshThread([] {
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    UseOurs();
    EXPECT_EQ(fake::CurrentContext(), 0);
    EXPECT_EQ(fake::CurrentDevice(), 0);
  });
}

TEST(DeviceGuardTest, ADeviceThatIsNotThereChangesNothing) {
  OnFreshThread([] {
    EXPECT_FALSE(DeviceGuard::Make(fake::kDevices).ok());
    EXPECT_EQ(fake::CurrentContext(), kNone);
  });
}

// Destroys it like a finaliser, which may run on any thread.
template <class Owner>
void ExpectThatItGoesQuietly(std::optional<Owner> owner) {
  OnFreshThread([&] {
    owner.reset();
    EXPECT_FALSE(fake::HasContext(0));
    EXPECT_EQ(fake::CurrentContext(), kNone);
  });
}

std::unique_ptr<RowQueue> MakeQueueOfOurs() {
  auto queue = MakeStreamRowQueue({.device = kOurs});
  EXPECT_TRUE(queue.ok()) << queue.status();
  return *std::move(queue);
}

TEST(ForeignThreadTest, AQueueGoesWithoutAContextOnAnotherDevice) {
  ExpectThatItGoesQuietly(std::optional(MakeQueueOfOurs()));
}

TEST(ForeignThreadTest, MemoryOfAQueueGoesWithoutAContextOnAnotherDevice) {
  const std::unique_ptr<RowQueue> queue = MakeQueueOfOurs();
  std::vector<std::byte> memory(100);
  for (const auto& make : std::vector<std::function<absl::StatusOr<RowBuffer>()>>{
           [&] { return queue->Allocate(100); }, [&] { return queue->AllocatePinned(100); },
           [&] { return queue->Pin(memory); }}) {
    absl::StatusOr<RowBuffer> buffer = make();
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    ExpectThatItGoesQuietly(std::optional(*std::move(buffer)));
  }
}

TEST(ForeignThreadTest, AnArenaGoesWithoutAContextOnAnotherDevice) {
  for (const PeerArenaKind kind : {PeerArenaKind::kBest, PeerArenaKind::kIpcHandle}) {
    auto arena = PeerArena::Make(kOurs, 100, kind);
    ASSERT_TRUE(arena.ok()) << arena.status();
    ExpectThatItGoesQuietly(std::optional(*std::move(arena)));
  }
}

// The stand-in refuses a handle of less than whole blocks.
TEST(PeerArenaTest, AnIpcHandleIsOfWholeBlocks) {
  for (const int64_t num_bytes : {int64_t{0}, int64_t{100}, int64_t{2} << 20, int64_t{5'000'000}}) {
    const auto arena = PeerArena::Make(0, num_bytes, PeerArenaKind::kIpcHandle);
    ASSERT_TRUE(arena.ok()) << num_bytes << ": " << arena.status();
    EXPECT_EQ(std::ssize(arena->bytes()), num_bytes);
  }
}

// A read before a write is visible, even if the stand-in has touched no page so far.
TEST(FakeMemoryTest, NewMemoryIsFullOfBytesThatNobodyWrote) {
  constexpr int64_t kSize = 1'000'003;
  constexpr int64_t kBegin = 300'001;  // begin of the written part
  constexpr int64_t kWritten = 200'000;
  const std::unique_ptr<RowQueue> queue = MakeQueueOfOurs();
  const absl::StatusOr<RowBuffer> memory = queue->Allocate(kSize);
  ASSERT_TRUE(memory.ok()) << memory.status();
  const std::vector<std::byte> ours(kWritten, std::byte{1});
  std::vector<std::byte> read(kSize);
  // One after the other: what was written stays when the rest is looked at for the first time.
  for (const RowCopy& row : {RowCopy{ours.data(), &memory->bytes[kBegin], kWritten},
                             RowCopy{memory->bytes.data(), read.data(), kSize}}) {
    const absl::StatusOr<int64_t> batch = queue->Transfer({&row, 1});
    ASSERT_TRUE(batch.ok()) << batch.status();
    while (!queue->Ended(*batch).value_or(true)) std::this_thread::yield();
  }
  std::vector<std::byte> expected(kSize, std::byte{0xCD});
  std::ranges::copy(ours, expected.begin() + kBegin);
  EXPECT_TRUE(read == expected);
}

}  // namespace
}  // namespace eplb::cuda
