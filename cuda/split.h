// Splits batches on the GPU: the quotas of all slots, and a source's own, from counts that never
// leave the device. What BatchSplitter computes on the CPU, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "cuda/kernels/batch_split_body.h"

#ifdef EPLB_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace eplb::cuda {

// Bytes of the tables of any placement of this shape, for a range of memory that is allocated once.
int64_t SplitTableBytes(const SplitShape& shape);
// Writes a graph's tables for SplitArgs::tables. errors: InvalidArgument as CheckSplitShape.
// REQUIRES: bytes.size() >= SplitTableBytes of the graph's shape; aligned to 16 bytes.
absl::Status PackSplitTables(const SplitTables& tables, std::span<std::byte> bytes);
// Writes tables for SplitArgs::tables that refuse every batch, for a placement without a graph.
// bytes: see PackSplitTables.
void PackRefusal(const SplitShape& shape, std::span<std::byte> bytes);

// Shared memory of a block on every device that the kernels are built for.
inline constexpr int32_t kMaxSplitSharedBytes = 99 * 1024;

// Bytes of shared memory that a layer takes: 23 KB for 256 experts in 384 slots on 64 GPUs.
int64_t SplitSharedBytes(const SplitArgs& args);

// errors: InvalidArgument, naming the number: a shape of more than kMaxSplitGpus GPUs, or one whose
// layer does not fit the shared memory of a block. Such batches are split on the CPU.
absl::Status CheckSplitShape(const SplitShape& shape);

// errors: as CheckSplitShape; InvalidArgument, naming the number: layers that the tables lack,
// fewer than one source, a source that is none of them, a null array that is needed. Also own
// quotas of sources that are not the ranks of whole nodes. No pointer is followed.
absl::Status CheckSplitArgs(const SplitArgs& args);

// Splits on the CPU with the body that the GPU runs; allocates its memory. Counts that cannot be
// split are no error: the layer is refused, as SplitArgs::refused has it. errors: as
// CheckSplitArgs. cost: BatchSplitter's. threads: none; the arrays are the caller's.
absl::Status SplitOnHost(const SplitArgs& args);

#ifdef EPLB_WITH_CUDA
// Splits on the current device, a block a layer, in order with `stream`; asynchronous, safe under
// graph capture, launches nothing for zero layers. errors: as CheckSplitArgs; Internal from CUDA.
absl::Status LaunchSplit(const SplitArgs& args, cudaStream_t stream);

// See LoadCopyKernels in copy.h: before the first launch beside other work, or in a graph capture,
// and before one that takes more than kMaxSharedBytes of shared memory.
absl::Status LoadSplitKernels();
#endif

}  // namespace eplb::cuda
