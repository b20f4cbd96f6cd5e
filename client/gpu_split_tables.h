// The placement as the kernel that splits batches reads it: tables in the memory of a GPU, at
// addresses that stay, so that a captured graph splits by the newest ones.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "client/batch_splits.h"
#include "client/rows/uploaded_memory.h"
#include "cuda/row_queue.h"
#include "cuda/split.h"

namespace eplb {

// errors: InvalidArgument, naming the number: a topology that the kernel does not split, or more
// choices of a batch of all ranks than it splits.
absl::Status CheckSplitOnGpu(const Topology& topology, int64_t most_choices);

// Threads: the training thread, except `uploaded` and `newest`.
class GpuSplitTables {
 public:
  // Holds the placement that `splits` shows, with its options. Both outlive the tables. errors:
  // ResourceExhausted; Internal from CUDA.
  static absl::StatusOr<std::unique_ptr<GpuSplitTables>> Make(const BatchSplits& splits,
                                                              cuda::RowQueue& queue);

  // Uploads layers of `placement`, and all of them if the options changed, in the order of `stream`
  // as UploadedMemory::UploadBetween. A layer that cannot be split, because it has an expert on a
  // GPU of speed 0, refuses its batches, and the first one is logged with the reason.
  absl::Status Update(const Placement& placement, std::span<const LayerId> layers, void* stream);
  // Uploads all layers of the placement that is shown if the options changed. errors: as Update.
  absl::Status Renew(void* stream);

  // ---- arguments of the kernels ----
  const SplitShape& shape() const { return shape_; }
  const std::byte* tables() const { return memory_->device() + kTablesBegin; }
  // [1], number of the tables.
  const int64_t* number() const { return reinterpret_cast<const int64_t*>(memory_->device()); }

  // Number of the tables that were uploaded last.
  int64_t uploaded() const { return number_; }
  // The same if they have the options in use; otherwise 0.
  int64_t newest() const { return options_ == splits_.options_version() ? number_.load() : 0; }

 private:
  static constexpr int64_t kTablesBegin = 64;  // after the number

  GpuSplitTables(const BatchSplits& splits, const Topology& topology);
  // Writes into pinned memory. Returns the parts to upload.
  std::vector<UploadedMemory::Part> Write(const Placement& placement,
                                          std::span<const LayerId> layers);

  const BatchSplits& splits_;
  const SplitShape shape_;
  const int64_t layer_bytes_;
  std::unique_ptr<UploadedMemory> memory_;
  bool has_logged_ = false;           // a layer that cannot be split
  std::atomic<int64_t> options_ = 0;  // BatchSplits::options_version of the tables
  std::atomic<int64_t> number_ = 0;
};

}  // namespace eplb
