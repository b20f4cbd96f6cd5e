// Tests of the CUDA emulator: functions of CUDA's language, inline PTX, and the races that it
// finds.
#include "tests/cuda/emulated_language.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "cuda/runtime.h"
#include "tests/cuda/on_device.h"
#include "tests/cuda/require_gpu.h"
#include "tests/support/cuda_emulator/emulator.h"

namespace eplb::cuda {
namespace {

namespace emulator = eplb::cuda_emulator;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::LaneResults;
using testing::OnDevice;
using testing::Sharing;
using testing::Wait;

TEST(EmulatedLanguageTest, LanesReduceAndExchangeWithinTheirMask) {
  std::vector<int32_t> values(32);
  for (int i = 0; i < 32; ++i) values[static_cast<size_t>(i)] = (i * 37 % 23 - 11) * 1'000'000;
  const OnDevice<int32_t> on_device(values);
  const OnDevice<LaneResults> results(std::vector<LaneResults>(1));
  testing::LaunchLanes(on_device.data(), results.data());
  ASSERT_EQ(emulator::Report(), "");
  const LaneResults found = results.Read()[0];
  for (size_t lane = 0; lane < 32; ++lane) {
    const size_t first = lane / 16 * 16;
    LaneResults expected{};
    expected.least[0] = values[first];
    expected.bits_of_all[0] = ~0U;
    for (size_t i = first; i < first + 16; ++i) {
      const auto bits = static_cast<uint32_t>(values[i]);
      expected.sums[0] += values[i];
      expected.least[0] = std::min(expected.least[0], values[i]);
      expected.largest[0] = std::max(expected.largest[0], bits);
      expected.bits_of_all[0] &= bits;
      expected.bits_of_any[0] |= bits;
      expected.odd_bits[0] ^= bits;
    }
    EXPECT_EQ(found.sums[lane], expected.sums[0]);
    EXPECT_EQ(found.least[lane], expected.least[0]);
    EXPECT_EQ(found.largest[lane], expected.largest[0]);
    EXPECT_EQ(found.bits_of_all[lane], expected.bits_of_all[0]);
    EXPECT_EQ(found.bits_of_any[lane], expected.bits_of_any[0]);
    EXPECT_EQ(found.odd_bits[lane], expected.odd_bits[0]);
    EXPECT_EQ(found.shifted[lane], values[lane == first ? lane : lane - 1]);
    EXPECT_EQ(found.third[lane], values[first + 3]);
  }
}

TEST(EmulatedLanguageTest, InlinePtxLoadsStoresAndReadsTheTimer) {
  const std::vector<float> values = {1, -2, 3.5, -4.25, 5, 6, 7, 8};
  const OnDevice<float> from(values);
  const OnDevice<float> to(std::vector<float>(8));
  const OnDevice<uint64_t> times(std::vector<uint64_t>(2));
  testing::LaunchPtx(from.data(), to.data(), times.data());
  ASSERT_EQ(emulator::Report(), "");
  EXPECT_EQ(to.Read(), values);
  EXPECT_LE(times.Read()[0], times.Read()[1]);
  testing::LaunchPtx(from.data() + 1, to.data(), times.data());
  EXPECT_THAT(emulator::Report(), HasSubstr("an access of 16 bytes is not aligned to 16"));
  emulator::Reset();
}

TEST(EmulatedLanguageTest, AKernelWaitsForAWordThatTheHostWrites) {
  auto words = MakePinnedMemory(8);
  ASSERT_TRUE(words.ok()) << words.status();
  auto* const word = static_cast<uint32_t*>(words->get());
  word[0] = word[1] = 0;
  const OnDevice<uint32_t> results(std::vector<uint32_t>(64));
  std::thread host([word] {
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == 0) std::this_thread::yield();
    __atomic_store_n(word + 1, 42, __ATOMIC_RELEASE);
  });
  testing::LaunchAsk(word, results.data());
  host.join();
  EXPECT_EQ(emulator::Report(), "");
  EXPECT_EQ(results.Read(), std::vector<uint32_t>(64, 42));
}

// race: what the report has; "" for none.
struct SharingCase {
  Sharing sharing;
  std::string race;
};
std::ostream& operator<<(std::ostream& out, const SharingCase& c) {
  return out << static_cast<int>(c.sharing);
}

class EmulatedRacesTest : public ::testing::TestWithParam<SharingCase> {
 protected:
  void TearDown() override { emulator::Reset(); }
};

TEST_P(EmulatedRacesTest, AreReportedWithKernelThreadsAndLines) {
  const OnDevice<int32_t> memory(std::vector<int32_t>(64));
  testing::LaunchSharing(GetParam().sharing, memory.data());
  if (GetParam().race.empty()) {
    EXPECT_EQ(emulator::Report(), "");
    return;
  }
  EXPECT_THAT(emulator::Report(),
              AllOf(HasSubstr("SharingKernel, block ("), HasSubstr("a race on "),
                    HasSubstr(GetParam().race), HasSubstr("tests/cuda/emulated_language.cu:"),
                    HasSubstr("by thread"), HasSubstr("of SharingKernel at tests/cuda/")));
}

INSTANTIATE_TEST_SUITE_P(
    Each, EmulatedRacesTest,
    ::testing::Values(
        SharingCase{Sharing::kShuffleThenRead, "shared memory at byte"},
        SharingCase{Sharing::kSyncThenRead, ""},
        SharingCase{Sharing::kSyncOfHalvesThenRead, "shared memory at byte"},
        SharingCase{Sharing::kBallotThenWrite, "shared memory at byte"},
        SharingCase{Sharing::kBytes, ""},
        SharingCase{Sharing::kWarpsWithoutBarrier, "shared memory at byte"},
        SharingCase{Sharing::kWarpsWithBarrier, ""}, SharingCase{Sharing::kAtomics, ""},
        SharingCase{Sharing::kPlainAdds, "memory at 0x"},
        SharingCase{Sharing::kPlainRead, "an atomic update"}, SharingCase{Sharing::kOneValue, ""},
        SharingCase{Sharing::kTwoValues, "a write at"}, SharingCase{Sharing::kAcquired, ""},
        SharingCase{Sharing::kRelaxed, "a read at"}, SharingCase{Sharing::kFenced, ""},
        SharingCase{Sharing::kUnfenced, "a read at"}));

// A launch in a sequence: kNever and no overlap is a plain kernel.
struct AddLaunch {
  Wait wait;
  bool programmatic;
};

class ProgrammaticLaunchTest : public testing::StreamTest<> {
 protected:
  void TearDown() override { emulator::Reset(); }

