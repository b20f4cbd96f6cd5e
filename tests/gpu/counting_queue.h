// A row queue of device 0 that counts the bytes of memory which its work reads and writes.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "cuda/row_queue.h"
#include "tests/client/rows/forwarding.h"
#include "tests/gpu/device_queue.h"

namespace eplb {

// Bytes of all counting queues of the process.
struct QueueBytes {
  std::atomic<int64_t> read{0};
  std::atomic<int64_t> written{0};
};
inline QueueBytes& BytesOfQueues() {
  static QueueBytes bytes;
  return bytes;
}

// Streams of the counting queues that were made, in their order, by the thread that made them.
struct StreamsOfThreads {
  std::mutex mutex;
  std::map<std::thread::id, std::vector<cudaStream_t>> streams;
};
inline StreamsOfThreads& StreamsOfQueues() {
  static StreamsOfThreads streams;
  return streams;
}

class CountingQueue : public ForwardingQueue {
 public:
  using ForwardingQueue::ForwardingQueue;
  absl::StatusOr<int64_t> Copy(Rows rows) override {
    Count(rows);
    return ForwardingQueue::Copy(rows);
  }
  absl::StatusOr<int64_t> CopyUnsummed(Rows rows) override {
    Count(rows);
    return ForwardingQueue::CopyUnsummed(rows);
  }
  absl::StatusOr<int64_t> Transfer(Rows rows) override {
    Count(rows);
    return ForwardingQueue::Transfer(rows);
  }

 private:
  static void Count(Rows rows) {
    for (const cuda::RowCopy& row : rows) {
      BytesOfQueues().read += row.num_bytes;
      if (row.destination != nullptr) BytesOfQueues().written += row.num_bytes;
    }
  }
};

inline std::unique_ptr<cuda::RowQueue> MakeCountingQueue() {
  std::unique_ptr<cuda::RowQueue> queue = MakeDeviceQueue();
  const std::lock_guard<std::mutex> lock(StreamsOfQueues().mutex);
  StreamsOfQueues().streams[std::this_thread::get_id()].push_back(
      static_cast<cudaStream_t>(queue->stream()));
  return std::make_unique<CountingQueue>(std::move(queue));
}

}  // namespace eplb
