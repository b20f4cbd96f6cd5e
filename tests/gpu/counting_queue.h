// A row queue of device 0 that counts the bytes of memory which its work reads and writes.
#ifndef EPLB_TESTS_GPU_COUNTING_QUEUE_H_
#define EPLB_TESTS_GPU_COUNTING_QUEUE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "cuda/row_queue.h"
#include "tests/gpu/device_queue.h"

namespace eplb::testing {

// Of all counting queues of the process.
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

class CountingQueue : public cuda::RowQueue {
 public:
  explicit CountingQueue(std::unique_ptr<cuda::RowQueue> queue) : queue_(std::move(queue)) {}

  absl::StatusOr<cuda::RowBuffer> Allocate(int64_t num_bytes) override {
    return queue_->Allocate(num_bytes);
  }
  absl::StatusOr<cuda::RowBuffer> AllocatePinned(int64_t num_bytes) override {
    return queue_->AllocatePinned(num_bytes);
  }
  absl::StatusOr<cuda::RowBuffer> Pin(std::span<std::byte> memory) override {
    return queue_->Pin(memory);
  }
  absl::Status CheckStream(void* stream) override { return queue_->CheckStream(stream); }
  absl::Status Follow(void* stream) override { return queue_->Follow(stream); }
  absl::Status LetFollow(void* stream) override { return queue_->LetFollow(stream); }
  absl::StatusOr<int64_t> Copy(std::span<const cuda::RowCopy> rows) override {
    Count(rows);
    return queue_->Copy(rows);
  }
  absl::StatusOr<int64_t> CopyUnsummed(std::span<const cuda::RowCopy> rows) override {
    Count(rows);
    return queue_->CopyUnsummed(rows);
  }
  absl::StatusOr<int64_t> Transfer(std::span<const cuda::RowCopy> rows) override {
    Count(rows);
    return queue_->Transfer(rows);
  }
  absl::StatusOr<int64_t> Add(std::span<const cuda::RowCopy> rows,
                              cuda::ElementType type) override {
    return queue_->Add(rows, type);
  }
  absl::StatusOr<int64_t> Square(std::span<const cuda::RowCopy> rows,
                                 cuda::ElementType type) override {
    return queue_->Square(rows, type);
  }
  absl::StatusOr<int64_t> Mark() override { return queue_->Mark(); }
  absl::StatusOr<bool> Ended(int64_t batch) override { return queue_->Ended(batch); }
  std::vector<uint64_t> TakeChecksums(int64_t batch) override {
    return queue_->TakeChecksums(batch);
  }
  absl::Status Drain(absl::Time deadline) override { return queue_->Drain(deadline); }
  void AllowCaptures() override { queue_->AllowCaptures(); }
  void* stream() override { return queue_->stream(); }

 private:
  static void Count(std::span<const cuda::RowCopy> rows) {
    for (const cuda::RowCopy& row : rows) {
      BytesOfQueues().read += row.num_bytes;
      if (row.destination != nullptr) BytesOfQueues().written += row.num_bytes;
    }
  }

  const std::unique_ptr<cuda::RowQueue> queue_;
};

inline std::unique_ptr<cuda::RowQueue> MakeCountingQueue() {
  std::unique_ptr<cuda::RowQueue> queue = MakeDeviceQueue();
  const std::lock_guard<std::mutex> lock(StreamsOfQueues().mutex);
  StreamsOfQueues().streams[std::this_thread::get_id()].push_back(
      static_cast<cudaStream_t>(queue->stream()));
  return std::make_unique<CountingQueue>(std::move(queue));
}

}  // namespace eplb::testing

#endif  // EPLB_TESTS_GPU_COUNTING_QUEUE_H_
