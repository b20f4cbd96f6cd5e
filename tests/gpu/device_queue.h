// The queue of device 0, as the tests' worlds take it, and the stream of a training step.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <utility>

#include <cuda_runtime_api.h>

#include "cuda/row_queue.h"

namespace eplb {

inline std::unique_ptr<cuda::RowQueue> MakeDeviceQueue() {
  auto queue = cuda::MakeStreamRowQueue({});
  if (queue.ok()) return *std::move(queue);
  std::printf("no queue on device 0: %s\n", queue.status().ToString().c_str());
  return nullptr;
}

inline cudaStream_t MakeTrainingStream(int device = 0) {
  EXPECT_EQ(cudaSetDevice(device), cudaSuccess);
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  return stream;
}

}  // namespace eplb
