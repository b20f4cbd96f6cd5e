// The multiprocessor: blocks of fibers, who runs next, and what threads wait for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <cuda_runtime_api.h>

#include "tests/support/cuda_emulator/clock.h"

namespace eplb::cuda_emulator {

inline constexpr size_t kSharedBytes = size_t{48} * 1024;  // default of a block on every device
// If cudaFuncSetAttribute asks: 99 KB, in whole pages.
inline constexpr size_t kMostSharedBytes = size_t{100} * 1024;
inline constexpr int kWarpLanes = 32;

struct LaunchShape {
  LaunchShape(dim3 blocks, dim3 threads, size_t shared = 0, cudaStream_t on = nullptr,
              bool overlaps = false)
      : grid(blocks), block(threads), shared_bytes(shared), stream(on), programmatic(overlaps) {}

  dim3 grid;
  dim3 block;
  size_t shared_bytes;
  size_t most_shared_bytes = kSharedBytes;  // limit of the kernel
  cudaStream_t stream;
  bool programmatic;  // may begin before the launch before it on the stream has ended
};

// Returns why CUDA would not launch the shape; "" if it would.
std::string WhyNoLaunch(const LaunchShape& shape);

// Runs all blocks; "" or what went wrong, with kernel, block and thread.
std::string RunBlocks(std::string_view kernel, const LaunchShape& shape,
                      const std::function<void()>& body);

void SetOrder(uint64_t seed);

// ---- for the thread that runs ----

struct Position {
  uint3 thread{};
  uint3 block{};
  dim3 block_dim;
  dim3 grid_dim;
};
extern const Position* current_position;

// State of a thread for the race detector.
struct Runner {
  Clock clock;
  const std::byte* shared = nullptr;  // shared memory of its block
};
// Null on a thread of the host that runs no kernel now.
extern constinit thread_local Runner* current_runner;

enum class WarpOperation : uint8_t {
  kNone,
  kSync,
  kShuffle,
  kMatch,  // gives the lanes with this lane's value
  kAdd,
  kMin,
  kMax,
  kAnd,
  kOr,
  kXor,
};
struct WarpCall {
  WarpOperation operation = WarpOperation::kNone;
  uint32_t mask = 0;
  uint64_t value = 0;
  int32_t source = 0;  // shuffle: the lane whose value is read
};
// Waits for the other lanes of the mask that have not ended.
uint64_t RunWarpCall(const WarpCall& call);
int32_t CurrentLane();

// A barrier of the program's text.
struct BarrierPlace {
  const char* file = "";
  int line = 0;
};
void WaitForBlock(const BarrierPlace& where);

// Lets another thread run, at times.
void MayYield();
// Lets any thread run, and the threads of the host: the caller waits for one of them.
void YieldToAll();
// The wait of a programmatic dependent launch.
void WaitForPredecessors();

// Ends the launch with an error of the thread that runs: throws what RunBlocks catches.
[[noreturn]] void Fail(std::string_view what);
// The same without throwing, for functions that the compiler takes for ones that throw nothing.
[[noreturn]] void Stop(std::string_view what);

// An access by a vector or an atomic.
void CheckAccess(const void* address, size_t size, size_t alignment);

void CheckLaunchBounds(int32_t most_threads);

std::byte* DynamicSharedMemory();
// The block's memory of the variable that `key` stands for.
std::byte* StaticSharedMemory(const void* key, size_t size, size_t alignment);

}  // namespace eplb::cuda_emulator
