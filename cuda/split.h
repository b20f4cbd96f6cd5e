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

// A graph's arrays in one piece, for a copy to the device once a placement. Layout, each array
// aligned to 8 bytes: speeds (int64, [num_gpus]), layers (SplitLayerTables, [num_layers]), tables
// (int32, [num_tables]).
int64_t SplitTableBytes(const SplitTables& tables);
// REQUIRES: bytes.size() >= SplitTableBytes.
void PackSplitTables(const SplitTables& tables, std::span<std::byte> bytes);
// The same graph where its arrays lie at `address`, which is on the device and aligned to 8 bytes.
// No pointer is followed.
SplitTables SplitTablesAt(const SplitTables& tables, const void* address);

// Scratch memory on the device for launches of up to num_layers layers. 0 where a block's shared
// memory holds that of a layer: 256 experts in 384 slots on 64 GPUs take about 13 KB of 48.
int64_t SplitScratchBytes(const SplitTables& tables, int32_t num_layers);

// errors: InvalidArgument, naming the number: layers that the graph lacks, fewer than one source, a
// source that is none of them, more than kMaxSplitGpus GPUs, a null array that is needed. No
// pointer is followed.
absl::Status CheckSplitArgs(const SplitArgs& args);

// Splits on the CPU with the body that the GPU runs; allocates its scratch memory. Counts that
// cannot be split are no error: the layer is refused, as SplitArgs::refused has it. errors: as
// CheckSplitArgs. cost: BatchSplitter's. threads: none; the arrays are the caller's.
absl::Status SplitOnHost(const SplitArgs& args);

#ifdef EPLB_WITH_CUDA
// Splits on the current device, a warp a layer, in order with `stream`; asynchronous, safe under
// graph capture, launches nothing for zero layers. errors: as CheckSplitArgs; InvalidArgument for
// null scratch memory where it is needed; Internal from CUDA.
absl::Status LaunchSplit(const SplitArgs& args, cudaStream_t stream);

// See LoadCopyKernels in copy.h: before the first launch beside other work, or in a graph capture.
absl::Status LoadSplitKernels();
#endif

}  // namespace eplb::cuda
