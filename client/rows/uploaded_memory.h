// Memory of kernels that the CPU writes: a pinned copy, whose parts are uploaded in the order of a
// stream. Its addresses stay, so that a captured graph reads what was uploaded last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "cuda/row_queue.h"

namespace eplb {

// Threads: one at a time.
class UploadedMemory {
 public:
  // A part of the memory, in bytes.
  struct Part {
    int64_t begin = 0;
    int64_t size = 0;
  };

  // queue: allocates both copies and outlives them. errors: as RowQueue::Allocate.
  static absl::StatusOr<std::unique_ptr<UploadedMemory>> Make(cuda::RowQueue& queue,
                                                              int64_t num_bytes);
  // Waits for the last upload, at most kSettleTimeout: it reads memory that goes.
  ~UploadedMemory() { (void)Await(); }
  UploadedMemory(const UploadedMemory&) = delete;
  UploadedMemory& operator=(const UploadedMemory&) = delete;

  const std::byte* device() const { return device_.bytes.data(); }
  // REQUIRES of a write: the last upload has ended.
  std::byte* pinned() const { return pinned_.bytes.data(); }

  // Waits for the last upload. errors: DeadlineExceeded; Internal from CUDA.
  absl::Status Await();
  absl::Status Upload(std::span<const Part> parts);
  // Uploads after all that `stream` holds now, and before all that it gets later. Does not wait.
  // errors: Internal from CUDA: what the parts hold is not known.
  absl::Status UploadBetween(std::span<const Part> parts, void* stream);

 private:
  explicit UploadedMemory(cuda::RowQueue& queue) : queue_(queue) {}
  absl::Status TryBetween(std::span<const Part> parts, void* stream);

  cuda::RowQueue& queue_;
  cuda::RowBuffer device_;
  cuda::RowBuffer pinned_;
  std::optional<int64_t> upload_;  // the last batch, which may not have ended
};

}  // namespace eplb