  std::string Run(const std::vector<AddLaunch>& launches) {
    emulator::Reset();
    const OnDevice<int32_t> numbers(std::vector<int32_t>(64));
    for (const AddLaunch& launch : launches) {
      (void)testing::LaunchAdd(launch.wait, launch.programmatic, numbers.data(), stream_.get());
    }
    if (emulator::Report().empty()) {
      EXPECT_EQ(numbers.Read(), std::vector<int32_t>(64, static_cast<int32_t>(launches.size())));
    }
    return emulator::Report();
  }
};

TEST_F(ProgrammaticLaunchTest, ADependentKernelSeesItsPredecessorsMemoryOnlyAfterItsWait) {
  constexpr AddLaunch kPlain{Wait::kNever, false};
  EXPECT_EQ(Run({kPlain, kPlain, kPlain}), "");
  EXPECT_EQ(Run({kPlain, {Wait::kFirst, true}, {Wait::kFirst, true}, kPlain}), "");
  for (const Wait wait : {Wait::kLater, Wait::kNever}) {
    EXPECT_THAT(Run({kPlain, {wait, true}}),
                AllOf(HasSubstr("a race on memory"), HasSubstr("AddKernel, block (0, 0, 0)"),
                      HasSubstr("of AddKernel at tests/cuda/emulated_language.cu:")));
  }
}

TEST_F(ProgrammaticLaunchTest, OtherWorkOnTheStreamEndsTheOverlap) {
  const OnDevice<int32_t> numbers(std::vector<int32_t>(64));
  const auto add = [&](bool programmatic) {
    return testing::LaunchAdd(Wait::kNever, programmatic, numbers.data(), stream_.get());
  };
  EXPECT_EQ(add(false), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(numbers.data(), 0, 4, stream_.get()), cudaSuccess);
  EXPECT_EQ(add(true), cudaSuccess);
  EXPECT_EQ(emulator::Report(), "");
  EXPECT_EQ(add(true), cudaErrorLaunchFailure);
}

}  // namespace
}  // namespace eplb::cuda
