// Errors that the CUDA emulator finds in kernels that are wrong on purpose.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "cuda/runtime.h"
#include "tests/cuda/on_device.h"
#include "tests/support/cuda_emulator/emulator.h"
#include "tests/support/cuda_emulator/launch.h"
#include "tests/support/cuda_emulator/machine.h"

namespace eplb::cuda {
namespace {

namespace emulator = eplb::cuda_emulator;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint32_t kAllLanes = 0xffffffff;

uint32_t ThreadNumber() { return emulator::current_position->thread.x; }

void Barrier(int line = __builtin_LINE()) { emulator::WaitForBlock({"here", line}); }
void SyncWarp(uint32_t mask) {
  emulator::RunWarpCall({.operation = emulator::WarpOperation::kSync, .mask = mask});
}
uint64_t Match(uint32_t mask, uint64_t value) {
  return emulator::RunWarpCall(
      {.operation = emulator::WarpOperation::kMatch, .mask = mask, .value = value});
}

class CudaEmulatorTest : public ::testing::Test {
 protected:
  void TearDown() override { emulator::Reset(); }

  // The report of a launch, "" when all went well.
  static std::string Run(const emulator::LaunchShape& shape, const std::function<void()>& body) {
    emulator::Launch("Wrong", shape, body);
    const bool is_well = cudaStreamSynchronize(nullptr) == cudaSuccess;
    EXPECT_EQ(is_well, emulator::Report().empty());
    return emulator::Report();
  }
  static cudaError_t ErrorOfLaunch(const emulator::LaunchShape& shape) {
    emulator::Launch("Wrong", shape, [] { FAIL() << "it runs"; });
    return cudaGetLastError();
  }
};

TEST_F(CudaEmulatorTest, ABarrierThatSomeThreadsNeverReachIsAnErrorThatNamesKernelAndBlock) {
  const std::string report = Run({3, 64}, [] {
    if (emulator::current_position->block.x == 1 && ThreadNumber() >= 32) return;
    Barrier();
  });
  EXPECT_THAT(report, AllOf(HasSubstr("Wrong, block (1, 0, 0)"), HasSubstr("never reach a barrier"),
                            HasSubstr("32 of 64 threads wait"), HasSubstr("32 have ended")));
}

TEST_F(CudaEmulatorTest, ThreadsAtDifferentBarriersAreAnError) {
  const std::string report = Run({1, 64}, [] {
    if (ThreadNumber() >= 32) Barrier();
    Barrier();
  });
  EXPECT_THAT(report, HasSubstr("where others wait at that of"));
}

TEST_F(CudaEmulatorTest, LanesThatWaitForEachOtherAtDifferentPlacesAreStuck) {
  const std::string report = Run({1, 32}, [] {
    if (ThreadNumber() == 0) {
      Barrier();
    } else {
      SyncWarp(kAllLanes);
    }
  });
  EXPECT_THAT(report, AllOf(HasSubstr("no thread can go on"), HasSubstr("31 in warp operations")));
}

TEST_F(CudaEmulatorTest, MasksThatDifferOrLackTheCallerAreErrors) {
  EXPECT_THAT(Run({1, 32}, [] { SyncWarp(ThreadNumber() == 5 ? 0xffff : kAllLanes); }),
              HasSubstr("with mask"));
  emulator::Reset();
  EXPECT_THAT(Run({1, 32}, [] { SyncWarp(0xfffffffe); }), HasSubstr("lacks lane 0"));
}

TEST_F(CudaEmulatorTest, HalvesOfAWarpMayDivergeAndLanesMayEndFirst) {
  const testing::OnDevice<uint64_t> same(std::vector<uint64_t>(32));
  uint64_t* const to = same.data();
  EXPECT_EQ(Run({1, 32},
                [to] {
                  const uint32_t lane = ThreadNumber();
                  if (lane == 31) return;  // has ended, as far as the others wait for it
                  to[lane] = lane < 16 ? Match(0x0000ffff, lane % 4) : Match(0xffff0000, 1);
                }),
            "");
  std::vector<uint64_t> expected(32);
  for (size_t lane = 0; lane < 31; ++lane) {
    expected[lane] = lane < 16 ? uint64_t{0x1111} << lane % 4 : 0x7fff0000;
  }
  EXPECT_EQ(same.Read(), expected);
}

TEST_F(CudaEmulatorTest, LaunchesBeyondTheLimitsAreRefusedAndTheNextOneIsNot) {
  using Shape = emulator::LaunchShape;
  for (const Shape& shape : {Shape(1, 1025), Shape(1, 0), Shape(0, 32), Shape(dim3(1, 65536), 32),
                             Shape(0x80000000U, 32), Shape(1, dim3(1, 1, 65)),
                             Shape(1, 32, emulator::kSharedBytes + 1)}) {
    EXPECT_EQ(ErrorOfLaunch(shape), cudaErrorInvalidConfiguration);
  }
  EXPECT_EQ(Run({1, 1024, emulator::kSharedBytes}, [] {}), "");
  EXPECT_THAT(Run({1, 64}, [] { emulator::CheckLaunchBounds(32); }),
              HasSubstr("__launch_bounds__"));
}

TEST_F(CudaEmulatorTest, SharedMemoryIsOfABlockAndBeginsWithBytesThatNobodyWrote) {
  const testing::OnDevice<uint64_t> seen(std::vector<uint64_t>(8));
  uint64_t* const to = seen.data();
  const auto body = [to] {
    auto* const shared = reinterpret_cast<uint64_t*>(emulator::DynamicSharedMemory());
    if (ThreadNumber() == 0) to[emulator::current_position->block.x] = shared[0];
    Barrier();
    shared[0] = ThreadNumber();
  };
  EXPECT_EQ(Run({8, 64, 8}, body), "");
  EXPECT_EQ(seen.Read(), std::vector<uint64_t>(8, 0xCDCDCDCDCDCDCDCD));
  const auto more = [] { emulator::StaticSharedMemory(&kAllLanes, emulator::kSharedBytes, 8); };
  EXPECT_THAT(Run({1, 32, 16}, more), HasSubstr("bytes of shared memory"));
}

TEST_F(CudaEmulatorTest, AccessesBesideAnAllocationAreErrors) {
  const testing::OnDevice<uint64_t> memory(std::vector<uint64_t>(4));  // and one byte more
  std::byte* const begin = reinterpret_cast<std::byte*>(memory.data());
  const auto access = [](const std::byte* address) {
    return [address] { emulator::CheckAccess(address, 16, 16); };
  };
  EXPECT_EQ(Run({1, 1}, access(begin + 16)), "");
  EXPECT_THAT(Run({1, 1}, access(begin + 8)), HasSubstr("is not aligned to 16"));
  emulator::Reset();
  EXPECT_THAT(Run({1, 1}, access(begin + 32)), HasSubstr("goes beyond its allocation"));
  emulator::Reset();
  EXPECT_THAT(Run({1, 1}, access(begin - 256)), HasSubstr("to no allocation"));
  emulator::Reset();
  static std::byte host[32];
  std::byte* const aligned = host + (16 - reinterpret_cast<uintptr_t>(host) % 16) % 16;
  EXPECT_THAT(Run({1, 1}, access(aligned)), HasSubstr("memory of the host"));
}

#if !defined(__SANITIZE_ADDRESS__)
TEST_F(CudaEmulatorTest, WritesAroundAnAllocationAreFoundAndFaultsAreErrorsOfTheKernel) {
  const testing::OnDevice<uint64_t> memory(std::vector<uint64_t>(4));
  auto* const begin = reinterpret_cast<volatile std::byte*>(memory.data());
  EXPECT_THAT(Run({1, 32}, [begin] { begin[1 << 20] = std::byte{1}; }),
              AllOf(HasSubstr("Wrong, block (0, 0, 0)"), HasSubstr("an access to no memory")));
  emulator::Reset();
  EXPECT_THAT(Run({1, 1}, [begin] { begin[33] = std::byte{1}; }), HasSubstr("bytes behind"));
  begin[33] = std::byte{0xA5};
  emulator::Reset();
  EXPECT_THAT(Run({1, 1}, [begin] { begin[-1] = std::byte{1}; }), HasSubstr("bytes before"));
  begin[-1] = std::byte{0xA5};
}
#endif

// Without a barrier the order of threads shows, and each seed has another one.
TEST_F(CudaEmulatorTest, SeedsOrderThreadsDifferentlyAndAlwaysTheSame) {
  std::vector<std::vector<uint32_t>> orders;
  for (const uint64_t seed : {0, 1, 2, 3, 0, 1, 2, 3}) {
    emulator::SetSeed(seed);
    std::vector<uint32_t> order;
    EXPECT_EQ(Run({1, 128},
                  [&order] {
                    order.push_back(ThreadNumber());
                    SyncWarp(kAllLanes);
                    order.push_back(ThreadNumber());
                  }),
              "");
    orders.push_back(order);
  }
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(orders[i], orders[i + 4]);
    for (size_t j = 0; j < i; ++j) EXPECT_NE(orders[i], orders[j]);
  }
}

}  // namespace
}  // namespace eplb::cuda
