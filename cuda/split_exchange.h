// The exchange of a split between a stream of the GPU and the CPU, without a synchronisation. For a
// splitter on the CPU the stream waits, at most to a deadline, and the caller does not.
#pragma once

#include "absl/status/status.h"

#include "cuda/kernels/split_exchange_body.h"

#ifdef EPLB_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace eplb::cuda {

// errors: InvalidArgument for a null array, and for a number below 1. No pointer is followed.
absl::Status CheckSplitNoteArgs(const SplitNoteArgs& args);
absl::Status CheckSplitExchangeArgs(const SplitExchangeArgs& args);

// Exchanges on this thread, with the body that the GPU runs; waits for the answer. errors: as
// CheckSplitExchangeArgs.
absl::Status SplitExchangeOnHost(const SplitExchangeArgs& args);

// Notes a split on this thread, with the body that the GPU runs. errors: InvalidArgument for a null
// array, and for no slots.
absl::Status SplitNoteOnHost(const SplitNoteArgs& args);

#ifdef EPLB_WITH_CUDA
// Exchanges in order with `stream`, by one block of the current device; asynchronous, safe under
// graph capture. The mailbox is in pinned memory. errors: as CheckSplitExchangeArgs; Internal from
// CUDA.
absl::Status LaunchSplitExchange(const SplitExchangeArgs& args, cudaStream_t stream);

// Notes a split in order with `stream`, as LaunchSplitExchange. errors: as SplitNoteOnHost;
// Internal from CUDA.
absl::Status LaunchSplitNote(const SplitNoteArgs& args, cudaStream_t stream);

// See LoadCopyKernels in copy.h: before the first launch beside other work, or in a graph capture.
absl::Status LoadSplitExchangeKernels();
#endif

}  // namespace eplb::cuda
