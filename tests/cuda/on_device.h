// Host values on the device, for GPU tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/runtime.h"

namespace eplb::cuda::testing {

// Size of the largest cases: more than the whole grid takes at once. The emulator has 4
// multiprocessors and is a thousand times slower than a GPU.
#ifdef EPLB_EMULATED_CUDA
inline int64_t ManyTokens() { return 6'011; }
inline constexpr int64_t kLargeRow = int64_t{160} * 1024;
inline constexpr int64_t kLargeBuffer = int64_t{1} << 20;
inline constexpr int kNumSmallShapes = 40;
inline constexpr int32_t kManyLayers = 3;
#else
// Tokens whose 8 choices each are more than one stride of the grid on up to 190 multiprocessors:
// 190 * 2 * 512 threads of 4 choices. Runs under compute-sanitizer set EPLB_UNDER_CHECKER=1 and
// take few strides, because each access costs a hundred times more.
inline int64_t ManyTokens() {
  const char* value = std::getenv("EPLB_UNDER_CHECKER");
  return value != nullptr && std::string_view(value) == "1" ? 100'003 : 1'000'003;
}
inline constexpr int64_t kLargeRow = int64_t{3} * 1024 * 1024;
inline constexpr int64_t kLargeBuffer = int64_t{512} << 20;
inline constexpr int kNumSmallShapes = 300;
inline constexpr int32_t kManyLayers = 58;
#endif

// A copy of host values, freed at the end of the test.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values) : size_(values.size()) {
    auto memory = MakeDeviceMemory(static_cast<int64_t>(size_ * sizeof(T)) + 1);
    EXPECT_TRUE(memory.ok()) << memory.status();
    memory_ = *std::move(memory);
    EXPECT_EQ(cudaMemcpy(memory_.get(), values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
    // The copy may still be on its way, and streams of ours do not wait for the default one.
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  T* data() const { return static_cast<T*>(memory_.get()); }

  std::vector<T> Read() const {
    std::vector<T> values(size_);
    EXPECT_EQ(cudaMemcpy(values.data(), memory_.get(), size_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }

 private:
  size_t size_;
  DeviceMemory memory_;
};

using Graph = std::unique_ptr<cudaGraph_t, HandleDeleter<cudaGraph_t, cudaGraphDestroy>>;
using GraphExec =
    std::unique_ptr<cudaGraphExec_t, HandleDeleter<cudaGraphExec_t, cudaGraphExecDestroy>>;

// Captures the work that `launch` puts on the stream, without running it.
template <class Launch>
GraphExec Capture(cudaStream_t stream, const Launch& launch) {
  EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  const absl::Status launched = launch(stream);
  EXPECT_TRUE(launched.ok()) << launched;
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  const Graph owner(graph);
  cudaGraphExec_t exec = nullptr;
  EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  return GraphExec(exec);
}

}  // namespace eplb::cuda::testing
