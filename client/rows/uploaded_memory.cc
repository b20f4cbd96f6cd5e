#include "client/rows/uploaded_memory.h"

#include <vector>

#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "client/rows/row_message.h"

namespace eplb {

absl::StatusOr<std::unique_ptr<UploadedMemory>> UploadedMemory::Make(cuda::RowQueue& queue,
                                                                     int64_t num_bytes) {
  std::unique_ptr<UploadedMemory> memory(new UploadedMemory(queue));
  EPLB_ASSIGN_OR_RETURN(memory->device_, queue.Allocate(num_bytes));
  EPLB_ASSIGN_OR_RETURN(memory->pinned_, queue.AllocatePinned(num_bytes));
  return memory;
}

absl::Status UploadedMemory::Await() {
  if (!upload_.has_value()) return absl::OkStatus();
  EPLB_RETURN_IF_ERROR(AwaitBatch(queue_, *upload_, MonotonicNow() + kSettleTimeout));
  upload_.reset();
  return absl::OkStatus();
}

absl::Status UploadedMemory::Upload(std::span<const Part> parts) {
  std::vector<cuda::RowCopy> copies;
  for (const Part& part : parts) {
    copies.push_back({.source = pinned_.bytes.data() + part.begin,
                      .destination = device_.bytes.data() + part.begin,
                      .num_bytes = part.size});
  }
  if (copies.empty()) return absl::OkStatus();
  EPLB_ASSIGN_OR_RETURN(upload_, queue_.Transfer(copies));
  return absl::OkStatus();
}

absl::Status UploadedMemory::UploadBetween(std::span<const Part> parts, void* stream) {
  if (TryBetween(parts, stream).ok()) return absl::OkStatus();
  // After an error of one call: the parts are uploaded again.
  EPLB_RETURN_IF_ERROR(queue_.Drain(MonotonicNow() + kSettleTimeout));
  return TryBetween(parts, stream);
}

absl::Status UploadedMemory::TryBetween(std::span<const Part> parts, void* stream) {
  EPLB_RETURN_IF_ERROR(queue_.Follow(stream));
  EPLB_RETURN_IF_ERROR(Upload(parts));
  return queue_.LetFollow(stream);
}

}  // namespace eplb
