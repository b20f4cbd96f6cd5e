// Transports for rows in GPU memory. A build without CUDA has none.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"

#include "client/rows/paths/transport_choice.h"
#include "client/rows/row_memory.h"
#include "cuda/row_queue.h"
#include "placement/ids.h"

namespace eplb {

// The fastest first: peer, peer+nccl, nccl, host. same_host: the ranks of the EP group on this
// rank's host, rising, with its own. REQUIRES: memory of a device.
std::vector<TransportCandidate> DeviceCandidates(const RowMoverOptions& options,
                                                 const std::vector<RankId>& same_host);

// Checks that this build's kernels run on the memory's device, because every transport needs them.
// errors: FailedPrecondition with the architectures.
absl::Status CheckKernelsOf(const RowMemory& memory);

// Adds the device's name and, for a transport that uses NCCL, the library in use.
void TellDevice(int32_t device, TransportReport& report);

// Loads the kernels that route and count tokens in this memory, so that a forward pass may launch
// them under graph capture or beside a collective. errors: Internal from CUDA.
absl::Status LoadTokenKernels(const RowMemory& memory);

// Copies rows in this memory. errors: as MakeStreamRowQueue.
absl::StatusOr<std::unique_ptr<cuda::RowQueue>> MakeQueueFor(const RowMemory& memory);

}  // namespace eplb
