// The queue of device 0, as the tests' worlds take it.
#ifndef EPLB_TESTS_GPU_DEVICE_QUEUE_H_
#define EPLB_TESTS_GPU_DEVICE_QUEUE_H_

#include <cstdio>
#include <memory>
#include <utility>

#include "cuda/row_queue.h"

namespace eplb {

inline std::unique_ptr<cuda::RowQueue> MakeDeviceQueue() {
  auto queue = cuda::MakeStreamRowQueue({});
  if (queue.ok()) return *std::move(queue);
  std::printf("no queue on device 0: %s\n", queue.status().ToString().c_str());
  return nullptr;
}

}  // namespace eplb

#endif  // EPLB_TESTS_GPU_DEVICE_QUEUE_H_
