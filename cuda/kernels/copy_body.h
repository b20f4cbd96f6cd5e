// The body of the batched row copy: one 16-byte unit of one row, and what it adds to the row's
// checksum. No barrier, no atomic: the caller adds.
#ifndef EPLB_CUDA_KERNELS_COPY_BODY_H_
#define EPLB_CUDA_KERNELS_COPY_BODY_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace eplb::cuda {

// One row. Source and destination never overlap, and no row's destination overlaps another's.
struct RowCopy {
  const std::byte* source = nullptr;
  std::byte* destination = nullptr;  // null: only the checksum
  int64_t num_bytes = 0;
};
static_assert(std::is_trivially_copyable_v<RowCopy>);

}  // namespace eplb::cuda

#endif  // EPLB_CUDA_KERNELS_COPY_BODY_H_
