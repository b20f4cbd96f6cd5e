// The queue of device 0, as the tests' worlds take it.
#pragma once

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
