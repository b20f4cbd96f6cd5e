// The memory that the nccl path sends from and receives into: a block at one address for life, and
// staging of another path if that is given. A communicator registers both or none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "cuda/nccl_library.h"
#include "cuda/row_queue.h"

namespace eplb {

struct NcclMemoryOptions {
  const cuda::NcclLibrary* library = nullptr;
  std::optional<int32_t> device;  // absent: host memory
  int64_t staging_bytes = 0;
  int64_t piece_bytes = 0;  // bytes of a packing buffer; a multiple of 64
  int64_t scratch_bytes = 0;
  // In place of staging_bytes: memory that another path has as well.
  std::optional<cuda::RowBuffer> staging = {};
  bool is_staging_registrable = false;  // by a PeerArena; otherwise nothing is registered
  std::function<void(std::string_view line)> on_note = {};
};

class NcclMemory {
 public:
  // Packing buffers for pieces of this size: four that move in less time than it takes to pack and
  // announce the next, two of those that take longer. 16 MiB at 50 GB/s are 0.34 ms.
  static size_t NumBuffers(int64_t piece_bytes);

  // From NCCL where all of it can be registered, else from `queue`, with a note where NCCL should
  // have and could not.
  // errors: ResourceExhausted; Internal.
  static absl::StatusOr<NcclMemory> Make(NcclMemoryOptions options, cuda::RowQueue& queue);

  std::span<std::byte> staging() const { return staging_; }
  size_t num_buffers() const { return num_buffers_; }
  // The buffer of the piece with this number.
  std::span<std::byte> packed(size_t piece) const;
  std::span<std::byte> scratch() const { return scratch_; }
  // Ranges to register; empty if not all of them can be.
  std::vector<std::span<std::byte>> registrable() const;
  // It is never freed.
  void Leak() {
    (void)block_.owner.release();
    (void)given_.owner.release();
  }

 private:
  NcclMemory() = default;

  cuda::RowBuffer block_;
  cuda::RowBuffer given_;  // staging, where it is not of the block
  bool is_of_nccl_ = false;
  size_t num_buffers_ = 0;
  std::span<std::byte> staging_;
  std::span<std::byte> buffers_;  // num_buffers_ of one size
  std::span<std::byte> scratch_;
};

}  // namespace eplb
